from __future__ import annotations

import pytest

from lgip_ort.judge import images_needed, in_margins, judge, overall


@pytest.mark.parametrize(
    ("difference", "margin", "expected"),
    [(0.02, 0.01, 2), (-0.02, 0.01, -2), (0, 0.01, 0), (0, 0, 0), (1e-9, 0, float("inf")), (-1e-9, 0, float("-inf"))],
)
def test_in_margins(difference, margin, expected):
    assert in_margins(difference, margin) == expected


@pytest.mark.parametrize(
    ("low", "high", "images", "expected"),
    [
        (-0.1, 0.1, 30, "equal"),
        (0.0, 0.0, 30, "equal"),
        (0.0, 0.0, 29, "inconclusive"),
        (0.11, 0.2, 30, "drifted"),
        (-0.2, -0.11, 30, "drifted"),
        (0.1, 0.2, 30, "inconclusive"),
        (-0.2, -0.1, 30, "inconclusive"),
        (-0.2, 0.2, 30, "inconclusive"),
        (0.11, 0.2, 29, "inconclusive"),
        (None, None, 100, "inconclusive"),
    ],
)
def test_judge(low, high, images, expected):
    assert judge((low, high), (low, high), 0.1, images, 30) == expected


@pytest.mark.parametrize(
    ("interval", "at_once", "expected"),
    [
        ((0.11, 0.2), (0.105, 0.205), "drifted"),
        ((0.11, 0.2), (0.09, 0.22), "inconclusive"),  # alone it would be a drift, among many it may be chance
        ((-0.2, -0.11), (-0.21, -0.09), "inconclusive"),
        ((-0.05, 0.09), (-0.08, 0.12), "equal"),  # that all are equal needs no correction
    ],
)
def test_drift_is_judged_among_all_rows(interval, at_once, expected):
    assert judge(interval, at_once, 0.1, 400, 30) == expected


@pytest.mark.parametrize(
    ("delta", "low", "high", "images", "expected"),
    [
        (0.0, -0.25, 0.25, 40, 160),  # half of the width: four times as many
        (0.25, 0.0, 0.5, 40, 160),  # the same, drifted
        (-0.25, -0.75, 0.0, 40, 640),  # the wider side counts
        (0.0, -0.01, 0.01, 10, 30),  # the least that is judged at all
        (0.125, 0.0, 0.25, 40, None),  # on the margin itself
        (0.0, None, None, 1, 30),
    ],
)
def test_images_needed(delta, low, high, images, expected):
    assert images_needed(delta, (low, high), 0.125, images, 30) == expected


@pytest.mark.parametrize(
    ("images", "half", "unseen", "expected"),
    [
        (100, 0.03, 1.0, 300),  # nothing changed: three pairs of 300 are 0.01
        (100, 0.015, 0.5, 150),  # two pairs an image
        (100, 0.05, 1.0, 1655),  # 0.04^2 100 / n + (3 / n)^2 = 0.01^2
    ],
)
def test_images_needed_for_a_share(images, half, unseen, expected):
    assert images_needed(0.0, (-half, half), 0.01, images, 30, unseen) == expected


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["equal", "equal"], "equal"),
        (["equal", "inconclusive"], "inconclusive"),
        (["inconclusive", "drifted", "equal"], "drifted"),
        ([], "inconclusive"),
    ],
)
def test_overall(verdicts, expected):
    assert overall(verdicts) == expected
