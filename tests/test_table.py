from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import polars as pl
import pytest
from made import make_table

from lgip_ort.dataset import open_dataset
from lgip_ort.errors import UsageFault
from lgip_ort.table import KINDS, SCHEMA, build_table, count_kinds, stable_hash, table_sha256


@pytest.fixture(scope="module")
def captions(coco):
    return open_dataset(f"coco:{coco}").captions


def test_schema_and_counts(captions):
    table = build_table(captions, "paper", 0)
    assert table.schema == SCHEMA
    assert count_kinds(table) == {"paraphrase": 80 * 6, "flip": 80 * 3, "combined": 0, "identity": 40}
    assert table["pair_id"].is_unique().all()
    assert table["strength"].null_count() == table["verified"].null_count() == len(table)
    assert set(table["text"]) == set(captions["text"])
    assert table.filter(pl.col("kind") != "identity").select((pl.col("text") != pl.col("perturbed")).all()).item()
    identity = table.filter(pl.col("kind") == "identity")
    assert (identity["text"] == identity["perturbed"]).all()
    assert identity["image_id"].is_unique().all()


def test_rows_do_not_depend_on_their_neighbours(captions):
    whole = build_table(captions, "paper", 3)
    shuffled = build_table(captions.sample(fraction=1, shuffle=True, seed=1), "paper", 3)
    assert shuffled.sort("pair_id").equals(whole.sort("pair_id"))
    some = captions.filter(pl.col("image_id").is_in(["7", "31"]))
    assert build_table(some, "paper", 3).equals(whole.filter(pl.col("image_id").is_in(["7", "31"])))


def test_another_process_makes_the_same_table(captions, tmp_path):
    captions.write_parquet(tmp_path / "captions.parquet")
    code = (
        "import sys, polars as pl; from lgip_ort.table import *;"
        "print(table_sha256(build_table(pl.read_parquet(sys.argv[1]), 'paper', 0)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "captions.parquet")]
    out = subprocess.run(
        command,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.strip() == table_sha256(build_table(captions, "paper", 0))


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


def test_real_captions(shared):
    """The paper's rules over COCO captions val2017, counted with other code: 25,014 captions, 10,202 flips."""
    numbered: Counter[int] = Counter()
    rows = []
    for row in json.loads((shared / "coco/annotations/captions_val2017.json").read_bytes())["annotations"]:
        rows.append((str(row["image_id"]), numbered[row["image_id"]], row["caption"]))
        numbered[row["image_id"]] += 1
    schema = {"image_id": pl.String, "caption_index": pl.UInt16, "text": pl.String}
    table = build_table(pl.DataFrame(rows, schema=schema, orient="row"), "paper", 0)
    assert len(rows) == 25_014
    flips = table.filter(pl.col("kind") == "flip")
    assert Counter(flips["family"]) == {"colour": 4051, "count": 1362, "object": 4789}
    assert count_kinds(table) == {"paraphrase": 150_084, "flip": 10_202, "combined": 0, "identity": 5000}
    assert not table.filter(pl.col("kind") != "identity")["perturbed"].str.contains(r"^\s|\s$").any()
