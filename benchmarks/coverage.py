"""Do the intervals hold what they say? `python benchmarks/coverage.py`: simulated scores whose truth is known.

An image brings a gap of its own to all of its captions, and has one to ten pairs: the pairs of an image hang
together, and their number varies. Every repeat draws new images, makes the profile, and looks whether its 95 %
intervals hold the truth. What is not about images at all, as an interval that resamples pairs, is shown beside it.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import polars as pl
import typer
from rich.console import Console
from rich.table import Table

from lgip_ort import metrics
from lgip_ort.atomic import write_json

MEAN, OF_IMAGE, OF_PAIR = 0.06, 0.05, 0.03
"""Of the gap of a flip: its mean, and the standard deviations of what the image and what the pair brings."""

ERROR_OF_IMAGE, ERROR_OF_PAIR = 0.01, 0.008
"""Of the difference between a caption and its paraphrase, whose mean is zero."""


def truth() -> dict[str, float]:
    """The three metrics over all images there could be."""
    spread = math.hypot(OF_IMAGE, OF_PAIR)
    return {
        "E_sens": MEAN,
        "PR": 0.5 * (1 + math.erf(MEAN / spread / math.sqrt(2))),
        "E_inv": math.hypot(ERROR_OF_IMAGE, ERROR_OF_PAIR) * math.sqrt(2 / math.pi),
    }


def simulated(images: int, rng: np.random.Generator, alone: bool) -> pl.DataFrame:
    """Scored pairs. alone: every pair is called an image of its own, as an interval over pairs would have it."""
    parts = []
    for kind, family, mean, of_image, of_pair in (
        ("flip", "colour", MEAN, OF_IMAGE, OF_PAIR),
        ("paraphrase", "wrapper", 0.0, ERROR_OF_IMAGE, ERROR_OF_PAIR),
    ):
        count = rng.integers(1, 11, images)
        image = np.repeat(np.arange(images), count)
        gap = mean + np.repeat(rng.normal(0, of_image, images), count) + rng.normal(0, of_pair, len(image))
        names = [f"{kind}{n}" for n in range(len(image))] if alone else [str(n) for n in image]
        parts.append(
            pl.DataFrame(
                {"image_id": names, "kind": kind, "family": family, "s": 0.5 + gap, "s_perturbed": 0.5},
                schema_overrides={"s": pl.Float64, "s_perturbed": pl.Float64},
            )
        )
    rows = pl.concat(parts)
    return rows.with_columns(suite=pl.lit("strict"), target_word=pl.lit(None, pl.String), perturbed=pl.lit(""))


def covered(images: int, repeats: int, alone: bool = False) -> dict[str, float]:
    """The share of repeats in which the interval of each metric holds the truth."""
    known = truth()
    held = dict.fromkeys(known, 0)
    for repeat in range(repeats):
        pairs = simulated(images, np.random.default_rng(repeat), alone)
        found = metrics.profile(pairs, repeat).filter(family="all", stratum="all")
        for name, low, high in found.select("metric", "ci_low", "ci_high").iter_rows():
            held[name] += low <= known[name] <= high
    return {name: count / repeats for name, count in held.items()}


def main(
    images: Annotated[list[int] | None, typer.Option(min=2, help="Images of a repeat: 100 and 400.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 500,
    out: Annotated[Path | None, typer.Option(help="Write the result there, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Count how often 95 % intervals hold the truth. Exit code 1 where it is not in 93 to 97 of 100 repeats."""
    rows: list[dict[str, Any]] = []
    for n in images or (100, 400):
        for over in ("images", "pairs"):
            rows.append({"images": n, "resampled": over} | covered(n, repeats, over == "pairs"))
    command = shlex.join(["python", "benchmarks/coverage.py", *sys.argv[1:]])
    result = {"command": command, "repeats": repeats, "truth": truth(), "coverage": rows}
    if out is not None:
        write_json(out, result)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        table = Table(box=None, pad_edge=False)
        for name in ("images", "resampled", *truth()):
            table.add_column(name)
        for row in rows:
            table.add_row(str(row["images"]), row["resampled"], *(f"{row[name]:.1%}" for name in truth()))
        Console().print(table)
    right = all(0.93 <= row[name] <= 0.97 for row in rows if row["resampled"] == "images" for name in truth())
    raise typer.Exit(0 if right else 1)


if __name__ == "__main__":
    typer.run(main)
