"""Two runs over the same table: did the candidate keep the reference's profile?

For every metric in every stratum the paired difference (candidate minus reference) gets a 95 % interval from a
bootstrap that resamples images, and a verdict: `equal` where the interval lies inside the margin, `drifted` where it
lies outside, `inconclusive` where it does neither. A difference that looks like an improvement is a drift as well.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import polars as pl

from lgip_ort import metrics
from lgip_ort.errors import UsageFault
from lgip_ort.run import Run
from lgip_ort.strength import with_bands

Verdict = Literal["equal", "drifted", "inconclusive"]

# What has to be the same in two stamps before a difference can be blamed on the engine.
SAME = ("model", "weights sha256", "suite", "seed", "table", "dataset hash")
SAME_ARM = ("padding", "lengths")


@dataclass(frozen=True)
class Row:
    """One metric in one stratum. `delta` is candidate minus reference; `images_needed` says how many images would
    settle an inconclusive row, None where the verdict stands or no number of images can settle it."""

    metric: str
    kind: str
    family: str
    stratum: str
    reference: float
    candidate: float
    delta: float
    ci_low: float | None
    ci_high: float | None
    margin: float
    verdict: Verdict
    n: int
    images: int
    images_needed: int | None


@dataclass(frozen=True)
class Comparison:
    """The outcome. `sign_changes`: flip pairs that one run scores as right and the other as wrong, with texts and
    scores; `max_ds`: the largest |difference| of a score of the same pair; `left_out`: strata finer than a family
    (single wrappers, bands of strength) that have pairs of too few images to be judged."""

    verdict: Verdict
    rows: list[Row]
    sign_changes: pl.DataFrame
    left_out: int
    flips: int
    embedding_cosine: dict[str, float | None]
    max_ds: float
    reference: Run
    candidate: Run

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
            "reference": str(self.reference.folder),
            "candidate": str(self.candidate.folder),
        }


def compare(reference: Run, candidate: Run, across_arms: bool = False) -> Comparison:
    """Put `candidate` beside `reference`.

    `across_arms`: whether their texts may be padded in two ways. Raises UsageFault where the runs are not over the same
    pairs of the same model, or not in the same arm, naming the field that differs.
    """
    for name in SAME if across_arms else SAME + SAME_ARM:
        field, _, part = name.partition(" ")
        a, b = (s[field][part] if part else s.get(field) for s in (reference.stamp, candidate.stamp))
        if a != b:
            remedy = "; --across-arms compares them" if name == "padding" else ""
            raise UsageFault(
                f"the runs can't be compared: {name} is {a!r} in the reference and {b!r} in the candidate{remedy}"
            )
    both = _join(reference, candidate)
    margins = read_margins()
    # Bands are by the reference's embeddings, where they depend on any.
    both = metrics.with_images(metrics.with_simple(with_bands(both)))
    every = _rows(both, list(metrics.strata(both)), margins, reference.stamp["seed"])
    # A family with few images keeps a verdict open; a finer stratum is a closer look, where there is enough to look at.
    rows = [row for row in every if row.stratum == metrics.ALL or row.images >= margins["min_images"]]
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
        reference=reference,
        candidate=candidate,
    )


def read_margins() -> dict[str, Any]:
    """The margins of `margins.toml`."""
    return tomllib.loads(files(__package__).joinpath("margins.toml").read_text(encoding="utf-8"))


def overall(verdicts: list[Verdict]) -> Verdict:
    """One drift is a drift; without one, a single open row keeps the whole open; nothing compared is nothing shown."""
    if "drifted" in verdicts:
        return "drifted"
    return "inconclusive" if "inconclusive" in verdicts or not verdicts else "equal"


def _join(reference: Run, candidate: Run) -> pl.DataFrame:
    a, b = reference.pairs(), candidate.pairs()
    scores = b.select("pair_id", s_candidate="s", s_perturbed_candidate="s_perturbed")
    both = a.join(scores, on="pair_id", how="inner", maintain_order="left", validate="1:1")
    if not len(a) == len(b) == len(both):
        raise UsageFault(
            f"the runs can't be compared: {len(a)} pairs scored in the reference, {len(b)} in the candidate, "
            f"{len(both)} in both"
        )
    return both


def _rows(both: pl.DataFrame, strata: list[metrics.Stratum], margins: dict[str, Any], seed: int) -> list[Row]:
    of_reference = [metrics.image_sums(both, s) for s in strata]
    swapped = both.with_columns(s="s_candidate", s_perturbed="s_perturbed_candidate")
    of_candidate = [metrics.image_sums(swapped, s) for s in strata]
    deltas = [
        metrics.ImageSums(c.total - r.total, r.weight, r.count) for r, c in zip(of_reference, of_candidate, strict=True)
    ]
    rows = []
    for s, r, c, d, (low, high) in zip(
        strata, of_reference, of_candidate, deltas, metrics.bootstrap(deltas, seed), strict=True
    ):
        rule = margins[s.metric.name]
        margin = max(rule["absolute"], rule["relative"] * abs(r.mean))
        rows.append(
            Row(
                metric=s.metric.name,
                kind=s.metric.kind,
                family=s.family,
                stratum=s.stratum,
                reference=r.mean,
                candidate=c.mean,
                delta=d.mean,
                ci_low=low,
                ci_high=high,
                margin=margin,
                verdict=(verdict := judge(low, high, margin, d.images, margins["min_images"])),
                n=d.n,
                images=d.images,
                images_needed=(
                    images_needed(d.mean, low, high, margin, d.images, margins["min_images"])
                    if verdict == "inconclusive"
                    else None
                ),
            )
        )
    return rows


def judge(low: float | None, high: float | None, margin: float, images: int, min_images: int) -> Verdict:
    """The verdict on a difference with the interval [low, high]."""
    if low is None or high is None or images < min_images:
        return "inconclusive"
    if -margin <= low and high <= margin:
        return "equal"
    return "drifted" if low > margin or high < -margin else "inconclusive"


def images_needed(
    delta: float, low: float | None, high: float | None, margin: float, images: int, min_images: int
) -> int | None:
    """How many images would settle a row: the width of an interval shrinks with the root of their number.

    None where the difference sits on the margin itself, which no number of images would settle.
    """
    distance = abs(margin - abs(delta))
    if low is None or high is None:
        return min_images
    if distance == 0:
        return None
    widest = max(high - delta, delta - low)
    return max(min_images, math.ceil(images * (widest / distance) ** 2))


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
