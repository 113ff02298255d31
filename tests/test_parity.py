from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from made import make_run, make_scores, make_table, make_vectors, write_shard

from lgip_ort import parity
from lgip_ort.errors import UsageFault
from lgip_ort.margins import Margin, Margins, read_margins
from lgip_ort.parity import compare
from lgip_ort.retrieval import image_key, text_key

IMAGES = 400
ROWS = [
    (f"{i:03d}", kind, family)
    for i in range(IMAGES)
    for kind, family in (("paraphrase", "wrapper"), ("flip", "colour"), ("identity", "identity"))
]
TABLE = make_table(ROWS, target_word=["a photo of {}", "red", None] * IMAGES)
S = [0.5] * len(ROWS)
PERTURBED = [0.5 - gap for i in range(IMAGES) for gap in (0.02, 0.1 if i % 4 else -0.1, 0.0)]
"""E_inv 0.02, E_sens 0.05, PR 0.75, identity 0."""


def moved(**gaps):
    """PERTURBED with a kind's gap made larger by so much."""
    return [p - gaps.get(kind, 0) for p, (_, kind, _) in zip(PERTURBED, ROWS, strict=True)]


@pytest.fixture
def judged(tmp_path):
    """Compares a candidate with these perturbed scores with the reference."""
    reference = make_run(tmp_path / "a", TABLE, S, PERTURBED)

    def compared(perturbed, s=S, across_arms=False, **stamp):
        folder = tmp_path / ("b" * len(list(tmp_path.iterdir())))
        return compare(reference, make_run(folder, TABLE, s, perturbed, **stamp), across_arms)

    return compared


def row(comparison, metric, family="all", stratum="all"):
    (found,) = [r for r in comparison.rows if (r.metric, r.family, r.stratum) == (metric, family, stratum)]
    return found


def test_same_scores(judged):
    comparison = judged(PERTURBED, engine="torch")
    assert comparison.verdict == "equal"
    assert [(r.metric, r.kind, r.family, r.stratum) for r in comparison.rows] == [
        ("E_inv", "paraphrase", "all", "all"),
        ("E_inv", "paraphrase", "all", "advanced"),
        ("E_inv", "paraphrase", "wrapper", "all"),
        ("E_inv", "paraphrase", "wrapper", "a photo of {}"),
        ("E_sens", "flip", "all", "all"),
        ("E_sens", "flip", "all", "medium"),
        ("E_sens", "flip", "all", "weighted"),
        ("E_sens", "flip", "colour", "all"),
        ("PR", "flip", "all", "all"),
        ("PR", "flip", "all", "medium"),
        ("PR", "flip", "all", "weighted"),
        ("PR", "flip", "colour", "all"),
        ("E_inv", "identity", "identity", "all"),
    ]
    for r in comparison.rows:
        assert (r.delta, r.verdict, r.n, r.images) == (0, "equal", 400, 400)
        # Of a share of 400 pairs without a change it is known to three pairs.
        known = 3 / 400 if r.metric == "PR" and r.stratum != "weighted" else 0
        if r.stratum != "weighted":
            assert (r.ci_low, r.ci_high) == pytest.approx((-known, known), rel=0.02)
        assert r.reference == r.candidate
        assert r.images_needed is None
    assert row(comparison, "E_inv").reference == pytest.approx(0.02, rel=1e-5)
    assert row(comparison, "E_sens").margin == pytest.approx(0.0025, rel=1e-5)
    assert row(comparison, "E_inv").margin == pytest.approx(0.001, rel=1e-5)
    assert row(comparison, "PR").margin == 0.01
    assert row(comparison, "E_inv", "identity").margin == 0.0005
    assert (len(comparison.sign_changes), comparison.flips, comparison.max_ds) == (0, 400, 0)


@pytest.mark.parametrize(
    ("gaps", "metric", "delta"),
    [
        ({"flip": -0.01}, "E_sens", -0.01),
        ({"flip": 0.01}, "E_sens", 0.01),  # an improvement is a drift
        ({"flip": 0.25}, "PR", 0.25),
        ({"paraphrase": 0.005}, "E_inv", 0.005),
        ({"paraphrase": -0.005}, "E_inv", -0.005),
        ({"identity": 0.001}, "E_inv", 0.001),
    ],
)
def test_drift_in_both_directions(judged, gaps, metric, delta):
    comparison = judged(moved(**gaps))
    assert comparison.verdict == "drifted"
    drifted = row(comparison, metric, "identity" if "identity" in gaps else "all")
    assert drifted.verdict == "drifted"
    assert drifted.delta == pytest.approx(delta, rel=1e-4)
    assert comparison.max_ds == pytest.approx(abs(next(iter(gaps.values()))), rel=1e-4)
    kept = {"flip": "paraphrase", "paraphrase": "flip", "identity": "flip"}[next(iter(gaps))]
    assert {r.verdict for r in comparison.rows if r.kind == kept} == {"equal"}


def test_margin_is_the_reference_s(judged):
    """5 % of the reference's value, at least 0.0005; a candidate can't widen it."""
    comparison = judged(moved(paraphrase=0.5))
    assert row(comparison, "E_inv").margin == pytest.approx(0.001, rel=1e-4)
    assert row(comparison, "E_inv").candidate == pytest.approx(0.52, rel=1e-4)


def test_small_change_is_equal(judged):
    comparison = judged(moved(flip=0.002, paraphrase=-0.0005))
    assert comparison.verdict == "equal"
    assert row(comparison, "E_sens").delta == pytest.approx(0.002, rel=1e-3)


def test_drift_that_cancels_out_in_the_mean_of_gaps(judged):
    """Two wrong pairs become right and two right ones wrong: no drift of PR, but its interval leaves the margin."""
    perturbed = list(PERTURBED)
    flips = [i for i, r in enumerate(ROWS) if r[1] == "flip"]
    swapped = flips[0], flips[4], flips[1], flips[2]
    for i in swapped:
        perturbed[i] = 1 - perturbed[i]
    comparison = judged(perturbed)
    assert row(comparison, "PR").delta == 0
    assert row(comparison, "PR").verdict == comparison.verdict == "inconclusive"
    assert row(comparison, "PR").images_needed > 40
    assert len(comparison.sign_changes) == 4


def test_bands_are_the_reference_s(tmp_path):
    """How strong a flip is must not depend on which of the two runs is asked: the same pairs stand in both strata.

    By the reference's texts every fourth flip is far (strength 0.8 of 0.3 among all), by the candidate's all others are.
    """
    far = [0.0 if int(image) % 4 == 0 else 1.0 for image, _, _ in ROWS]
    runs = []
    for name, cosines in (("a", far), ("b", [1 - c for c in far])):
        runs.append(make_run(tmp_path / name, TABLE, S, PERTURBED))
        scores = make_scores(TABLE, S, PERTURBED).with_columns(text_cosine=pl.Series(cosines, dtype=pl.Float32))
        write_shard(runs[-1].folder, scores)
    assert compare(*runs).left_out == 1  # PR of the strong flips, a hundred pairs
    own = read_margins()
    wide = Margins(own.min_images, {**own.by_metric, "PR": Margin(0.04, 0.0)})
    comparison = compare(*runs, margins=wide)
    assert comparison.left_out == 0
    (band,) = [r for r in comparison.rows if (r.metric, r.family, r.n) == ("E_sens", "all", 100)]
    assert band.stratum == "strong"
    assert band.reference == band.candidate == pytest.approx(-0.1, rel=1e-5)
    weighted = row(comparison, "E_sens", stratum="weighted")
    assert weighted.reference == weighted.candidate == pytest.approx((10 * 0.8 * -0.1 + 30 * 0.3 * 0.1) / 17, rel=1e-5)
    assert weighted.delta == 0


def test_a_share_of_few_pairs_is_not_proved_by_none_that_changed(tmp_path):
    """40 images and no change at all: PR may still be off by three pairs of 40; what moves a little everywhere is known."""
    n = 40 * 3
    runs = [make_run(tmp_path / name, TABLE[:n], S[:n], PERTURBED[:n]) for name in "ab"]
    comparison = compare(*runs)
    assert comparison.verdict == row(comparison, "PR").verdict == "inconclusive"
    assert row(comparison, "PR").images_needed == pytest.approx(300, abs=40)
    assert row(comparison, "E_sens").verdict == row(comparison, "E_inv").verdict == "equal"
    assert not [r for r in comparison.rows if r.metric == "PR" and r.stratum != "all"]
    assert comparison.left_out == 2


def test_nothing_is_claimed_at_once_of_too_few_images(tmp_path):
    """A family of 29 images can't have drifted, and does not widen the intervals of those that can."""
    rows = [*ROWS, *[(f"{i:03d}", "flip", "count") for i in range(29)]]
    table = make_table(rows)
    runs = [
        make_run(tmp_path / name, table, [0.5] * len(rows), [*PERTURBED, *[0.4 + by * i for i in range(29)]])
        for name, by in (("a", 0), ("b", 0.01))
    ]
    few = row(compare(*runs), "E_sens", "count")
    assert few.images == 29
    assert (few.drift_low, few.drift_high, few.verdict) == (None, None, "inconclusive")
    assert few.ci_low is not None


def test_noise_floor(judged):
    """Beside every margin: what an engine makes of one text twice, and how many flips are as close as that."""
    twice = [p - (0.002 if kind == "identity" else 0) for p, (_, kind, _) in zip(PERTURBED, ROWS, strict=True)]
    near = [0.499 if r[0] in ("001", "002") and r[1] == "flip" else p for p, r in zip(PERTURBED, ROWS, strict=True)]
    comparison = judged(twice)
    assert row(comparison, "E_inv").noise == pytest.approx(0.002, rel=1e-3)
    assert row(comparison, "E_sens").noise == pytest.approx(0.002, rel=1e-3)
    assert row(comparison, "PR").noise == 0
    assert row(judged(PERTURBED), "E_inv").noise == 0
    noise = parity._noise(parity.scored_by_both(judged(near).candidate, comparison.candidate))
    assert noise["PR"] == 2 / 400


def test_runs_without_a_control_have_no_noise_floor(tmp_path):
    rows = [i for i, r in enumerate(ROWS) if r[1] != "identity"]
    runs = [make_run(tmp_path / n, TABLE[rows], [S[i] for i in rows], [PERTURBED[i] for i in rows]) for n in "ab"]
    assert {r.noise for r in compare(*runs).rows} == {None}


def test_margins_of_ones_own(judged, tmp_path):
    file = tmp_path / "margins.toml"
    file.write_text("[E_sens]\nabsolute = 0.5\n")
    perturbed = moved(flip=0.01)
    reference = judged(perturbed).reference
    candidate = judged(perturbed).candidate
    assert row(compare(reference, candidate), "E_sens").verdict == "drifted"
    comparison = compare(reference, candidate, margins=read_margins(file))
    assert (row(comparison, "E_sens").margin, row(comparison, "E_sens").verdict) == (0.5, "equal")
    assert comparison.summary()["margins"]["E_sens"] == {"absolute": 0.5, "relative": 0.05}


def originals(folder, images, texts):
    """Vectors of the images and captions of TABLE."""
    ids = TABLE["image_id"].unique(maintain_order=True).to_list()
    rows = [("vision", image_key(i), v) for i, v in zip(ids, images, strict=True)]
    rows += [
        ("text", text_key(t, None), v) for t, v in zip(TABLE["text"].to_list(), np.repeat(texts, 3, 0), strict=True)
    ]
    make_vectors(rows).write_parquet(folder / "embeddings/0.parquet")


def test_retrieval_is_compared(tmp_path):
    """Captions of two images in ten changed places: one in ten is lost, both ways, and a tenth of the gap with it."""
    turns = 2 * np.pi * np.arange(IMAGES) / IMAGES
    circle = np.stack([np.cos(turns), np.sin(turns)], 1)
    swapped = circle.copy()
    for start in range(0, IMAGES, 20):
        swapped[[start, start + 1]] = circle[[start + 1, start]]
    runs = [make_run(tmp_path / name, TABLE, S, PERTURBED) for name in "ab"]
    originals(runs[0].folder, circle, circle)
    originals(runs[1].folder, circle, swapped)
    comparison = compare(*runs)
    for kind in ("image_to_text", "text_to_image"):
        (found,) = [r for r in comparison.rows if (r.metric, r.kind) == ("R@1", kind)]
        assert (found.reference, found.candidate, found.verdict) == (1, pytest.approx(0.9), "drifted")
        assert (found.margin, found.n) == (0.02, 400 if kind == "image_to_text" else 1200)
    gap = row(comparison, "matched_gap")
    assert gap.reference == pytest.approx(1 + 1 / 399, rel=1e-5)
    assert gap.verdict == "equal"  # a neighbour on the circle is nearly the same
    assert comparison.verdict == "drifted"


def test_combined_pairs_are_compared(tmp_path):
    table = make_table([(image, "combined", "colour") for image, _, _ in ROWS])
    runs = [make_run(tmp_path / name, table, S, gaps) for name, gaps in (("a", PERTURBED), ("b", moved(flip=0.3)))]
    comparison = compare(*runs)
    assert {(r.metric, r.kind, r.family, r.stratum) for r in comparison.rows} == {
        (metric, "combined", family, "all") for metric in ("E_sens", "PR") for family in ("all", "colour")
    }
    assert row(comparison, "E_sens").verdict == "drifted"
    assert (comparison.flips, len(comparison.sign_changes)) == (0, 0)


def test_sign_changes_are_listed(judged):
    perturbed = list(PERTURBED)
    perturbed[4] = 0.75  # the flip of image 01: right before, wrong now
    perturbed[13] = 0.5  # the flip of image 04: wrong before, a tie now, which is wrong
    perturbed[3] = 0.75  # no flip
    comparison = judged(perturbed)
    (change,) = comparison.sign_changes.to_dicts()
    assert change == {
        "image_id": "001",
        "family": "colour",
        "text": "text 4",
        "perturbed": "other 4",
        "s": 0.5,
        "s_perturbed": pytest.approx(0.4),
        "s_candidate": 0.5,
        "s_perturbed_candidate": 0.75,
    }
    assert comparison.summary()["sign_changes"] == {"n": 1, "of": 400, "pairs": [change]}


@pytest.mark.parametrize("drift", [0.0, 0.2])
def test_too_few_images(tmp_path, drift):
    """29 images are one too few for a verdict, whatever they say."""
    n = 29 * 3
    runs = [
        make_run(tmp_path / name, TABLE[:n], S[:n], [p - by for p in PERTURBED[:n]])
        for name, by in (("a", 0), ("b", drift))
    ]
    comparison = compare(*runs)
    assert comparison.verdict == "inconclusive"
    assert {r.verdict for r in comparison.rows} == {"inconclusive"}
    assert {r.images_needed for r in comparison.rows if r.metric != "PR"} == {30}
    assert {r.images for r in comparison.rows} == {29}


def test_one_image_has_no_interval(tmp_path):
    runs = [make_run(tmp_path / name, TABLE[:3], S[:3], PERTURBED[:3]) for name in "ab"]
    assert {(r.ci_low, r.ci_high, r.images_needed) for r in compare(*runs).rows} == {(None, None, 30)}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "other"),
        ("padding", "paper"),
        ("suite", "strict"),
        ("seed", 1),
        ("table", "9" * 64),
    ],
)
def test_runs_that_can_not_be_compared(judged, field, value):
    with pytest.raises(UsageFault, match=f"{field} is .* in the reference and {value!r} in the candidate"):
        judged(PERTURBED, **{field: value})


LENGTHS = {"min": 3, "max": 9, "sha256": "4" * 64}


def test_runs_of_two_arms(judged):
    """Refused, with the way to have it all the same; then both arms are named."""
    stamp = {"padding": "paper", "lengths": LENGTHS}
    with pytest.raises(UsageFault) as fault:
        judged(PERTURBED, **stamp)
    assert str(fault.value) == (
        "the runs can't be compared: padding is 'trained' in the reference and 'paper' in the candidate; "
        "--across-arms compares them"
    )
    comparison = judged(PERTURBED, across_arms=True, **stamp)
    assert comparison.verdict == "equal"
    assert comparison.summary()["padding"] == {"reference": "trained", "candidate": "paper"}
    assert judged(PERTURBED).summary()["padding"] == {"reference": "trained", "candidate": "trained"}


def test_runs_of_one_arm_with_other_lengths(tmp_path):
    """Two tokenizers that count in two ways."""
    runs = [
        make_run(tmp_path / name, TABLE, S, PERTURBED, padding="paper", lengths=LENGTHS | {"max": longest})
        for name, longest in (("a", 9), ("b", 8))
    ]
    with pytest.raises(UsageFault, match=r"lengths is .*'max': 9.* in the reference and .*'max': 8.* in the candidate"):
        compare(*runs)


@pytest.mark.parametrize("field", ["model", "table"])
def test_across_arms_forgives_nothing_else(judged, field):
    with pytest.raises(UsageFault, match=f"{field} is "):
        judged(PERTURBED, across_arms=True, padding="paper", **{field: "other"})


@pytest.mark.parametrize(("field", "part"), [("weights", "sha256"), ("dataset", "hash")])
def test_runs_of_other_weights_or_pictures(judged, field, part):
    with pytest.raises(UsageFault, match=f"{field} {part} is '.*' in the reference and 'other' in the candidate"):
        judged(PERTURBED, **{field: {part: "other"}})


def test_runs_that_scored_other_pairs(tmp_path):
    runs = [make_run(tmp_path / name, TABLE[rows], S[rows], PERTURBED[rows]) for name, rows in
            (("a", slice(0, 90)), ("b", slice(30, 120)))]  # fmt: skip
    with pytest.raises(UsageFault, match="90 pairs scored in the reference, 90 in the candidate, 60 in both"):
        compare(*runs)


def test_cosine_of_embeddings(tmp_path):
    vectors = {
        "a": [("vision", 1, (1, 0)), ("vision", 2, (0, 2)), ("vision", 9, (1, 1))],
        "b": [("vision", 2, (0, 1)), ("vision", 1, (3, 4)), ("text", 9, (1, 1))],
    }
    runs = []
    for name, rows in vectors.items():
        runs.append(make_run(tmp_path / name, TABLE, S, PERTURBED))
        make_vectors(rows).write_parquet(runs[-1].folder / "embeddings/0.parquet")
    assert compare(*runs).embedding_cosine == {
        "image_min": pytest.approx(0.6),
        "image_p1": pytest.approx(0.604),
        "text_min": None,
        "text_p1": None,
    }


def test_summary_is_json(judged, tmp_path):
    summary = json.loads(json.dumps(judged(moved(flip=0.01)).summary(), allow_nan=False))
    assert set(summary) >= {"verdict", "rows", "sign_changes", "embedding_cosine", "reference", "candidate"}
    assert set(summary["rows"][0]) >= {
        "metric", "kind", "family", "stratum", "reference", "candidate", "delta", "ci_low", "ci_high", "margin", "verdict",
    }  # fmt: skip
    assert (summary["reference"], summary["candidate"]) == (str(tmp_path / "a"), str(tmp_path / "b"))
