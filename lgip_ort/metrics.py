"""E_inv, E_sens and PR with their intervals: scores -> profile.

The metrics are those of Language-Guided Invariance Probing (arXiv 2511.13494). With s(I, c) the cosine of image and
caption, c~ a paraphrase and c' a flip:

    E_inv  = mean |s(I, c) - s(I, c~)|        over paraphrase pairs
    E_sens = mean (s(I, c) - s(I, c'))        over flip pairs, signed
    PR     = share of flip pairs with s(I, c) - s(I, c') > 0; a tie is a failure

Every metric is a mean over pairs, hence a ratio of sums over images. Captions of one image are not independent, so
intervals come from a bootstrap that resamples images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lgip_ort.errors import RunFault

RESAMPLES = 1000
LEVEL = 0.95
ALL = "all"

PROFILE = pl.Schema(
    {
        "metric": pl.String,
        "kind": pl.String,
        "family": pl.String,
        "stratum": pl.String,
        "value": pl.Float64,
        "ci_low": pl.Float64,
        "ci_high": pl.Float64,
        "n": pl.UInt64,
        "higher_is_better": pl.Boolean,
    }
)


@dataclass(frozen=True)
class Metric:
    """The mean of `of_pair` (an expression of s and s_perturbed, float64) over the pairs of `kind`."""

    name: str
    kind: str
    of_pair: pl.Expr
    higher_is_better: bool


GAP = pl.col("s").cast(pl.Float64) - pl.col("s_perturbed").cast(pl.Float64)

METRICS = (
    Metric("E_inv", "paraphrase", GAP.abs(), higher_is_better=False),
    Metric("E_sens", "flip", GAP, higher_is_better=True),
    Metric("PR", "flip", (GAP > 0).cast(pl.Float64), higher_is_better=True),
    # The control: an engine that computed twice what it computed once.
    Metric("E_inv", "identity", GAP.abs(), higher_is_better=False),
)


@dataclass(frozen=True)
class Stratum:
    """Pairs over which one number is taken. `rows` selects them."""

    metric: Metric
    family: str
    stratum: str
    rows: pl.Expr


def strata(table: pl.DataFrame) -> Iterator[Stratum]:
    """Every stratum of a table in a fixed order: the kind as a whole, each family, and each wrapper of its own."""
    for metric in METRICS:
        of_kind = pl.col("kind") == metric.kind
        families = table.filter(of_kind)["family"].unique().sort().to_list()
        if families and metric.kind != "identity":
            yield Stratum(metric, ALL, ALL, of_kind)
        for family in families:
            of_family = of_kind & (pl.col("family") == family)
            yield Stratum(metric, family, ALL, of_family)
            if family == "wrapper":
                for template in table.filter(of_family)["target_word"].unique().sort().to_list():
                    yield Stratum(metric, family, template, of_family & (pl.col("target_word") == template))


def join_scores(table: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """The rows of `table` that were scored, with their scores, in the order of the table.

    Raises RunFault where a score is null, NaN or infinite: in Polars NaN > 0 is true, and a null drops out of a mean.
    """
    pairs = table.join(scores, on="pair_id", how="inner", maintain_order="left", validate="1:1")
    for name in ("s", "s_perturbed"):
        bad = pairs.filter(~pl.col(name).is_finite().fill_null(False))
        if len(bad):
            raise RunFault(
                f"{len(bad)} of {len(pairs)} values of {name!r} are not finite, the first of pair {bad[0, 'pair_id']}"
            )
    return pairs


def profile(pairs: pl.DataFrame, seed: int, resamples: int = RESAMPLES) -> pl.DataFrame:
    """The profile (schema PROFILE) of scored pairs, with 95 % intervals.

    A stratum with pairs of fewer than two images has no interval (null). The same seed gives the same bytes.
    """
    chosen = list(strata(pairs))
    sums = [image_sums(pairs, s.metric.of_pair, s.rows) for s in chosen]
    intervals = bootstrap(sums, seed, resamples)
    rows = [
        (s.metric.name, s.metric.kind, s.family, s.stratum, t.mean, low, high, t.n, s.metric.higher_is_better)
        for s, t, (low, high) in zip(chosen, sums, intervals, strict=True)
    ]
    return pl.DataFrame(rows, schema=PROFILE, orient="row")


@dataclass(frozen=True)
class ImageSums:
    """Per image: the sum of a value over its pairs (float64) and their number (int64). Images are in a fixed order."""

    total: NDArray[np.float64]
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
        """The mean over pairs."""
        return float(self.total.sum() / self.count.sum())


def image_sums(pairs: pl.DataFrame, value: pl.Expr, rows: pl.Expr) -> ImageSums:
    """Sums of `value` by image over the `rows` of `pairs`; images without such a pair count zero."""
    per_image = (
        pairs.select("image_id", pl.when(rows).then(value).alias("value"), rows.alias("chosen"))
        .group_by("image_id", maintain_order=True)
        .agg(pl.col("value").sum(), pl.col("chosen").sum().cast(pl.Int64))
    )
    return ImageSums(per_image["value"].to_numpy(), per_image["chosen"].to_numpy())


def bootstrap(
    strata: list[ImageSums], seed: int, resamples: int = RESAMPLES
) -> list[tuple[float | None, float | None]]:
    """Percentile intervals (LEVEL) of the ratio of sums, images drawn with replacement, one draw for all strata.

    (None, None) where fewer than two images have a pair. A resample without any pair of a stratum is left out of it.
    """
    if not strata:
        return []
    total = np.stack([s.total for s in strata], axis=1)
    count = np.stack([s.count for s in strata], axis=1).astype(np.float64)
    images = len(total)
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, len(strata)))
    step = max(1, 4_000_000 // images)  # resamples at a time: 32 MB of weights
    for start in range(0, resamples, step):
        rows = slice(start, min(start + step, resamples))
        weights = rng.multinomial(images, np.full(images, 1 / images), size=rows.stop - rows.start).astype(np.float64)
        drawn = weights @ count
        means[rows] = np.divide(weights @ total, drawn, out=np.full_like(drawn, np.nan), where=drawn > 0)
    tail = 100 * (1 - LEVEL) / 2
    out: list[tuple[float | None, float | None]] = []
    for column, stratum in zip(means.T, strata, strict=True):
        if stratum.images < 2:
            out.append((None, None))
            continue
        low, high = np.nanpercentile(column, [tail, 100 - tail])
        out.append((float(low), float(high)))
    return out
