"""The objects that `--json` prints for a run and for a table. Fields are added, never renamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from lgip_ort.metrics import ALL, METRICS
from lgip_ort.pairs import Made
from lgip_ort.run import Run
from lgip_ort.table_file import EXAMPLES


def summary(run: Run) -> dict[str, Any]:
    """A run as one JSON object. Shares and cosines are plain numbers, times are seconds."""
    stamp = run.stamp
    profile = run.profile()
    strata = profile.drop("higher_is_better").to_dicts()
    return {
        "status": stamp["status"],
        **({"error": stamp["error"]} if "error" in stamp else {}),
        "model": stamp["model"],
        "weights": run.weights,
        "weights_sha256": stamp["weights"]["sha256"],
        "engine": stamp["engine"],
        "provider": {"asked": stamp["provider"]["asked"], "active": stamp["provider"]["active"]},
        "precision": stamp["precision"],
        "size": stamp.get("size"),
        "placement": stamp.get("placement", {}),
        "padding": stamp["padding"],
        "suite": stamp["suite"],
        "seed": stamp["seed"],
        "dataset": {
            name: stamp["dataset"][name] for name in ("name", "hash", "images", "captions", "missing", "named")
        },
        "pairs": stamp["pairs"],
        "skipped": run.skipped().to_dicts(),
        "metrics": {m.name: headline(profile, m.name, m.kind) for m in METRICS if m.kind in ("paraphrase", "flip")},
        "strata": strata,
        "seconds": stamp["seconds"],
        "run": str(run.folder),
        "reused": run.reused,
    }


def print_json(data: dict[str, Any]) -> None:
    """One object on stdout."""
    print(json.dumps(data, indent=2, allow_nan=False))


def headline(profile: pl.DataFrame, metric: str, kind: str) -> dict[str, Any]:
    """A metric over all pairs of its kind: value, ci_low, ci_high, n; value None and n 0 where there are none."""
    row = profile.filter(
        (pl.col("metric") == metric) & (pl.col("kind") == kind) & (pl.col("family") == ALL) & (pl.col("stratum") == ALL)
    )
    if row.is_empty():
        return {"value": None, "ci_low": None, "ci_high": None, "n": 0}
    return row.select("value", "ci_low", "ci_high", "n").row(0, named=True)


def table_summary(made: Made, path: Path | None, show: str | None) -> dict[str, Any]:
    """A table that was made, as one JSON object; `examples`: five pairs of each family, or fifty of the one shown."""
    summary, dataset = made.summary, made.dataset
    wanted = [(kind, family) for kind, family in summary.families if show in (None, family)]
    return {
        "status": "done",
        "suite": made.suite,
        "seed": made.seed,
        "dataset": {
            "name": dataset.name,
            "hash": dataset.sha256(),
            "images": len(dataset.images),
            "captions": len(dataset.captions),
        },
        "pairs": summary.kinds(),
        "families": [
            {"kind": kind, "family": family, "n": n} for (kind, family), n in sorted(summary.families.items())
        ],
        "captions_with": {"flip": summary.flipped, "paraphrase_other_than_wrapper": summary.reworded},
        "sha256": summary.sha256,
        "examples": [
            {"kind": kind, "family": family, **row}
            for kind, family in sorted(wanted)
            for row in summary.examples[kind, family]
            .head(5 if show is None else EXAMPLES)
            .select("image_id", "caption_index", "text", "perturbed", "source_word", "target_word")
            .to_dicts()
        ],
        "out": None if path is None else str(path),
    }


def padding_line(stamp: dict[str, Any]) -> str:
    """The padding arm of a run, and where it sets lengths the least and the largest, in a line."""
    lengths = stamp.get("lengths")
    return f"{stamp['padding']}, to {lengths['min']} .. {lengths['max']} tokens" if lengths else str(stamp["padding"])
