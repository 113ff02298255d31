from __future__ import annotations

import polars as pl
import pytest
from made import make_table

from lgip_ort.dataset import open_dataset
from lgip_ort.errors import UsageFault
from lgip_ort.table import LENGTHS, SCHEMA, build_table, count_kinds, table_parts, table_sha256
from lgip_ort.table_file import read_table, write_table


@pytest.fixture(scope="module")
def captions(coco):
    return open_dataset(f"coco:{coco}").captions


@pytest.mark.parametrize("suite", ["paper", "strict"])
def test_table_that_is_written_in_parts(captions, tmp_path, monkeypatch, suite):
    """The file holds the rows in the order of the parts, and the summary says what a look at the whole would."""
    monkeypatch.setattr("lgip_ort.table.IMAGES_AT_ONCE", 7)
    summary = write_table(table_parts(captions, suite, 0), tmp_path / "out.parquet")
    table = build_table(captions, suite, 0)
    assert pl.read_parquet(tmp_path / "out.parquet").equals(table)
    assert summary.sha256 == table_sha256(table)
    assert summary.rows == len(table)
    assert summary.kinds() == count_kinds(table)
    assert summary.families == {(k, f): n for k, f, n in table.group_by("kind", "family").len().iter_rows()}
    assert summary.flipped == table.filter(pl.col("kind") == "flip")["text"].n_unique() > 0
    assert {path.name for path in tmp_path.iterdir()} == {"out.parquet"}


def test_captions_that_are_reworded(tmp_path):
    rows = [("1", "paraphrase", "wrapper"), ("1", "flip", "a"), ("2", "paraphrase", "voice"), ("2", "flip", "a"),
            ("2", "flip", "b"), ("2", "paraphrase", "order"), ("3", "flip", "a")]  # fmt: skip
    summary = write_table([make_table(rows[:2]), make_table(rows[2:])], None)
    assert (summary.flipped, summary.reworded) == (3, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("parts", [1, 3])
def test_examples_do_not_depend_on_the_parts(parts):
    """Fifty of each family, those with the least pair_id."""
    rows = make_table([("1", "flip", "colour")] * 120 + [("1", "flip", "count")] * 3)
    rows = rows.sample(fraction=1, shuffle=True, seed=0)
    summary = write_table([rows[i::parts] for i in range(parts)], None)
    assert summary.examples["flip", "colour"]["pair_id"].to_list() == list(range(1, 51))
    assert summary.examples["flip", "count"]["pair_id"].to_list() == [121, 122, 123]


def test_empty_table(tmp_path):
    summary = write_table([], tmp_path / "out.parquet")
    assert read_table(tmp_path / "out.parquet").schema == SCHEMA
    assert (summary.rows, summary.examples) == (0, {})
    assert summary.sha256 == table_sha256(pl.DataFrame(schema=SCHEMA))


def test_table_that_fails_half_way_leaves_nothing(captions, tmp_path):
    def parts():
        yield build_table(captions, "paper", 0)
        raise UsageFault("half way")

    with pytest.raises(UsageFault, match="half way"):
        write_table(parts(), tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


def test_table_that_is_read_again(captions, tmp_path):
    table = build_table(captions, "strict", 0)
    table.select(reversed(table.columns)).with_columns(extra=1).write_parquet(tmp_path / "table.parquet")
    assert read_table(tmp_path / "table.parquet").equals(table)


@pytest.mark.parametrize("dtype", [pl.UInt16, pl.Int64, pl.String])
def test_padded_lengths_are_left_out(tmp_path, dtype):
    """They are those of the run that the table was taken from, whatever their type."""
    table = make_table([("1", "flip", "colour")])
    lengths = [pl.lit(9).cast(dtype).alias(name) for name in LENGTHS]
    table.with_columns(lengths).write_parquet(tmp_path / "table.parquet")
    assert read_table(tmp_path / "table.parquet").equals(table)
    table.drop(LENGTHS).write_parquet(tmp_path / "table.parquet")
    assert read_table(tmp_path / "table.parquet").equals(table)


def test_columns_of_nothing_but_nulls_may_have_no_type(tmp_path):
    """Writers that know no types leave them out."""
    table = make_table([("1", "flip", "colour")])
    untyped = table.with_columns(strength=pl.lit(None), verified=pl.lit(None))
    assert untyped.schema["strength"] == pl.Null
    untyped.write_parquet(tmp_path / "table.parquet")
    assert read_table(tmp_path / "table.parquet").equals(table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop("family"), "column 'family' is missing"),
        (lambda t: t.with_columns(pl.col("pair_id").cast(pl.Int64)), "column 'pair_id': Int64 found, UInt64 expected"),
        (lambda t: t.with_columns(pl.col("strength").cast(pl.Float64)), "column 'strength': Float64 found, Float32 ex"),
        (lambda t: t.with_columns(text=pl.lit(None)), "column 'text': Null found, String expected"),
        (lambda t: t.with_columns(perturbed=pl.lit(None, pl.String)), "column 'perturbed': 2 nulls found, none"),
        (lambda t: t.with_columns(kind=pl.lit("flop")), "kind 'flop' found, one of paraphrase, flip, combined, identity"),
        (lambda t: t.with_columns(pair_id=pl.lit(1, pl.UInt64)), "pair_id is not unique"),
    ],
)  # fmt: skip
def test_table_that_is_refused(tmp_path, change, message):
    path = tmp_path / "theirs.parquet"
    change(make_table([("1", "flip", "colour"), ("2", "flip", "colour")])).write_parquet(path)
    with pytest.raises(UsageFault, match=rf"theirs\.parquet: {message}"):
        read_table(path)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and no more", b"a,b\n1,2\n"])
def test_file_that_is_no_table(tmp_path, content):
    path = tmp_path / "theirs.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageFault, match=r"theirs\.parquet: not a table: "):
        read_table(path)
