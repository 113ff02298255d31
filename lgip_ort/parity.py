"""Two runs over the same table: did the candidate keep the reference's profile?

For every metric in every stratum the paired difference (candidate minus reference) gets a 95 % interval from a
bootstrap that resamples images, and a verdict: `equal` where that interval lies inside the margin, `drifted` where it
and the simultaneous interval lie outside, `inconclusive` where neither holds. A difference that looks like an
improvement is a drift as well.

Of many rows taken together, each claim is as strong as it reads: all rows have to be equal for the whole to be, which
needs no correction (an intersection-union test; Berger, Technometrics 24, 1982), and one row is enough for a drift,
which is why that is judged by intervals that hold all at once (`bootstrap.simultaneous`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from lgip_ort import metrics
from lgip_ort.blame import Step
from lgip_ort.bootstrap import UNSEEN, ImageSums, intervals, resample, simultaneous
from lgip_ort.errors import UsageFault
from lgip_ort.judge import Verdict, images_needed, judge, overall
from lgip_ort.margins import Margins, read_margins
from lgip_ort.metrics import Metric
from lgip_ort.run import Run
from lgip_ort.strength import with_bands

# What has to be the same in two stamps before a difference can be blamed on the engine.
SAME = ("model", "weights sha256", "suite", "seed", "table", "dataset hash")
SAME_ARM = ("padding", "lengths")


@dataclass(frozen=True)
class Row:
    """One metric in one stratum. `delta` is candidate minus reference, [ci_low, ci_high] its interval, [drift_low,
    drift_high] the one that holds for all rows at once.

    `noise`: what the same engine makes of the same text twice, in the metric's unit (see `_noise`); `images_needed`:
    how many images would settle an inconclusive row, None where the verdict stands or no number of images can.
    """

    metric: str
    kind: str
    family: str
    stratum: str
    reference: float
    candidate: float
    delta: float
    ci_low: float | None
    ci_high: float | None
    drift_low: float | None
    drift_high: float | None
    margin: float
    noise: float | None
    verdict: Verdict
    n: int
    images: int
    images_needed: int | None


@dataclass(frozen=True)
class Comparison:
    """The outcome. `sign_changes`: flip pairs that one run scores as right and the other as wrong, with texts and
    scores; `max_ds`: the largest |difference| of a score of the same pair; `left_out`: strata finer than a family
    (single wrappers, bands of strength) that have too few pairs to be judged; `blame`: see `blame.find`, None where
    nobody looked."""

    verdict: Verdict
    rows: list[Row]
    sign_changes: pl.DataFrame
    left_out: int
    flips: int
    embedding_cosine: dict[str, float | None]
    max_ds: float
    margins: Margins
    reference: Run
    candidate: Run
    blame: list[Step] | None = None

    def summary(self) -> dict[str, Any]:
        """The comparison as the one object that `--json` prints."""
        return {
            "verdict": self.verdict,
            "model": self.candidate.stamp["model"],
            "weights": self.candidate.weights,
            "padding": {
                "reference": self.reference.stamp["padding"],
                "candidate": self.candidate.stamp["padding"],
            },
            "rows": [asdict(row) for row in self.rows],
            "left_out": self.left_out,
            "sign_changes": {
                "n": len(self.sign_changes),
                "of": self.flips,
                "pairs": self.sign_changes.head(100).to_dicts(),
            },
            "embedding_cosine": self.embedding_cosine,
            "max_ds": self.max_ds,
            "margins": self.margins.table(),
            "blame": None if self.blame is None else [asdict(step) for step in self.blame],
            "reference": str(self.reference.folder),
            "candidate": str(self.candidate.folder),
        }


def compare(reference: Run, candidate: Run, across_arms: bool = False, margins: Margins | None = None) -> Comparison:
    """Put `candidate` beside `reference`.

    `across_arms`: whether their texts may be padded in two ways. `margins`: None for the project's own. Raises
    UsageFault where the runs are not over the same pairs of the same model, or not in the same arm, naming the field.
    """
    for name in SAME if across_arms else SAME + SAME_ARM:
        field, _, part = name.partition(" ")
        a, b = (s[field][part] if part else s.get(field) for s in (reference.stamp, candidate.stamp))
        if a != b:
            remedy = "; --across-arms compares them" if name == "padding" else ""
            raise UsageFault(
                f"the runs can't be compared: {name} is {a!r} in the reference and {b!r} in the candidate{remedy}"
            )
    margins = margins or read_margins()
    # Bands are by the reference's embeddings, where they depend on any.
    both = metrics.with_images(metrics.with_simple(with_bands(scored_by_both(reference, candidate))))
    every = _rows(list(_measured(both, reference, candidate)), both, margins, reference.stamp["seed"])
    # A family with few images keeps a verdict open; a finer stratum is a closer look, where there is enough to look at.
    rows = [row for row in every if row.stratum == metrics.ALL or _enough(row, margins)]
    changes = both.filter(
        (pl.col("kind") == "flip")
        & ((pl.col("s") > pl.col("s_perturbed")) != (pl.col("s_candidate") > pl.col("s_perturbed_candidate")))
    ).select("image_id", "family", "text", "perturbed", "s", "s_perturbed", "s_candidate", "s_perturbed_candidate")
    largest = both.select(
        pl.max_horizontal(
            (pl.col("s") - pl.col("s_candidate")).abs(),
            (pl.col("s_perturbed") - pl.col("s_perturbed_candidate")).abs(),
        ).max()
    ).item()
    return Comparison(
        verdict=overall([row.verdict for row in rows]),
        rows=rows,
        left_out=len(every) - len(rows),
        sign_changes=changes,
        flips=int((both["kind"] == "flip").sum()),
        embedding_cosine=_cosines(reference, candidate),
        max_ds=float(largest),
        margins=margins,
        reference=reference,
        candidate=candidate,
    )


def scored_by_both(reference: Run, candidate: Run) -> pl.DataFrame:
    """The pairs with the scores of both, the candidate's as s_candidate and s_perturbed_candidate.

    Raises UsageFault where one has scored a pair that the other has not.
    """
    a, b = reference.pairs(), candidate.pairs()
    scores = b.select("pair_id", s_candidate="s", s_perturbed_candidate="s_perturbed")
    both = a.join(scores, on="pair_id", how="inner", maintain_order="left", validate="1:1")
    if not len(a) == len(b) == len(both):
        raise UsageFault(
            f"the runs can't be compared: {len(a)} pairs scored in the reference, {len(b)} in the candidate, "
            f"{len(both)} in both"
        )
    return both


@dataclass(frozen=True)
class _Measured:
    """A metric in a stratum, as sums over the same images in both runs."""

    metric: Metric
    family: str
    stratum: str
    reference: ImageSums
    candidate: ImageSums

    @property
    def unseen(self) -> float:
        """By how much a single pair that changes moves the mean of one image; 0 where every pair moves a little.

        A share of few pairs of which none changed has a bootstrap of no width, which is no proof.
        """
        return self.reference.images / self.reference.n if self.metric.counts else 0.0


def _measured(both: pl.DataFrame, reference: Run, candidate: Run) -> Iterator[_Measured]:
    swapped = both.with_columns(s="s_candidate", s_perturbed="s_perturbed_candidate")
    for s in metrics.strata(both):
        yield _Measured(s.metric, s.family, s.stratum, metrics.image_sums(both, s), metrics.image_sums(swapped, s))
    theirs, ours = reference.gallery(), candidate.gallery()
    if theirs is None or ours is None or theirs.image_ids != ours.image_ids:
        return
    of_both = zip(metrics.of_originals(theirs, both), metrics.of_originals(ours, both), strict=True)
    for (metric, of_reference), (_, of_candidate) in of_both:
        yield _Measured(metric, metrics.ALL, metrics.ALL, of_reference, of_candidate)


def _rows(measured: list[_Measured], both: pl.DataFrame, margins: Margins, seed: int) -> list[Row]:
    deltas = [m.candidate.against(m.reference) for m in measured]
    # Two images that change otherwise than was seen, one for the better and one for the worse, as Agresti and Min do
    # for differences of paired shares (Statistics in Medicine 24, 2005).
    widened = [d.with_unseen(1 / m.unseen if m.unseen else 0.0) for m, d in zip(measured, deltas, strict=True)]
    means = resample(widened, seed)
    at_once_of_all = simultaneous(deltas, means, least=margins.min_images)
    found = zip(measured, deltas, intervals(deltas, means), at_once_of_all, strict=True)
    noise = _noise(both)
    rows = []
    for m, d, interval, at_once in found:
        margin = margins.of(m.metric.name).at(m.reference.mean)
        verdict = judge(interval, at_once, margin, d.images, margins.min_images)
        needed = images_needed(d.mean, interval, margin, d.images, margins.min_images, m.unseen)
        rows.append(
            Row(
                metric=m.metric.name,
                kind=m.metric.kind,
                family=m.family,
                stratum=m.stratum,
                reference=m.reference.mean,
                candidate=m.candidate.mean,
                delta=d.mean,
                ci_low=interval[0],
                ci_high=interval[1],
                drift_low=at_once[0],
                drift_high=at_once[1],
                margin=margin,
                noise=noise.get(m.metric.name),
                verdict=verdict,
                n=d.n,
                images=d.images,
                images_needed=needed if verdict == "inconclusive" else None,
            )
        )
    return rows


def _enough(row: Row, margins: Margins) -> bool:
    """Whether a stratum has as many images as would settle it if nothing had changed."""
    least = margins.min_images
    if row.metric == "PR" and row.margin > 0:
        least = max(least, math.ceil(UNSEEN * row.images / row.n / row.margin))
    return row.images >= least


def _noise(both: pl.DataFrame) -> dict[str, float]:
    """The noise floor by metric: what the noisier of the two engines makes of a text that it encodes twice.

    For E_inv, E_sens and the matched gap the mean difference of a score between the two; for PR the share of the
    reference's flips whose gap is no larger than the largest of those differences. Empty without identity pairs.
    """
    identity = both.filter(pl.col("kind") == "identity")
    if identity.is_empty():
        return {}
    twice = [
        np.abs(identity[a].to_numpy().astype(np.float64) - identity[b].to_numpy().astype(np.float64))
        for a, b in (("s", "s_perturbed"), ("s_candidate", "s_perturbed_candidate"))
    ]
    mean, largest = (float(max(of(moved) for moved in twice)) for of in (np.mean, np.max))
    gaps = both.filter(pl.col("kind") == "flip").select(metrics.GAP.abs()).to_series().to_numpy()
    near = float((gaps <= largest).mean()) if len(gaps) else 0.0
    return {"E_inv": mean, "E_sens": mean, "matched_gap": mean, "PR": near}


def _cosines(reference: Run, candidate: Run) -> dict[str, float | None]:
    """Least and first-percentile cosine between the two runs' vectors of the same image or text, by tower."""
    both = reference.embeddings().join(candidate.embeddings(), on=["tower", "key"], how="inner", validate="1:1")
    out: dict[str, float | None] = {}
    for tower, name in (("vision", "image"), ("text", "text")):
        rows = both.filter(pl.col("tower") == tower)
        a, b = (rows[column].to_numpy().astype(np.float64) for column in ("vector", "vector_right"))
        if len(rows) == 0:
            out |= {f"{name}_min": None, f"{name}_p1": None}
            continue
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        out |= {f"{name}_min": float(cosine.min()), f"{name}_p1": float(np.percentile(cosine, 1))}
    return out
