"""Reading a run's folder."""

from __future__ import annotations

import polars as pl
import pytest
from made import STAMP, make_run, make_scores, make_table, make_vectors, write_shard

from lgip_ort.errors import UsageFault
from lgip_ort.run import Run, open_run, shard_metadata

TABLE = make_table([(image, "flip", "colour") for image in "AABCC"])


@pytest.fixture
def run(tmp_path):
    """A run in two shards: the two pairs of A, and those of B and C, of which B was skipped."""
    run = make_run(tmp_path / "run", TABLE, [0.5] * 5, [0.25] * 5)
    write_shard(run.folder, make_scores(TABLE[:2], [0.1, 0.2], [0, 0]))
    write_shard(run.folder, make_scores(TABLE[3:], [0.4, 0.5], [0, 0]), 1, 2, 3)
    return run


def test_parts_are_the_scored_pairs_of_each_shard(run):
    first, second = run.parts()
    assert first["pair_id"].to_list() == [1, 2] and second["pair_id"].to_list() == [4, 5]
    assert second["image_id"].to_list() == ["C", "C"]
    assert run.pairs().equals(pl.concat([first, second]))
    assert run.pairs()["s"].to_list() == pytest.approx([0.1, 0.2, 0.4, 0.5])
    assert run.table().equals(TABLE)


def test_a_part_reads_nothing_but_its_own_rows(run):
    """A pair of another shard's rows has no scores there: it would have been scored twice."""
    write_shard(run.folder, make_scores(TABLE, [0.5] * 5, [0.25] * 5), 1, 2, 3)
    assert [part["pair_id"].to_list() for part in run.parts()] == [[1, 2], [3, 4, 5]]


def test_of_a_text_of_several_shards_the_first_vector_counts(run):
    more = make_vectors([("text", 1, (1, 1)), ("text", 2, (0, 1))])
    more.write_parquet(run.folder / "embeddings/1.parquet")
    assert run.embeddings().rows() == [("vision", 1, [1, 0]), ("text", 1, [0, 1]), ("text", 2, [0, 1])]


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and no more"])
@pytest.mark.parametrize("name", ["table.parquet", "profile.parquet", "skipped.parquet"])
def test_frame_that_is_missing_or_damaged(run, name, content):
    path = run.folder / name
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageFault, match=r": can't be read: .*; --overwrite computes the run again") as fault:
        getattr(run, name.removesuffix(".parquet"))()
    assert str(fault.value).startswith(str(path))


@pytest.mark.parametrize("metadata", [None, {"shard": "{"}, {"other": "{}"}])
def test_scores_that_do_not_say_where_they_belong(run, metadata):
    path = run.folder / "scores/1.parquet"
    path.write_bytes(b"") if metadata is None else TABLE.write_parquet(path, metadata=metadata)
    for read in (lambda: shard_metadata(path), run.pairs):
        with pytest.raises(UsageFault, match=r"1\.parquet: not the scores of a shard; --overwrite computes"):
            read()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not a run, run.json is missing"),
        ("{", "run.json: not JSON"),
        ('{"status": "started"}', "'started', not done"),
    ],
)
def test_folder_that_is_no_finished_run(tmp_path, content, message):
    if content:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageFault, match=message) as fault:
        open_run(tmp_path)
    assert str(tmp_path) in str(fault.value)


@pytest.mark.parametrize(
    ("source", "name", "revision", "expected"),
    [
        ("random", "seed 0", None, "random"),
        ("hub", "google/siglip", "abc", "google/siglip@abc"),
        ("path", "/x/y.safetensors", None, "/x/y.safetensors"),
    ],
)
def test_weights_in_a_word(tmp_path, source, name, revision, expected):
    weights = {"source": source, "name": name, "revision": revision, "sha256": ""}
    assert Run(tmp_path, STAMP | {"weights": weights}).weights == expected
