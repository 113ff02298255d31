"""Runs that belong on one page: whether they do, which are compared with which, and in what order they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from lgip_ort.errors import UsageFault
from lgip_ort.margins import Margins
from lgip_ort.parity import Comparison, compare
from lgip_ort.report import names
from lgip_ort.report.contract import headline
from lgip_ort.run import Run

SAME = ("suite", "seed", "table", "dataset hash")
"""What runs share whose numbers may stand in one table: the pairs and the pictures."""

FINEST = ("fp32", "fp16", "int8")


def check(runs: Sequence[Run]) -> None:
    """Raises UsageFault where two runs are not over the same pairs, naming both and the field that differs."""
    for run in runs[1:]:
        for name in SAME:
            field, _, part = name.partition(" ")
            a, b = (of.stamp[field][part] if part else of.stamp.get(field) for of in (runs[0], run))
            if a != b:
                raise UsageFault(
                    f"the runs can't stand on one page: {name} is {a!r} in {runs[0].folder} and {b!r} in {run.folder}"
                )


def comparisons(runs: Sequence[Run], margins: Margins | None = None) -> list[Comparison]:
    """Within each group of one model, weights and arm, every other run against the PyTorch original.

    Where the original was not run the reference is the run of the highest stored precision, the first of these.
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if not run.failed:
            stamp = run.stamp
            groups.setdefault((stamp["model"], stamp["weights"]["sha256"], stamp["padding"]), []).append(run)
    out = []
    for group in groups.values():
        reference = min(group, key=_rank)
        out += [compare(reference, run, margins=margins) for run in group if run is not reference]
    return out


def _rank(run: Run) -> tuple[bool, int]:
    asked = run.stamp["precision"]["asked"]
    return run.stamp["engine"] != "torch", FINEST.index(asked) if asked in FINEST else len(FINEST)


@dataclass(frozen=True)
class Entry:
    """A run in the leaderboard and in the ladder. Numbers as `contract.headline` gives them; `verdict` of the
    comparison in which it is the candidate, or `reference`, or empty."""

    run: Run
    label: str
    e_inv: dict[str, Any]
    e_sens: dict[str, Any]
    pr: dict[str, Any]
    e_inv_rel: dict[str, Any]
    recall: dict[str, Any]
    images_per_second: float | None
    pairs_per_second: float | None
    size: int | None
    verdict: str


def board(runs: Sequence[Run], compared: Sequence[Comparison]) -> list[Entry]:
    """Every run with its headline numbers, the highest positive rate first."""
    verdicts = {c.candidate.folder: str(c.verdict) for c in compared}
    verdicts |= {c.reference.folder: "reference" for c in compared}
    entries = []
    for run, label in zip(runs, names.labels(runs), strict=True):
        profile, seconds, n = run.profile(), run.stamp["seconds"], run.stamp["n"]
        entries.append(
            Entry(
                run,
                label,
                headline(profile, "E_inv", "paraphrase"),
                headline(profile, "E_sens", "flip"),
                headline(profile, "PR", "flip"),
                headline(profile, "E_inv_rel", "paraphrase"),
                headline(profile, "R@1", "text_to_image"),
                n["images"] / seconds["images"] if seconds["images"] > 0 else None,
                n["effective"] / seconds["total"] if seconds["total"] > 0 else None,
                run.stamp.get("size"),
                verdicts.get(run.folder, ""),
            )
        )
    return sorted(entries, key=lambda e: -1.0 if e.pr["value"] is None else e.pr["value"], reverse=True)


def strata(runs: Sequence[Run], metric: str, kind: str) -> pl.DataFrame:
    """A metric over all pairs of a kind and over its families and bands, by run: the profile with a column `run`."""
    parts = [
        run.profile().filter((pl.col("metric") == metric) & (pl.col("kind") == kind)).with_columns(run=pl.lit(label))
        for run, label in zip(runs, names.labels(runs), strict=True)
    ]
    return pl.concat(parts)
