from __future__ import annotations

import numpy as np
import pytest

from lgip_ort.bootstrap import ImageSums, intervals, percentiles, resample, simultaneous


def sums(values):
    """One pair an image."""
    values = np.asarray(values, np.float64)
    return ImageSums(values, np.ones(len(values)), np.ones(len(values), np.int64))


def test_resamples_are_shared():
    """Equal numbers get equal intervals; a paired difference of equal runs is exactly zero."""
    one = sums(np.random.default_rng(0).normal(size=30))
    numbers = [one, one, one.against(one)]
    first, second, nothing = intervals(numbers, resample(numbers, seed=5))
    assert first == second
    assert nothing == (0.0, 0.0)
    assert intervals([], resample([], seed=5)) == simultaneous([], resample([], seed=5)) == []


def test_against_keeps_the_reference_s_weights():
    reference = ImageSums(np.array([1.0, 2.0]), np.array([2.0, 4.0]), np.array([2, 4]))
    candidate = ImageSums(np.array([3.0, 2.0]), np.array([2.0, 4.0]), np.array([2, 4]))
    delta = candidate.against(reference)
    assert (delta.mean, delta.n, delta.images) == (2 / 6, 6, 2)


def test_unseen_changes():
    """Two images without a change tell of a share no more than two images can."""
    still = ImageSums(np.zeros(100), np.full(100, 4.0), np.full(100, 4))
    for pairs, half in ((4.0, 1.96 * np.sqrt(2) / 400), (0.0, 0.0)):
        widened = still.with_unseen(pairs)
        ((low, high),) = intervals([still], resample([widened], 0))
        assert len(widened.total) == 102
        assert (widened.n, widened.images, widened.mean) == (400, 100, 0.0)
        assert (-low, high) == pytest.approx((half, half), rel=0.35)


def test_unseen_changes_weigh_as_pairs_do():
    weighted = ImageSums(np.zeros(10), np.full(10, 1.5), np.full(10, 3))
    added = weighted.with_unseen(3.0)
    assert added.total[-2:].tolist() == [0.5, -0.5]
    assert added.weight[-2:].tolist() == [1.5, 1.5]


def test_simultaneous_intervals_of_one_number_are_its_own():
    one = sums(np.random.default_rng(1).normal(size=400))
    means = resample([one], 0, resamples=4000)
    ((low, high),), ((wide_low, wide_high),) = intervals([one], means), simultaneous([one], means)
    assert (wide_low, wide_high) == pytest.approx((low, high), abs=0.01)


def test_simultaneous_intervals_of_one_number_many_times_are_its_own():
    """All are right, or none: nothing is paid for asking twenty times."""
    one = sums(np.random.default_rng(1).normal(size=400))
    alone = simultaneous([one], resample([one], 0))
    for many in simultaneous([one] * 20, resample([one] * 20, 0)):
        assert many == pytest.approx(alone[0], rel=1e-9)


def test_simultaneous_intervals_of_independent_numbers():
    """Twenty that have nothing to do with each other: as wide as Bonferroni makes them, 3.02 standard errors."""
    numbers = [sums(row) for row in np.random.default_rng(2).normal(size=(20, 2000))]
    found = simultaneous(numbers, resample(numbers, 0, resamples=4000))
    errors = [
        (high - low) / 2 / (of.total.std() / np.sqrt(2000)) for of, (low, high) in zip(numbers, found, strict=True)
    ]
    assert np.mean(errors) == pytest.approx(3.02, abs=0.12)


def test_simultaneous_coverage():
    """All of ten correlated means at once, in 95 of 100 repeats; one by one they would be in about 72."""
    rng = np.random.default_rng(3)
    held = 0
    for repeat in range(200):
        shared = rng.normal(size=150)
        numbers = [sums(0.5 * shared + rng.normal(size=150)) for _ in range(10)]
        found = simultaneous(numbers, resample(numbers, repeat, resamples=300))
        held += all(low <= 0 <= high for low, high in found)
    assert 0.90 <= held / 200 <= 0.985


@pytest.mark.parametrize(("images", "t"), [(5, 2.7764), (10, 2.2622), (30, 2.0452), (100, 1.9842), (2000, 1.9612)])
def test_percentiles_reach_as_far_as_student_s_t(images, t):
    """Of a number whose resamples are normal, with the variance that resampling loses given back."""
    column = np.random.default_rng(0).normal(size=400_000)
    low, high = percentiles(column, images)
    assert high == pytest.approx(t * np.sqrt(images / (images - 1)), rel=0.02)
    assert low == pytest.approx(-high, rel=0.02)


def test_what_never_moves_is_known_and_what_one_image_has_is_not():
    still, rare = sums([0.5] * 20), ImageSums(np.eye(20)[0], np.eye(20)[0], np.eye(20, dtype=np.int64)[0])
    moving = sums(np.random.default_rng(0).normal(size=20))
    numbers = [still, rare, moving]
    found = simultaneous(numbers, resample(numbers, 0))
    assert found[0] == pytest.approx((0.5, 0.5))
    assert found[1] == (None, None)
    assert found[2][0] < moving.mean < found[2][1]
    assert simultaneous([still], resample([still], 0))[0] == pytest.approx((0.5, 0.5))


def test_nothing_is_paid_for_what_is_not_claimed():
    """Twenty numbers of 29 images each do not widen the interval of one of 400."""
    rng = np.random.default_rng(0)
    one, few = sums(rng.normal(size=400)), []
    for _ in range(20):
        there = np.arange(400) < 29
        few.append(ImageSums(rng.normal(size=400) * there, there.astype(np.float64), there.astype(np.int64)))
    numbers = [one, *few]
    means = resample(numbers, 0)
    narrow, wide = simultaneous(numbers, means, least=30), simultaneous(numbers, means)
    assert narrow[0] == pytest.approx(simultaneous([one], resample([one], 0))[0], rel=1e-9)
    assert wide[0][1] - wide[0][0] > 1.3 * (narrow[0][1] - narrow[0][0])
    assert narrow[1:] == [(None, None)] * 20


def clusters(rng, images):
    """Flips of images, up to ten each, that share what the image brings; their mean over all images is 0.3."""
    count = rng.integers(1, 11, images)
    of_image = rng.normal(0.3, 0.5, images)
    total = count * of_image + rng.normal(0, 0.3, images) * np.sqrt(count)
    return ImageSums(total, count.astype(np.float64), count)


def test_coverage_with_captions_that_hang_together():
    """300 repeats: the share of 95 % intervals that hold the truth lies within what 300 coins would do."""
    rng = np.random.default_rng(4)
    held = 0
    for repeat in range(300):
        drawn = clusters(rng, 150)
        ((low, high),) = intervals([drawn], resample([drawn], repeat, resamples=500))
        held += low <= 0.3 <= high
    assert 0.915 <= held / 300 <= 0.98
