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

from lgip_ort.bootstrap import RESAMPLES, UNSEEN, ImageSums, Interval, Resampled, intervals, percentiles, resample
from lgip_ort.errors import RunFault
from lgip_ort.perturb.paper import rules
from lgip_ort.retrieval import Gallery, matched_gap, recalls, spread
from lgip_ort.strength import BANDS, with_bands

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


ProfileRow = tuple[str, str, str, str, float, float | None, float | None, int, bool]
"""A row of PROFILE."""


@dataclass(frozen=True)
class Metric:
    """The mean of `of_pair` (an expression of s and s_perturbed, float64) over the pairs of `kind`.

    `counts`: every pair is a 0 or a 1, and the mean a share.
    """

    name: str
    kind: str
    of_pair: pl.Expr
    higher_is_better: bool
    counts: bool = False


GAP = pl.col("s").cast(pl.Float64) - pl.col("s_perturbed").cast(pl.Float64)

POSITIVE = (GAP > 0).cast(pl.Float64)

METRICS = (
    Metric("E_inv", "paraphrase", GAP.abs(), higher_is_better=False),
    Metric("E_sens", "flip", GAP, higher_is_better=True),
    Metric("PR", "flip", POSITIVE, higher_is_better=True, counts=True),
    Metric("E_sens", "combined", GAP, higher_is_better=True),
    Metric("PR", "combined", POSITIVE, higher_is_better=True, counts=True),
    # The control: an engine that computed twice what it computed once.
    Metric("E_inv", "identity", GAP.abs(), higher_is_better=False),
)
MATCHED_GAP = Metric("matched_gap", "original", GAP, higher_is_better=True)
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


def profile(
    pairs: pl.DataFrame, seed: int, resamples: int = RESAMPLES, originals: Gallery | None = None
) -> pl.DataFrame:
    """The profile (schema PROFILE) of scored pairs, or of their `lean` form, with 95 % intervals.

    `originals`: images and captions for retrieval and for the matched gap; their images have pairs. A stratum with
    pairs of fewer than two images has no interval (null). The same seed gives the same bytes.
    """
    pairs = with_images(with_bands(lean(pairs)))
    chosen = [(s.metric, s.family, s.stratum, image_sums(pairs, s)) for s in strata(pairs)]
    if originals is not None:
        chosen += [(m, ALL, ALL, sums) for m, sums in of_originals(originals, pairs)]
    sums = [entry[-1] for entry in chosen]
    means = resample(sums, seed, resamples)
    rows = [
        (m.name, m.kind, family, stratum, of.mean, *_open(m, of, interval), of.n, m.higher_is_better)
        for (m, family, stratum, of), interval in zip(chosen, intervals(sums, means), strict=True)
    ]
    return pl.DataFrame(rows + _in_gaps(rows, sums, means), schema=PROFILE, orient="row")


def _open(metric: Metric, of: ImageSums, interval: Interval) -> Interval:
    """The interval of a share that is 0 or 1 on every pair: resamples all agree, and the next image may not."""
    low, high = interval
    if low is None or high is None or not metric.counts or not low == high == of.mean:
        return interval
    reach = min(1.0, UNSEEN / of.images)
    return (high - reach, high) if high == 1 else (low, low + reach) if low == 0 else interval


def _in_gaps(rows: list[ProfileRow], sums: list[ImageSums], means: Resampled) -> list[ProfileRow]:
    """E_inv and E_sens over all pairs, divided by the matched gap: what can be compared between families of models.

    Left out where the interval of the gap reaches zero: such a model tells no caption from another, and a quotient by
    nothing is no number.
    """
    place = {row[:4]: number for number, row in enumerate(rows)}
    gap = place.get((MATCHED_GAP.name, MATCHED_GAP.kind, ALL, ALL))
    if gap is None or (least := rows[gap][5]) is None or least <= 0:
        return []
    out: list[ProfileRow] = []
    for name, kind in (("E_inv", "paraphrase"), ("E_sens", "flip")):
        row = place.get((name, kind, ALL, ALL))
        if row is None or rows[row][5] is None:
            continue
        images = min(sums[row].images, sums[gap].images)
        low, high = percentiles(means[:, row] / means[:, gap], images)
        value = rows[row][4] / rows[gap][4]
        out.append((f"{name}_rel", kind, ALL, ALL, value, low, high, rows[row][7], rows[row][8]))
    return out


def of_originals(originals: Gallery, pairs: pl.DataFrame) -> Iterator[tuple[Metric, ImageSums]]:
    """The matched gap and recalls, as sums over the images of `pairs` (with their numbers, see `with_images`)."""
    numbers = pairs.select("image_id", "image").unique("image")
    place = dict(zip(numbers["image_id"].cast(pl.String).to_list(), numbers["image"].to_list(), strict=True))
    yield MATCHED_GAP, spread(matched_gap(originals), originals.image_ids, place, len(place))
    for (name, kind), sums in recalls(originals).items():
        found = Metric(name, kind, pl.lit(None), higher_is_better=True, counts=True)
        yield found, spread(sums, originals.image_ids, place, len(place))


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
