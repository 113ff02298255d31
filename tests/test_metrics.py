from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from made import make_scores, make_table

from lgip_ort.errors import RunFault
from lgip_ort.metrics import PROFILE, join_scores, profile
from lgip_ort.retrieval import Gallery

# Two images; every number is a multiple of a power of two, so that sums are exact.
ROWS = [
    # image, kind, family, template, s, s_perturbed
    ("A", "paraphrase", "wrapper", "a photo of {}", 0.5, 0.25),
    ("A", "paraphrase", "wrapper", "{} in the scene", 0.5, 0.75),
    ("B", "paraphrase", "wrapper", "a photo of {}", 0.25, 0.25),
    ("A", "flip", "colour", None, 0.5, 0.25),
    ("A", "flip", "count", None, 0.5, 0.5),  # a tie is a failure
    ("B", "flip", "colour", None, 0.25, 0.75),
    ("B", "flip", "object", None, 0.5, 0.25),
    ("A", "identity", "identity", None, 0.5, 0.5),
    ("B", "identity", "identity", None, 0.25, 0.25 + 2**-20),
    ("A", "combined", "colour", None, 0.5, 0.25),
    ("B", "combined", "object", None, 0.25, 0.25),
    ("B", "combined", "object", None, 0.5, 0.75),
]


def pairs_of(rows, **columns):
    """Scored pairs; a paraphrase is its template around a text."""
    perturbed = [row[3].format("A dog.") if row[3] else "a cat" for row in rows]
    given = {"target_word": [row[3] for row in rows], "perturbed": perturbed} | columns
    table = make_table([row[:3] for row in rows], **given)
    return join_scores(table, make_scores(table, [row[4] for row in rows], [row[5] for row in rows]))


def flips(gaps, images=None, family="colour"):
    """Flip pairs with these gaps, one an image unless told."""
    names = images or [f"{i:05d}" for i in range(len(gaps))]
    return pairs_of([(name, "flip", family, None, float(gap), 0.0) for name, gap in zip(names, gaps, strict=True)])


def interval(pairs, metric="E_sens", seed=0):
    found = profile(pairs, seed).filter(metric=metric, family="all", stratum="all")
    return found.select("ci_low", "ci_high").row(0)


def test_profile_by_hand():
    """With two images a resample is A twice, B twice, or both: the interval spans the means of A and of B.

    Every flip has the same strength in the pool of all: it lies on the third quartile, and the weighted mean is the mean.
    """
    found = profile(pairs_of(ROWS), seed=0)
    assert found.schema == PROFILE
    expected = [
        ("E_inv", "paraphrase", "all", "all", 0.5 / 3, 0.0, 0.25, 3, False),
        ("E_inv", "paraphrase", "all", "simple", 0.125, 0.0, 0.25, 2, False),
        ("E_inv", "paraphrase", "all", "advanced", 0.25, None, None, 1, False),
        ("E_inv", "paraphrase", "wrapper", "all", 0.5 / 3, 0.0, 0.25, 3, False),
        ("E_inv", "paraphrase", "wrapper", "a photo of {}", 0.125, 0.0, 0.25, 2, False),
        ("E_inv", "paraphrase", "wrapper", "{} in the scene", 0.25, None, None, 1, False),
        ("E_sens", "flip", "all", "all", 0.0, -0.125, 0.125, 4, True),
        ("E_sens", "flip", "all", "medium", 0.0, -0.125, 0.125, 4, True),
        ("E_sens", "flip", "all", "weighted", 0.0, -0.125, 0.125, 4, True),
        ("E_sens", "flip", "colour", "all", -0.125, -0.5, 0.25, 2, True),
        ("E_sens", "flip", "count", "all", 0.0, None, None, 1, True),
        ("E_sens", "flip", "object", "all", 0.25, None, None, 1, True),
        ("PR", "flip", "all", "all", 0.5, 0.5, 0.5, 4, True),
        ("PR", "flip", "all", "medium", 0.5, 0.5, 0.5, 4, True),
        ("PR", "flip", "all", "weighted", 0.5, 0.5, 0.5, 4, True),
        ("PR", "flip", "colour", "all", 0.5, 0.0, 1.0, 2, True),
        ("PR", "flip", "count", "all", 0.0, None, None, 1, True),
        ("PR", "flip", "object", "all", 1.0, None, None, 1, True),
        ("E_sens", "combined", "all", "all", 0.0, -0.125, 0.25, 3, True),
        ("E_sens", "combined", "colour", "all", 0.25, None, None, 1, True),
        ("E_sens", "combined", "object", "all", -0.125, None, None, 2, True),
        ("PR", "combined", "all", "all", 1 / 3, 0.0, 1.0, 3, True),
        ("PR", "combined", "colour", "all", 1.0, None, None, 1, True),
        ("PR", "combined", "object", "all", 0.0, None, None, 2, True),
        ("E_inv", "identity", "identity", "all", 2**-21, 0.0, 2**-20, 2, False),
    ]
    assert [row[:4] for row in found.rows()] == [row[:4] for row in expected]
    for row, wanted in zip(found.rows(), expected, strict=True):
        assert row[4:] == pytest.approx(wanted[4:], abs=1e-12), row[:4]


# Strengths in the pool of all flips: 0.55, 0.3, 0.8, 0.8, by hand in test_strength; gaps 0.5, -0.25, 0.25 and a tie.
WEIGHED = [
    ("A", "flip", "colour", None, 0.75, 0.25),
    ("A", "flip", "count", None, 0.25, 0.5),
    ("B", "flip", "object", None, 0.5, 0.25),
    ("B", "flip", "object", None, 0.5, 0.5),
]


def test_weighted_by_hand():
    pairs = pairs_of(WEIGHED).with_columns(text_cosine=pl.Series([0.5, 1.0, 0.0, -1.0], dtype=pl.Float32))
    found = profile(pairs, 0).filter(family="all")
    values = {(metric, stratum): value for metric, stratum, value in found.select("metric", "stratum", "value").rows()}
    assert values == {
        ("E_sens", "all"): 0.125,
        ("E_sens", "weak"): -0.25,
        ("E_sens", "medium"): 0.25,
        ("E_sens", "weighted"): pytest.approx((0.55 * 0.5 - 0.3 * 0.25 + 0.8 * 0.25) / 2.45),
        ("PR", "all"): 0.5,
        ("PR", "weak"): 0.0,
        ("PR", "medium"): pytest.approx(2 / 3),
        ("PR", "weighted"): pytest.approx((0.55 + 0.8) / 2.45),
    }
    weighted = found.filter(metric="PR", stratum="weighted").row(0, named=True)
    assert weighted["n"] == 4
    assert (weighted["ci_low"], weighted["ci_high"]) == pytest.approx((0.5, 0.55 / 0.85))  # of B alone, of A alone


def test_strict_has_bands_by_family_and_no_weights():
    rows = [("A", "flip", "object", None, 0.5, 0.25), ("A", "flip", "object", None, 0.5, 0.75),
            ("A", "flip", "count", None, 0.5, 0.5), ("A", "flip", "size", None, 0.5, 0.0),
            ("A", "paraphrase", "voice", None, 0.5, 0.25)]  # fmt: skip
    pairs = pairs_of(rows, suite=["strict"] * 5, strength=[0, 1, 0.2, 1, None])
    found = profile(pairs, 0).filter(pl.col("metric").is_in(["E_inv", "E_sens"]))
    assert found.select("metric", "family", "stratum", "value", "n").rows() == [
        ("E_inv", "all", "all", 0.25, 1),
        ("E_inv", "voice", "all", 0.25, 1),
        ("E_sens", "all", "all", 0.125, 4),
        ("E_sens", "all", "weak", 0.125, 2),
        ("E_sens", "all", "strong", -0.25, 1),
        ("E_sens", "count", "all", 0.0, 1),
        ("E_sens", "count", "weak", 0.0, 1),
        ("E_sens", "object", "all", 0.0, 2),
        ("E_sens", "object", "weak", 0.25, 1),
        ("E_sens", "object", "strong", -0.25, 1),
        ("E_sens", "size", "all", 0.5, 1),
    ]


@pytest.mark.parametrize("order", [range(11, -1, -1), [4, 8, 0, 11, 6, 2, 9, 7, 1, 5, 10, 3]])
def test_order_of_rows_does_not_matter(order):
    whole = profile(pairs_of(ROWS), 0)
    other = profile(pairs_of([ROWS[i] for i in order]), 0)
    assert other.drop("ci_low", "ci_high").equals(whole.drop("ci_low", "ci_high"))


def test_differences_are_taken_in_float64():
    """In float32 the smaller score vanishes."""
    found = profile(pairs_of([("A", "flip", "colour", None, 1.0, 2**-30)]), 0)
    assert found["value"].to_list()[0] == 1 - 2**-30


def test_same_seed_same_bytes(tmp_path):
    pairs = flips(np.random.default_rng(0).normal(size=50).round(3))
    for name in "ab":
        profile(pairs, 1).write_parquet(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert interval(pairs, seed=1) != interval(pairs, seed=2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), None])
@pytest.mark.parametrize("column", [4, 5])
def test_one_bad_score_is_an_error(bad, column):
    """NaN > 0 is true in Polars, and a null drops out of a mean."""
    rows = [list(row) for row in ROWS]
    rows[5][column] = bad
    name = {4: "s", 5: "s_perturbed"}[column]
    with pytest.raises(RunFault, match=f"1 of 12 values of '{name}' are not finite, the first of pair 6"):
        pairs_of(rows)


def test_nothing_but_nulls_is_an_error():
    with pytest.raises(RunFault, match="12 of 12 values"):
        pairs_of([(*row[:4], None, None) for row in ROWS])


def test_pairs_are_the_scored_rows_in_the_order_of_the_table():
    table = make_table([("A", "flip", "colour")] * 4)
    scores = make_scores(table, [0.1, 0.2, 0.3, 0.4], [0] * 4)
    pairs = join_scores(table, scores[[3, 0, 2]])
    assert pairs["pair_id"].to_list() == [1, 3, 4]
    assert pairs["s"].to_list() == pytest.approx([0.1, 0.3, 0.4])


def test_a_pair_that_is_scored_twice_is_an_error():
    table = make_table([("A", "flip", "colour")])
    with pytest.raises(pl.exceptions.ComputeError, match="1:1"):
        join_scores(table, pl.concat([make_scores(table, [0.1], [0])] * 2))


def test_nothing_scored():
    assert profile(pairs_of([]), 0).equals(pl.DataFrame(schema=PROFILE))


def test_interval_of_images_that_agree():
    low, high = interval(flips([0.125] * 40))
    assert (low, high) == pytest.approx((0.125, 0.125), abs=1e-12)


@pytest.mark.parametrize("images", [400, 9000])  # 9,000 images are resampled in parts
def test_interval_has_the_width_of_the_normal_one(images):
    gaps = np.random.default_rng(0).normal(0.3, 0.2, images)
    low, high = interval(flips(gaps))
    half = 1.96 * gaps.std() / np.sqrt(images)
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)
    assert (high + low) / 2 == pytest.approx(gaps.mean(), abs=half / 4)


def test_pairs_of_one_image_are_not_independent():
    """Ten equal pairs an image say no more than one."""
    gaps = np.random.default_rng(0).normal(size=60)
    names = [f"{i:03d}" for i in range(60)]
    once = interval(flips(gaps, names))
    tenfold = interval(flips(np.tile(gaps, 10), names * 10))
    assert tenfold == pytest.approx(once, rel=1e-9)


def test_rare_stratum():
    """Two of 60 images have a pair: every eighth resample has none, and is left out."""
    rows = [(f"{i:02d}", "flip", "colour", None, 0.5, 0.0) for i in range(60)]
    rows += [("03", "flip", "count", None, 1.0, 0.0), ("41", "flip", "count", None, 0.0, 1.0)]
    found = profile(pairs_of(rows), 0).filter(metric="E_sens", family="count", stratum="all")
    assert found.select("value", "ci_low", "ci_high", "n").rows() == [(0.0, -1.0, 1.0, 2)]


@pytest.mark.parametrize(("gap", "value"), [(0.5, 1.0), (-0.5, 0.0)])
def test_a_share_that_every_pair_agrees_on_is_open_by_three_images(gap, value):
    """Eight of eight is not proof of all; the gap itself, which is the same everywhere, is known."""
    found = profile(flips([gap] * 8), 0).filter(metric="PR", family="all", stratum="all")
    low, high = (1 - 3 / 8, 1.0) if value else (0.0, 3 / 8)
    assert found.select("value", "ci_low", "ci_high").row(0) == (value, low, high)
    assert interval(flips([gap] * 8)) == (gap, gap)
    assert profile(flips([0.5] * 2), 0).filter(metric="PR", family="all")["ci_low"].to_list()[0] == 0.0


def gallery(images, texts):
    """A gallery in which text n is the caption of image n."""
    rows = np.arange(len(images))
    return Gallery(["A", "B"], np.array(images, np.float32), np.array(texts, np.float32), rows, rows)


def test_originals():
    """True captions score 1 and 0.6, the others' 0: the gap is 0.8, and both are found."""
    found = profile(pairs_of(ROWS), 0, originals=gallery([(1, 0), (0, 1)], [(1, 0), (0, 0.6)]))
    rows = {(r["metric"], r["kind"]): r for r in found.to_dicts() if r["family"] == r["stratum"] == "all"}
    gap = rows["matched_gap", "original"]
    assert (gap["value"], gap["n"], gap["higher_is_better"]) == (pytest.approx(0.8), 2, True)
    assert (gap["ci_low"], gap["ci_high"]) == (pytest.approx(0.6), pytest.approx(1.0))
    for k in (1, 5, 10):
        for kind in ("image_to_text", "text_to_image"):
            assert (rows[f"R@{k}", kind]["value"], rows[f"R@{k}", kind]["n"]) == (1.0, 2)
    relative = rows["E_inv_rel", "paraphrase"]
    assert (relative["value"], relative["n"]) == (pytest.approx(0.5 / 3 / 0.8), 3)
    # Image A alone: 0.25 of 1.0; B alone: 0 of 0.6.
    assert (relative["ci_low"], relative["ci_high"]) == (pytest.approx(0.0), pytest.approx(0.25))
    assert rows["E_sens_rel", "flip"]["value"] == pytest.approx(rows["E_sens", "flip"]["value"] / 0.8)
    assert (relative["higher_is_better"], rows["E_sens_rel", "flip"]["higher_is_better"]) == (False, True)


def test_nothing_is_divided_by_a_gap_that_may_be_none():
    """Captions that fit the other image as well: the interval of the gap holds zero."""
    found = profile(pairs_of(ROWS), 0, originals=gallery([(1, 0), (0, 1)], [(1, 0), (1, 0)]))
    gap = found.filter(metric="matched_gap")
    assert gap["value"].item() == 0.0
    assert found.filter(pl.col("metric").str.ends_with("_rel")).is_empty()
