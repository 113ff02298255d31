"""Intervals by a bootstrap that resamples images: the captions of one image are not independent.

Every number here is a ratio of two sums over images. One draw of images serves all numbers, so that what is computed
from two of them (a difference, a quotient) has an interval of its own, and so that many can be judged together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
LEVEL = 0.95
UNSEEN = 3
"""Cases that the end of a 95 % interval is away where none was seen: the rule of three."""

Interval = tuple[float | None, float | None]
"""Low and high end; (None, None) where there are too few images for one."""

Resampled = NDArray[np.float64]
"""float64 (resamples, numbers): every number in every resample; NaN where a resample holds nothing of it."""


@dataclass(frozen=True)
class ImageSums:
    """Per image, in a fixed order: the weighted sum of a value over its pairs, the sum of their weights (both float64),
    and the number of pairs (int64)."""

    total: NDArray[np.float64]
    weight: NDArray[np.float64]
    count: NDArray[np.int64]

    @property
    def n(self) -> int:
        """Number of pairs."""
        return int(self.count.sum())

    @property
    def images(self) -> int:
        """Number of images with a pair."""
        return int((self.count > 0).sum())

    @property
    def mean(self) -> float:
        """The weighted mean over pairs."""
        return float(self.total.sum() / self.weight.sum())

    def against(self, other: ImageSums) -> ImageSums:
        """This minus `other`, image by image: both over the same pairs, with the weights of `other`."""
        return ImageSums(self.total - other.total, other.weight, other.count)

    def with_unseen(self, pairs: float) -> ImageSums:
        """Two images more, each of `pairs` pairs: on one of them a pair gains 1, on the other one loses it.

        A pair weighs as much as the others on average. Two images without any pair where `pairs` is 0.
        """
        of_pair = float(self.weight.sum()) / max(1, self.n)
        change = of_pair if pairs else 0.0
        return ImageSums(
            np.append(self.total, [change, -change]),
            np.append(self.weight, [of_pair * pairs, of_pair * pairs]),
            np.append(self.count, [0, 0]),
        )


def resample(sums: Sequence[ImageSums], seed: int, resamples: int = RESAMPLES) -> Resampled:
    """The mean of each of `sums` in every resample of the images. The same seed gives the same bytes."""
    if not sums:
        return np.empty((resamples, 0))
    total = np.stack([s.total for s in sums], axis=1)
    weight = np.stack([s.weight for s in sums], axis=1)
    images = len(total)
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, len(sums)))
    step = max(1, 1_000_000 // images)  # resamples at a time: 8 MB of weights
    for start in range(0, resamples, step):
        rows = slice(start, min(start + step, resamples))
        draws = rng.multinomial(images, np.full(images, 1 / images), size=rows.stop - rows.start).astype(np.float64)
        drawn = draws @ weight
        means[rows] = np.divide(draws @ total, drawn, out=np.full_like(drawn, np.nan), where=drawn > 0)
    return means


def intervals(sums: Sequence[ImageSums], means: Resampled, level: float = LEVEL) -> list[Interval]:
    """Intervals of what `resample` made of `sums`. (None, None) where fewer than two images have a pair."""
    found = zip(means.T, sums, strict=True)
    return [(None, None) if of.images < 2 else percentiles(column, of.images, level) for column, of in found]


def percentiles(column: NDArray[np.float64], images: int, level: float = LEVEL) -> tuple[float, float]:
    """The expanded percentile interval of a number in every resample of so many images (Hesterberg, The American
    Statistician 69, 2015).

    Resampling n images knows nothing of the spread that n images do not show: plain percentiles are too narrow by about
    (n - 1) / n of the variance, and by the difference between Student's t and the normal distribution.
    """
    normal = NormalDist()
    z, freedom = normal.inv_cdf(0.5 + level / 2), images - 1
    # Student's t from the normal quantile: Abramowitz and Stegun, 26.7.5.
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    tail = 100 * normal.cdf(-t * math.sqrt(images / freedom))
    low, high = np.nanpercentile(column, [tail, 100 - tail])
    return float(low), float(high)


def simultaneous(sums: Sequence[ImageSums], means: Resampled, level: float = LEVEL, least: int = 2) -> list[Interval]:
    """Intervals that hold all at once with probability `level`, however many there are and however they hang together.

    Half as wide as `c` standard errors, c the quantile over resamples of the largest studentised deviation among all
    numbers (the max-t method; Romano and Wolf, Econometrica 73, 2005). Without correlation it is about as strict as
    Bonferroni's, with it less. (None, None) where fewer than `least` images have a pair: nothing is claimed of those,
    and nothing is paid for them.
    """
    judged = [of.images >= max(2, least) for of in sums]
    centre = np.array([of.mean if ok else np.nan for of, ok in zip(sums, judged, strict=True)])
    deviation = means - centre
    error = np.array([np.nanstd(column) if ok else np.nan for column, ok in zip(means.T, judged, strict=True)])
    moving = np.flatnonzero(error > 0)
    worst = np.nanmax(np.abs(deviation[:, moving]) / error[moving], axis=1) if len(moving) else np.zeros(1)
    reach = float(np.nanquantile(worst, level)) * error
    return [
        (float(c - r), float(c + r)) if ok else (None, None) for c, r, ok in zip(centre, reach, judged, strict=True)
    ]
