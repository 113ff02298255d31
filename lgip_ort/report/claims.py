"""What the paper says about the order of models, tested on the runs at hand with their uncertainty.

Every run resamples its images with the same draws, so that a difference between two models over the same images has the
interval of a paired comparison.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lgip_ort import metrics
from lgip_ort.bootstrap import percentiles, resample
from lgip_ort.metrics import ALL
from lgip_ort.run import Run
from lgip_ort.strength import BANDS, with_bands

Outcome = Literal["holds", "does not hold", "cannot be said"]
Key = tuple[str, str, str, str]
Numbers = tuple[NDArray[np.float64], int]
"""A metric in every resample, and how many images it is of."""


@dataclass(frozen=True)
class Claim:
    """A claim and what became of it; `why` in words."""

    says: str
    outcome: Outcome
    why: str


@cache
def table() -> list[dict[str, Any]]:
    """The claims of `claims.toml`."""
    return list(tomllib.loads(files(__package__).joinpath("claims.toml").read_text(encoding="utf-8"))["claim"])


def judged(runs: Sequence[Run], claims: Sequence[dict[str, Any]] | None = None) -> list[Claim]:
    """Every claim on `runs`, which are over the same pairs; of several runs of a model the first counts."""
    claims = table() if claims is None else claims
    by_model: dict[str, Run] = {}
    for run in runs:
        if not run.failed:
            by_model.setdefault(run.stamp["model"], run)
    drawn = _Drawn(by_model)
    return [_judge(claim, drawn) for claim in claims]


class _Drawn:
    """The metrics of every model in every resample; read from a run when first asked for."""

    def __init__(self, runs: dict[str, Run]) -> None:
        self.runs = runs
        self._means: dict[str, dict[Key, Numbers]] = {}

    def has(self, models: Sequence[str]) -> list[str]:
        return [model for model in models if model in self.runs]

    def value(self, model: str, key: Key) -> Numbers | None:
        """In every resample, and of how many images."""
        if model not in self._means:
            self._means[model] = dict(_means(self.runs[model]))
        return self._means[model].get(key)

    def difference(self, a: tuple[str, Key], b: tuple[str, Key]) -> tuple[float, float] | None:
        """The interval of a - b, None where one of them is not there."""
        first, second = self.value(*a), self.value(*b)
        if first is None or second is None:
            return None
        return percentiles(first[0] - second[0], min(first[1], second[1]))


def _means(run: Run) -> Iterator[tuple[Key, Numbers]]:
    parts = [metrics.lean(part) for part in run.parts()]
    if not parts:
        return
    pairs = metrics.with_images(with_bands(pl.concat(parts)))
    chosen = [s for s in metrics.strata(pairs) if s.metric.kind in ("paraphrase", "flip")]
    sums = [metrics.image_sums(pairs, s) for s in chosen]
    means = resample(sums, run.stamp["seed"])
    for s, of, column in zip(chosen, sums, means.T, strict=True):
        if of.images >= 2:
            yield (s.metric.name, s.metric.kind, s.family, s.stratum), (column, of.images)


def _judge(claim: dict[str, Any], drawn: _Drawn) -> Claim:
    there = drawn.has(claim["models"])
    if not there or ("than" in claim and not drawn.has(claim["than"])):
        needs = [
            " or ".join(claim[side]) for side in ("models", "than") if side in claim and not drawn.has(claim[side])
        ]
        return Claim(claim["says"], "cannot be said", f"needs a run of {', and of '.join(needs)}")
    found = {"frontier": _frontier, "larger": _larger, "at_most": _at_most, "rises": _rises}[claim["on"]](
        claim, drawn, there
    )
    wrong = [why for outcome, why in found if outcome == "does not hold"]
    unknown = [why for outcome, why in found if outcome == "cannot be said"]
    if wrong or unknown or not found:
        outcome: Outcome = "does not hold" if wrong else "cannot be said"
        return Claim(claim["says"], outcome, "; ".join((wrong or unknown)[:3]) or "no other model was run")
    missing = [model for model in claim["models"] if model not in there]
    on = f"on {', '.join(there)}" + (f"; not run: {', '.join(missing)}" if missing else "")
    return Claim(claim["says"], "holds", on)


Found = list[tuple[Outcome, str]]


def _ordered(interval: tuple[float, float] | None, what: str) -> tuple[Outcome, str]:
    """Whether a difference that should be above zero is."""
    if interval is None:
        return "cannot be said", f"{what}: too few pairs"
    low, high = interval
    outcome: Outcome = "holds" if low > 0 else "does not hold" if high < 0 else "cannot be said"
    return outcome, f"{what}: {low:+.4f} .. {high:+.4f}"


def _larger(claim: dict[str, Any], drawn: _Drawn, there: list[str]) -> Found:
    key = (claim["metric"], claim["kind"], claim.get("family", ALL), ALL)
    return [
        _ordered(drawn.difference((model, key), (other, key)), f"{claim['metric']} of {model} minus {other}")
        for model in there
        for other in drawn.has(claim["than"])
    ]


def _at_most(claim: dict[str, Any], drawn: _Drawn, there: list[str]) -> Found:
    out: Found = []
    for model in there:
        found = drawn.value(model, (claim["metric"], claim["kind"], claim["family"], ALL))
        interval = None if found is None else tuple(claim["value"] - end for end in reversed(percentiles(*found)))
        what = f"{claim['value']} minus {claim['metric']} of {model}"
        out.append(_ordered(interval, what))
    return out


def _rises(claim: dict[str, Any], drawn: _Drawn, there: list[str]) -> Found:
    out: Found = []
    for model in there:
        for weaker, stronger in pairwise(BANDS):
            a, b = ((model, (claim["metric"], claim["kind"], ALL, band)) for band in (stronger, weaker))
            out.append(_ordered(drawn.difference(a, b), f"{claim['metric']} of {model}, {stronger} minus {weaker}"))
    return out


def _frontier(claim: dict[str, Any], drawn: _Drawn, there: list[str]) -> Found:
    """Off the frontier where another model has surely less E_inv and more E_sens, on it where none may have."""
    inv, sens = ("E_inv", "paraphrase", ALL, ALL), ("E_sens", "flip", ALL, ALL)
    out: Found = []
    for model in there:
        for other in drawn.runs:
            if other == model:
                continue
            steadier = drawn.difference((model, inv), (other, inv))
            keener = drawn.difference((other, sens), (model, sens))
            if steadier is None or keener is None:
                out.append(("cannot be said", f"{model} or {other}: too few pairs"))
            elif steadier[0] > 0 and keener[0] > 0:
                out.append(("does not hold", f"{other} has less E_inv and more E_sens than {model}"))
            elif steadier[1] < 0 or keener[1] < 0:
                out.append(("holds", f"{other} does not dominate {model}"))
            else:
                out.append(("cannot be said", f"{other} may dominate {model}"))
    return out
