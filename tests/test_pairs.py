from __future__ import annotations

import json
from collections import Counter

import polars as pl
import pytest

from lgip_ort.errors import UsageFault
from lgip_ort.pairs import Wanted, open_pairs, write_pairs
from lgip_ort.table_file import read_table


@pytest.fixture
def demo():
    return Wanted(limit=20)


def opened(wanted, file=None, available_only=False):
    """The data set, the whole table and its suite."""
    dataset, parts, suite = open_pairs(wanted, available_only, file)
    return dataset, pl.concat(list(parts)), suite


def test_default_is_the_paper(demo):
    dataset, table, suite = opened(demo)
    assert (suite, len(dataset.images), table["suite"].unique().to_list()) == ("paper", 20, ["paper"])
    assert table["image_id"].n_unique() == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"suite": "papper"}, "unknown suite 'papper'; did you mean 'paper'?"),
        ({"suite": "own"}, "demo brings no pairs of its own"),
        ({"lexicon": "x.toml"}, "--lexicon is for --suite strict, paper found"),
        ({"paraphrases": "advance"}, "unknown paraphrases 'advance'; did you mean 'advanced'?"),
        ({"paraphrases": "advanced", "suite": "strict"}, "--paraphrases advanced is for --suite paper, strict found"),
        ({"sample": 500}, "500 images with exactly five captions asked for, 400 are there"),
    ],
)
def test_what_can_not_be_asked_for(change, message):
    with pytest.raises(UsageFault) as fault:
        write_pairs(Wanted(**change), None)
    assert message in str(fault.value)


def test_a_table_is_scored_as_it_was_made(demo, tmp_path):
    made = write_pairs(demo, tmp_path / "t.parquet")
    dataset, table, suite = opened(demo, tmp_path / "t.parquet")
    assert made.summary.rows == len(table)
    assert table.equals(opened(demo)[1])
    assert (suite, len(dataset.images)) == ("paper", 20)


def test_a_table_of_other_images(tmp_path):
    write_pairs(Wanted(limit=20), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    strange = table.with_columns(image_id=pl.when(pl.col("image_id") == "3").then(pl.lit("x")).otherwise("image_id"))
    strange.write_parquet(tmp_path / "s.parquet")
    with pytest.raises(UsageFault, match=r"pairs are of images that demo lacks, the first is x; --available-only"):
        open_pairs(Wanted(), False, tmp_path / "s.parquet")
    dataset, known, _ = opened(Wanted(), tmp_path / "s.parquet", available_only=True)
    assert set(known["image_id"]) == set(dataset.images["image_id"]) == set(table["image_id"]) - {"3"}
    strange.with_columns(image_id=pl.lit("nowhere")).write_parquet(tmp_path / "n.parquet")
    with pytest.raises(UsageFault, match="no pair is of an image of"):
        open_pairs(Wanted(), True, tmp_path / "n.parquet")


def test_round_trip_through_the_released_format(demo, tmp_path):
    """Texts and families survive; what a table adds to them (words, strength) does not."""
    write_pairs(Wanted(limit=20, suite="strict"), tmp_path / "t.jsonl")
    back = opened(Wanted(f"jsonl:{tmp_path / 't.jsonl'}"))
    assert back[2] == "own"
    expected = opened(Wanted(limit=20, suite="strict"))[1].filter(pl.col("kind") != "identity")

    def content(table):
        return Counter(table.select("image_id", "kind", "family", "text", "perturbed").iter_rows())

    assert content(back[1]) == content(expected)


def test_name_of_a_file(demo, tmp_path):
    with pytest.raises(UsageFault, match=r"a name that ends in \.parquet or \.jsonl expected"):
        write_pairs(demo, tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())


def test_table_command(bench, tmp_path):
    outcome = bench("table", "--suite", "strict", "--limit", 50, "--out", "t.parquet", "--json")
    assert outcome.code == 0
    data = outcome.json()
    assert data["out"] == "t.parquet"
    assert sum(family["n"] for family in data["families"]) == sum(data["pairs"].values())
    assert len(read_table(tmp_path / "t.parquet")) == sum(data["pairs"].values())
    assert max(Counter((e["kind"], e["family"]) for e in data["examples"]).values()) == 5
    assert bench("table", "--limit", 50, "--out", "t.parquet").code == 2  # it exists
    assert bench("table", "--limit", 50, "--out", "t.parquet", "--overwrite").code == 0
    scored = bench("--table", "t.parquet", "--limit", 50, "--json").json()
    assert (scored["suite"], scored["dataset"]["images"]) == ("paper", 50)


def test_show_prints_fifty(bench):
    shown = bench("table", "--suite", "strict", "--show", "existential")
    assert shown.code == 0
    assert sum(line.startswith("    ") for line in shown.out.splitlines()) == 50
    refused = bench("table", "--suite", "strict", "--show", "existentiel")
    assert (refused.code, "did you mean 'existential'?" in refused.err) == (2, True)


def test_bad_input_writes_nothing(bench, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"image_path": "a.jpg", "orig_captions": ["A dog."]}\n{"image_path": \n')
    outcome = bench("table", "--data", "jsonl:bad.jsonl", "--out", "t.parquet")
    assert outcome.code == 2
    assert "bad.jsonl" in outcome.err and "2" in outcome.err
    assert not (tmp_path / "t.parquet").exists()


def test_lexicon_of_one_s_own(bench, tmp_path):
    (tmp_path / "own.toml").write_text('[fixed]\nexpressions = ["dog"]\n')

    def sources(*more):
        table = bench("table", "--suite", "strict", "--show", "object", "--json", *more).json()
        return {example["source_word"].lower() for example in table["examples"]}

    assert "dog" in sources()
    assert "dog" not in sources("--lexicon", "own.toml")


def test_sample_is_stamped(bench):
    first, second = (bench("--sample", 40, "--seed", seed, "--json").json() for seed in (1, 2))
    assert first["dataset"]["images"] == second["dataset"]["images"] == 40
    assert first["dataset"]["hash"] != second["dataset"]["hash"]
    stamp = json.loads((bench.folder / first["run"] / "run.json").read_text())
    assert stamp["dataset"]["hash"] == first["dataset"]["hash"]
