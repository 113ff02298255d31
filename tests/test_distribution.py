from __future__ import annotations

import polars as pl
import pytest
from made import make_run, make_table, write_shard

from lgip_ort.report.charts import distribution_chart
from lgip_ort.report.distribution import distribution

ROWS = [("a", "flip", "colour"), ("a", "flip", "count"), ("b", "paraphrase", "wrapper"), ("b", "identity", "identity")]


def shares(frame, text):
    rows = frame.filter(pl.col("text") == text, pl.col("share") > 0)
    return {round(score, 3): share for score, share in rows.select("score", "share").iter_rows()}


def test_shares_by_kind_of_text(tmp_path):
    """Captions are those of the flips; what identity pairs score is no text of its own."""
    run = make_run(tmp_path / "r", make_table(ROWS), [0.501, 0.308, 0.9, 0.7], [0.203, 0.207, 0.905, 0.7])
    found = distribution(run)
    assert shares(found, "captions") == {0.505: 0.5, 0.305: 0.5}
    assert shares(found, "flips") == {0.205: 1.0}
    assert shares(found, "paraphrases") == {0.905: 1.0}
    assert found["score"].min() == pytest.approx(0.195)
    assert found["score"].max() == pytest.approx(0.915)


def test_captions_of_paraphrases_where_there_are_no_flips(tmp_path):
    run = make_run(tmp_path / "r", make_table(ROWS[2:]), [0.5, 0.7], [0.4, 0.7])
    found = distribution(run)
    assert shares(found, "captions") == {0.505: 1.0}
    assert shares(found, "flips") == {}


def test_shards_add_up(tmp_path):
    table = make_table(ROWS[:2] * 2)
    run = make_run(tmp_path / "r", table, [0.1, 0.2, 0.3, 0.4], [0.0] * 4)
    whole = distribution(run)
    scores = pl.read_parquet(run.folder / "scores/0.parquet")
    write_shard(run.folder, scores[:2], 0)
    write_shard(run.folder, scores[2:], 1, start=2)
    assert distribution(run).equals(whole)


def test_scores_a_rounding_beyond_one_are_counted(tmp_path):
    run = make_run(tmp_path / "r", make_table(ROWS[:1]), [1.0000001], [-1.0000001])
    found = distribution(run)
    assert shares(found, "captions") == {0.995: 1.0}
    assert shares(found, "flips") == {-0.995: 1.0}


def test_nothing(tmp_path):
    run = make_run(tmp_path / "r", make_table([]), [], [])
    assert distribution(run).is_empty()
    assert distribution_chart(distribution(run)) == ""
