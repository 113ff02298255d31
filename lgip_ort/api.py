"""From Python: what `bench.py` does, in a call. What comes back is a frame, a run, or a comparison."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl

from lgip_ort.bundle import Precision, open_bundle
from lgip_ort.engine import OrtEngine, provider_for
from lgip_ort.execute import Plan, execute
from lgip_ort.padding import choose_padding, with_lengths
from lgip_ort.pairs import Wanted, open_pairs
from lgip_ort.parity import compare
from lgip_ort.provider import BATCH
from lgip_ort.report.html import write_report
from lgip_ort.run import Run, open_run
from lgip_ort.score import Local
from lgip_ort.stored import store

__all__ = ["Wanted", "compare", "open_bundle", "open_run", "score", "table"]


def table(wanted: Wanted | str = "demo") -> pl.DataFrame:
    """The pairs of a suite over a data set (schema `lgip_ort.table.SCHEMA`). A string is data, as for `--data`.

    Raises UsageFault for what is unknown or missing.
    """
    _, parts, _ = open_pairs(_wanted(wanted), available_only=True)
    return pl.concat(list(parts))


def score(
    bundle: Path | str,
    wanted: Wanted | str = "demo",
    out: Path | str = "runs",
    provider: str = "auto",
    precision: Precision | None = None,
    padding: str = "trained",
) -> Run:
    """Score a bundle over a data set into a run folder under `out`, with its page; a run that is there is shown again.

    Raises UsageFault for what is unknown or missing, RunFault where a score is not finite. An image that can't be read
    makes a run that has `failed`.
    """
    wanted, arm, opened = _wanted(wanted), choose_padding(padding), open_bundle(Path(bundle))
    device = provider_for(provider, opened.graph("vision", precision).precision).device
    engine = OrtEngine(opened, provider, BATCH[device], arm, precision)
    dataset, parts, suite = open_pairs(wanted, available_only=False)
    parts = (with_lengths(part, dataset.captions, opened, arm) for part in parts)
    with tempfile.TemporaryDirectory(prefix="lgip-ort-") as folder:
        stored = store(parts, dataset.images, Path(folder) / "table.parquet")
        plan = Plan(dataset, stored, suite, wanted.seed, engine.batch_size, padding=arm)
        run = execute(Local(engine), plan, Path(out), lambda *_: None)
    if not run.reused:
        write_report(run)
    return run


def _wanted(wanted: Wanted | str) -> Wanted:
    return Wanted(data=wanted) if isinstance(wanted, str) else wanted
