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
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lgip_ort.errors import RunFault
from lgip_ort.perturb.paper import rules
from lgip_ort.strength import BANDS, with_bands

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

POSITIVE = (GAP > 0).cast(pl.Float64)

METRICS = (
    Metric("E_inv", "paraphrase", GAP.abs(), higher_is_better=False),
    Metric("E_sens", "flip", GAP, higher_is_better=True),
    Metric("PR", "flip", POSITIVE, higher_is_better=True),
    Metric("E_sens", "combined", GAP, higher_is_better=True),
    Metric("PR", "combined", POSITIVE, higher_is_better=True),
    # The control: an engine that computed twice what it computed once.
    Metric("E_inv", "identity", GAP.abs(), higher_is_better=False),
)
WEIGHTED = "weighted"
"""Stratum of all flips in which each counts by its strength (suite `paper`)."""


@dataclass(frozen=True)
class Stratum:
    """Pairs over which one number is taken. `rows` selects them, `weight` says how much each counts."""

    metric: Metric
    family: str
    stratum: str
    rows: pl.Expr
    weight: pl.Expr = field(default_factory=lambda: pl.lit(1.0))


def strata(pairs: pl.DataFrame) -> Iterator[Stratum]:
    """Every stratum of scored pairs (with their bands) in a fixed order: the kind as a whole, then each family.

    Under the whole: simple and advanced paraphrases, weak, medium and strong flips, all flips weighted by strength.
    Under a family: single wrappers; in suite `strict` the bands of strength.
    """
    by_band = "band" in pairs.columns
    for metric in METRICS:
        of_kind = pl.col("kind") == metric.kind
        # Columns one by one: a frame of the kind would be a copy of most of the pairs.
        families = _words(pairs, "family", of_kind)
        paper = _words(pairs, "suite", of_kind) == ["paper"]
        if families and metric.kind != "identity":
            yield Stratum(metric, ALL, ALL, of_kind)
            if metric.kind == "paraphrase" and paper:
                simple = pl.col("simple")
                yield from _present(metric, ALL, pairs, {"simple": of_kind & simple, "advanced": of_kind & ~simple})
            if by_band and metric.kind == "flip":
                bands = {band: of_kind & (pl.col("band_all") == band) for band in BANDS}
                yield from _present(metric, ALL, pairs, bands)
                if pairs.select(pl.col("weight").filter(of_kind).null_count()).item() == 0:
                    yield Stratum(metric, ALL, WEIGHTED, of_kind, pl.col("weight"))
        for family in families:
            of_family = of_kind & (pl.col("family") == family)
            yield Stratum(metric, family, ALL, of_family)
            if family == "wrapper":
                wrappers = {
                    t: of_family & (pl.col("target_word") == t) for t in _words(pairs, "target_word", of_family)
                }
                yield from _present(metric, family, pairs, wrappers)
            if by_band and metric.kind == "flip" and not paper:
                yield from _present(
                    metric, family, pairs, {band: of_family & (pl.col("band") == band) for band in BANDS}
                )


def _words(pairs: pl.DataFrame, column: str, rows: pl.Expr) -> list[str]:
    """What stands in `column` of `rows`, once each, in alphabetical order."""
    found = pairs.select(pl.col(column).filter(rows).unique()).to_series()
    return sorted(found.drop_nulls().cast(pl.String))


def _present(metric: Metric, family: str, pairs: pl.DataFrame, rows: dict[str, pl.Expr]) -> Iterator[Stratum]:
    """Those of the named strata that have a pair."""
    for name, expression in rows.items():
        if pairs.select(expression.any()).item():
            yield Stratum(metric, family, name, expression)


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


def lean(pairs: pl.DataFrame) -> pl.DataFrame:
    """What a profile needs of scored pairs, in a tenth of the memory: no text, and words that recur as categories.

    Taking the lean form of it changes nothing.
    """
    words = ("image_id", "suite", "kind", "family", "target_word")
    return with_simple(pairs).select(
        pl.col(words).cast(pl.Categorical),
        pl.col("^(strength|s|s_perturbed|text_cosine|simple)$"),
    )


def with_simple(pairs: pl.DataFrame) -> pl.DataFrame:
    """`pairs` with a column `simple` (bool): a phrase in the lower-cased text makes a paraphrase simple to the
    published evaluation; null for other kinds."""
    if "simple" in pairs.columns:
        return pairs
    reworded = pl.when(pl.col("kind") == "paraphrase").then(pl.col("perturbed"))
    return pairs.with_columns(simple=reworded.str.to_lowercase().str.contains_any(rules()["simple"]))


def profile(pairs: pl.DataFrame, seed: int, resamples: int = RESAMPLES) -> pl.DataFrame:
    """The profile (schema PROFILE) of scored pairs, or of their `lean` form, with 95 % intervals.

    A stratum with pairs of fewer than two images has no interval (null). The same seed gives the same bytes.
    """
    pairs = with_images(with_bands(lean(pairs)))
    chosen = list(strata(pairs))
    sums = [image_sums(pairs, s) for s in chosen]
    intervals = bootstrap(sums, seed, resamples)
    rows = [
        (s.metric.name, s.metric.kind, s.family, s.stratum, t.mean, low, high, t.n, s.metric.higher_is_better)
        for s, t, (low, high) in zip(chosen, sums, intervals, strict=True)
    ]
    return pl.DataFrame(rows, schema=PROFILE, orient="row")


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


def with_images(pairs: pl.DataFrame) -> pl.DataFrame:
    """`pairs` with a column `image` (u32): the number of its image, in the order in which they first appear."""
    images = pairs.select("image_id").unique(maintain_order=True).with_row_index("image")
    # Only the column itself goes through the join: the others are not copied.
    numbers = pairs.select("image_id").join(images, on="image_id", how="left", maintain_order="left")
    return pairs.with_columns(numbers["image"])


def image_sums(pairs: pl.DataFrame, stratum: Stratum) -> ImageSums:
    """Sums of a stratum's value by image (see `with_images`); images without such a pair count zero."""
    images = 0 if pairs.is_empty() else pairs.select(pl.col("image").max()).item() + 1
    value = stratum.metric.of_pair * stratum.weight
    # Lazily: a filtered frame would be a copy of every column.
    chosen = pairs.lazy().filter(stratum.rows).select("image", value=value, weight=stratum.weight).collect()
    image = chosen["image"].to_numpy()
    total, weight = (
        np.bincount(image, chosen[name].to_numpy(), minlength=images).astype(np.float64) for name in ("value", "weight")
    )
    return ImageSums(total, weight, np.bincount(image, minlength=images).astype(np.int64))


def bootstrap(
    strata: list[ImageSums], seed: int, resamples: int = RESAMPLES
) -> list[tuple[float | None, float | None]]:
    """Percentile intervals (LEVEL) of the ratio of sums, images drawn with replacement, one draw for all strata.

    (None, None) where fewer than two images have a pair. A resample without any pair of a stratum is left out of it.
    """
    if not strata:
        return []
    total = np.stack([s.total for s in strata], axis=1)
    weight = np.stack([s.weight for s in strata], axis=1)
    images = len(total)
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, len(strata)))
    step = max(1, 1_000_000 // images)  # resamples at a time: 8 MB of weights
    for start in range(0, resamples, step):
        rows = slice(start, min(start + step, resamples))
        draws = rng.multinomial(images, np.full(images, 1 / images), size=rows.stop - rows.start).astype(np.float64)
        drawn = draws @ weight
        means[rows] = np.divide(draws @ total, drawn, out=np.full_like(drawn, np.nan), where=drawn > 0)
    tail = 100 * (1 - LEVEL) / 2
    out: list[tuple[float | None, float | None]] = []
    for column, stratum in zip(means.T, strata, strict=True):
        if stratum.images < 2:
            out.append((None, None))
            continue
        low, high = np.nanpercentile(column, [tail, 100 - tail])
        out.append((float(low), float(high)))
    return out
