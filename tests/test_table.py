from __future__ import annotations

import os
import subprocess
import sys

import polars as pl
import pytest
from made import make_table

from lgip_ort.dataset import open_dataset
from lgip_ort.errors import UsageFault
from lgip_ort.perturb.custom import read_lexicon
from lgip_ort.perturb.suites import Options
from lgip_ort.table import (
    KINDS,
    LENGTHS,
    SCHEMA,
    build_table,
    count_kinds,
    from_given,
    stable_hash,
    table_parts,
    table_sha256,
)

CAPTIONS = {"image_id": pl.String, "caption_index": pl.UInt16, "text": pl.String}
ADVANCED = Options("advanced")


@pytest.fixture(scope="module")
def captions(coco):
    return open_dataset(f"coco:{coco}").captions


def test_schema_and_counts(captions):
    table = build_table(captions, "paper", 0)
    assert table.schema == SCHEMA
    assert count_kinds(table) == {"paraphrase": 80 * 6, "flip": 80 * 3, "combined": 0, "identity": 40}
    assert table["pair_id"].is_unique().all()
    for name in ("strength", "verified", *LENGTHS):
        assert table[name].null_count() == len(table), name
    assert set(table["text"]) == set(captions["text"])
    assert table.filter(pl.col("kind") != "identity").select((pl.col("text") != pl.col("perturbed")).all()).item()
    identity = table.filter(pl.col("kind") == "identity")
    assert (identity["text"] == identity["perturbed"]).all()
    assert identity["image_id"].is_unique().all()


def test_schema_and_counts_of_strict(captions):
    table = build_table(captions, "strict", 0)
    assert table.schema == SCHEMA
    assert table["pair_id"].is_unique().all()
    assert set(table["text"]) == set(captions["text"])
    flips = table.filter(pl.col("kind") == "flip")
    assert flips["strength"].null_count() == 0
    assert table.filter(pl.col("kind") != "flip")["strength"].null_count() == len(table) - len(flips)
    assert set(flips["family"]) >= {"object", "colour"}


def test_advanced_pool_and_combined_pairs(captions):
    table = build_table(captions, "paper", 0, ADVANCED)
    combined = table.filter(pl.col("kind") == "combined")
    assert count_kinds(table) == count_kinds(build_table(captions, "paper", 0)) | {"combined": len(combined)}
    assert combined.group_by("image_id", "caption_index").len()["len"].max() == 6
    assert set(combined["family"]) == {"colour", "count", "object"}
    assert table["pair_id"].is_unique().all()


@pytest.mark.parametrize(("suite", "options"), [("paper", None), ("paper", ADVANCED), ("strict", None)])
def test_rows_do_not_depend_on_their_neighbours(captions, suite, options):
    whole = build_table(captions, suite, 3, options)
    shuffled = build_table(captions.sample(fraction=1, shuffle=True, seed=1), suite, 3, options)
    assert shuffled["pair_id"].to_list() != whole["pair_id"].to_list()
    assert shuffled.sort("pair_id").equals(whole.sort("pair_id"))
    some = captions.filter(pl.col("image_id").is_in(["7", "31"]))
    assert build_table(some, suite, 3, options).equals(whole.filter(pl.col("image_id").is_in(["7", "31"])))


def test_captions_of_an_image_stand_by_their_index(captions):
    """Whatever the order they come in; images stand in the order of their first caption."""
    backwards = build_table(captions.reverse(), "paper", 0)
    assert backwards["image_id"].unique(maintain_order=True).to_list() == [str(i) for i in range(40, 0, -1)]
    assert backwards.filter(image_id="7").equals(build_table(captions, "paper", 0).filter(image_id="7"))


def test_parts_are_the_table(captions, monkeypatch):
    whole = build_table(captions, "strict", 0)
    monkeypatch.setattr("lgip_ort.table.IMAGES_AT_ONCE", 20)
    parts = list(table_parts(captions, "strict", 0))
    assert [part["image_id"].n_unique() for part in parts] == [20, 20]
    assert pl.concat(parts).equals(whole)
    assert build_table(captions, "strict", 0).equals(whole)


PART = """
import sys, polars as pl
from lgip_ort.perturb.suites import Options
from lgip_ort.table import build_table
folder, part, suite, pool = sys.argv[1:]
captions, annotated = (pl.read_parquet(f"{folder}/{name}.parquet") for name in ("captions", "annotated"))
captions = captions.filter(pl.col("image_id").hash(seed=0) % 3 == int(part))
build_table(captions, suite, 0, Options(pool), annotated).write_parquet(f"{folder}/{suite}{part}.parquet")
"""


@pytest.mark.parametrize(("suite", "options"), [("paper", ADVANCED), ("strict", Options())])
def test_three_processes_make_the_same_bytes(val2017, tmp_path, suite, options):
    """Each with a third of the images in shuffled order, and with another seed of Python's own hashes."""
    some = val2017.annotated["image_id"].unique().to_list() + [str(i) for i in range(60_000)]
    captions = val2017.captions.filter(pl.col("image_id").is_in(some))
    assert captions["image_id"].n_unique() > 500
    captions.sample(fraction=1, shuffle=True, seed=5).write_parquet(tmp_path / "captions.parquet")
    val2017.annotated.write_parquet(tmp_path / "annotated.parquet")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PART, str(tmp_path), str(part), suite, options.paraphrases],
            env=os.environ | {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": str(part)},
        )
        for part in range(3)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    parts = [pl.read_parquet(tmp_path / f"{suite}{part}.parquet") for part in range(3)]
    assert min(map(len, parts)) > 1000
    whole = build_table(captions, suite, 0, options, val2017.annotated)
    for name, table in (("parts", pl.concat(parts)), ("whole", whole)):
        table.sort("pair_id").write_parquet(tmp_path / name)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_annotations_and_lexicon_reach_the_suite(tmp_path):
    captions = pl.DataFrame({"image_id": [str(i) for i in range(60)], "caption_index": 0, "text": "A dog on a rock"})
    captions = captions.cast(CAPTIONS)

    def targets(annotated=None, options=None):
        table = build_table(captions, "strict", 0, options, annotated)
        return dict(table.filter(pl.col("family") == "object").select("image_id", "target_word").iter_rows())

    free = targets()
    assert set(free.values()) > {"cat"}
    chosen = [image_id for image_id, target in free.items() if target == "cat"]
    annotated = pl.DataFrame({"image_id": chosen, "category": ["cat"] * len(chosen)})
    found = targets(annotated)
    assert "cat" not in {found[image_id] for image_id in chosen}
    assert all(found[image_id] == target for image_id, target in free.items() if image_id not in chosen)
    (tmp_path / "own.toml").write_text("[fixed]\nexpressions = ['a dog']")
    assert targets(options=Options(lexicon=read_lexicon(tmp_path / "own.toml"))) == {}


def test_seed_changes_the_draws_alone(captions):
    tables = [build_table(captions, "paper", seed) for seed in (0, 1)]
    assert count_kinds(tables[0]) == count_kinds(tables[1])
    assert table_sha256(tables[0]) != table_sha256(tables[1])


def test_pair_id_is_the_content_s():
    assert stable_hash("paper", "1", 0) == 0x92E9CFDB0D65E437  # BLAKE2b, 8 bytes, of "paper\0001\0000"
    assert stable_hash("ab", "c") != stable_hash("a", "bc")


def test_caption_that_is_there_twice(captions):
    """Two annotators of one image may write the same words."""
    twice = pl.DataFrame(
        {"image_id": ["1", "1"], "caption_index": [0, 1], "text": ["a red dog"] * 2},
        schema=captions.schema,
    )
    table = build_table(twice, "paper", 0)
    assert table["caption_index"].value_counts().sort("caption_index").rows() == [(0, 9), (1, 8)]


def test_no_captions():
    table = build_table(
        pl.DataFrame(schema={"image_id": pl.String, "caption_index": pl.UInt16, "text": pl.String}), "paper", 0
    )
    assert table.schema == SCHEMA
    assert count_kinds(table) == dict.fromkeys(KINDS, 0)


def test_unknown_suite(captions):
    with pytest.raises(UsageFault, match="unknown suite 'papper'; did you mean 'paper'"):
        build_table(captions, "papper", 0)


def test_identity_of_a_table_is_its_pairs_in_order():
    a, b = make_table([("1", "flip", "colour"), ("2", "flip", "colour")]), make_table([("1", "flip", "colour")])
    assert table_sha256(a) != table_sha256(b)
    assert table_sha256(a) != table_sha256(a.reverse())
    assert table_sha256(a) == table_sha256(a.clone())


@pytest.mark.parametrize("suite", ["paper", "strict"])
def test_texts_are_kept_as_they_are(suite):
    odd = ["A dog\nnear  a cat\r\n", "", "  TWO DOGS", "<b>“犬”</b> {} 👍", "two red dogs " * 50, "\ufeffA dog"]
    captions = pl.DataFrame({"image_id": "1", "caption_index": range(len(odd)), "text": odd}).cast(CAPTIONS)
    table = build_table(captions, suite, 0)
    found = dict(table.select("caption_index", "text").unique().iter_rows())
    assert all(odd[index] == text for index, text in found.items())
    assert set(found) >= (set(range(len(odd))) if suite == "paper" else {0, 4})
    assert table["perturbed"].null_count() == 0


def test_given_perturbations():
    columns = ("image_id", "caption_index", "kind", "family", "text", "perturbed")
    rows = [("1", 0, "flip", "swap_obj", "a dog", "a cat"), ("1", 1, "paraphrase", "given", "a dog", "the dog")]
    given = pl.DataFrame([*rows, rows[0]], schema=columns, orient="row")
    table = from_given(given, "sugarcrepe")
    assert table.schema == SCHEMA
    assert table.select(columns).rows() == rows
    assert set(table["suite"]) == {"sugarcrepe"}
    assert table["pair_id"][0] == stable_hash("sugarcrepe", "1", 0, "flip", "swap_obj", "a dog", "a cat")
    assert from_given(given, "other")["pair_id"].is_in(table["pair_id"].to_list()).sum() == 0
    assert from_given(given[:0], "none").schema == SCHEMA


def test_pair_id_of_a_given_row_is_that_of_a_built_one(captions):
    built = build_table(captions, "paper", 0)
    assert from_given(built, "paper")["pair_id"].equals(built["pair_id"])


def test_real_captions(val2017):
    """The paper's rules over COCO captions val2017, counted with other code: 25,014 captions, 10,202 flips."""
    captions = val2017.captions
    table = build_table(captions, "paper", 0)
    assert len(captions) == 25_014
    flips = table.filter(pl.col("kind") == "flip")
    assert dict(flips["family"].value_counts().iter_rows()) == {"colour": 4051, "count": 1362, "object": 4789}
    assert count_kinds(table) == {"paraphrase": 150_084, "flip": 10_202, "combined": 0, "identity": 5000}
    assert not table.filter(pl.col("kind") != "identity")["perturbed"].str.contains(r"^\s|\s$").any()
    assert table["pair_id"].is_unique().all()


def test_real_captions_with_strict(val2017, strict_val2017):
    assert strict_val2017["pair_id"].is_unique().all()
    assert strict_val2017.filter(pl.col("kind") == "identity")["image_id"].n_unique() == 5000
    changed = strict_val2017.filter(pl.col("kind") != "identity")
    joined = changed.join(val2017.captions, on=["image_id", "caption_index", "text"], how="semi")
    assert len(joined) == len(changed)
