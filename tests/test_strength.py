from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from made import make_scores, make_table

from lgip_ort.strength import BANDS, with_bands


def banded(rows, cosines, suite="paper", strength=None):
    """Scored pairs of (kind, family) with these cosines of the two texts, and the bands they get."""
    n = len(rows)
    table = make_table([("A", *row) for row in rows], suite=[suite] * n, strength=strength or [None] * n)
    scores = make_scores(table, [0.5] * n, [0.25] * n)
    pairs = table.join(scores.with_columns(text_cosine=pl.Series(cosines, dtype=pl.Float32)), on="pair_id")
    return with_bands(pairs)


FLIPS = [("flip", "colour"), ("flip", "count"), ("flip", "object"), ("flip", "object")]


def test_paper_strength_by_hand():
    """As their types the flips have 0.375, 0.275, 1 and 1, as "all" 0.55, 0.3, 0.8 and 0.8 (the distance is cut at 1).

    Of these eight the quartiles are 0.3 + 0.75 * 0.075 = 0.35625 and 0.8 + 0.25 * 0.2 = 0.85.
    """
    found = banded(FLIPS, [0.5, 1.0, 0.0, -1.0])
    assert found["band"].to_list() == ["medium", "weak", "strong", "strong"]
    assert found["band_all"].to_list() == ["medium", "weak", "medium", "medium"]
    assert found["weight"].to_list() == pytest.approx([0.55, 0.3, 0.8, 0.8])


def test_every_flip_enters_the_pool_twice():
    """Counted once, as their types alone, the last two would lie on the third quartile, 1: medium, not strong."""
    typed = [0.375, 0.275, 1.0, 1.0]
    assert np.quantile(typed, 0.75) == 1
    assert banded(FLIPS, [0.5, 1.0, 0.0, -1.0])["band"].to_list()[2:] == ["strong", "strong"]


def test_on_the_edge_is_below_it():
    """Of one flip all quantiles are the same: weak up to the first quartile."""
    found = banded([("flip", "of another kind")], [0.5])
    assert found.select("band", "band_all").row(0) == ("weak", "weak")
    assert found["weight"].to_list() == pytest.approx([0.55])  # the prior of a type that is not listed is that of all


def test_other_pairs_are_in_no_pool():
    """A paraphrase far away moves no edge, and has no band."""
    rows = [("paraphrase", "wrapper"), *FLIPS, ("combined", "object"), ("identity", "identity")]
    found = banded(rows, [-1.0, 0.5, 1.0, 0.0, -1.0, -1.0, 1.0])
    assert found["band"].to_list() == [None, "medium", "weak", "strong", "strong", None, None]
    assert found["weight"].null_count() == 3


@pytest.mark.parametrize(
    ("family", "strength", "band"),
    [
        ("object", 0.0, "weak"),
        ("object", 1.0, "strong"),
        ("colour", 47.0, "weak"),
        ("colour", 70.0, "weak"),
        ("colour", 70.25, "medium"),
        ("colour", 115.0, "medium"),
        ("colour", 115.25, "strong"),
        ("count", math.log(3 / 2), "weak"),
        ("count", math.log(2), "medium"),
        ("count", math.log(3), "strong"),
        ("spatial", 1.0, None),
        ("size", 1.0, None),
    ],
)
def test_strict_bands(family, strength, band):
    found = banded([("flip", family)], [0.5], "strict", [strength])
    assert found.select("band", "band_all", "weight").row(0) == (band, band, None)


def test_strict_bands_do_not_depend_on_the_model_or_on_other_pairs():
    rows = [("flip", "count"), ("flip", "count"), ("flip", "count"), ("paraphrase", "voice")]
    strengths = [0.4, 0.6, 1.2, None]
    for cosines in ([0.0, 0.5, 1.0, 0.25], [1.0, 0.5, -1.0, 0.0]):
        assert banded(rows, cosines, "strict", strengths)["band"].to_list() == ["weak", "medium", "strong", None]


@pytest.mark.parametrize("suite", ["paper", "strict"])
def test_pairs_without_flips(suite):
    found = banded([("paraphrase", "wrapper")], [0.5], suite)
    assert found.select("band", "band_all", "weight").rows() == [(None, None, None)]
    expected = [pl.Enum(BANDS), pl.Enum(BANDS), pl.Float64]
    assert found.select("band", "band_all", "weight").dtypes == expected
    flips = banded(FLIPS, [0.5] * 4, suite, [1.0] * 4)  # parts of a table are put together, with flips or without
    assert flips.select("band", "band_all", "weight").dtypes == expected


def test_scores_without_the_cosine_of_texts():
    """As runs of the first version have them."""
    pairs = make_table([("A", "flip", "colour")]).with_columns(s=0.5, s_perturbed=0.25)
    assert with_bands(pairs).select("band", "band_all", "weight").rows() == [(None, None, None)]
