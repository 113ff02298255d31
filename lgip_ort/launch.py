"""From a plan to a run: which engine scores it, in this process or in workers of Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lgip_ort.bundle import Bundle, Precision
from lgip_ort.engine import Engine, OrtEngine
from lgip_ort.execute import Plan, execute
from lgip_ort.provider import PROVIDERS, choose
from lgip_ort.run import Run
from lgip_ort.score import Local, Progress, Scorer

Make = Callable[[], Engine]
"""Builds an engine, here or, sent there, in a worker."""

Original = Callable[[Bundle, Plan, str], Make]
"""What builds the PyTorch original of a bundle, for a plan, on a device. Raises UsageFault where that can't be had."""


@dataclass(frozen=True)
class How:
    """How a plan is executed.

    provider, precision: of the bundle's engine. out: where run folders are made. overwrite, resume: see `execute`. ray:
    the address of a cluster, or `local`; None: in this process. workers: how many; cores: of each.
    """

    provider: str = "auto"
    precision: Precision | None = None
    out: Path = Path("runs")
    overwrite: bool = False
    resume: bool = False
    ray: str | None = None
    workers: int = 1
    cores: int = 1

    def beside(self) -> How:
        """The same for the original that is run beside the bundle: on the device of its provider."""
        known = PROVIDERS.get(self.provider)
        return self if known is None else replace(self, provider=known.device)


def launch(
    name: str,
    bundle: Bundle,
    plan: Plan,
    how: How,
    original: Original,
    progress: Callable[[str, Plan], AbstractContextManager[Progress]],
) -> Run:
    """Score `plan` with the engine called `name` (ort, torch) and write the report of the run.

    `progress` is opened with the engine's name while shards are scored. Raises whatever the engine and `execute` do.
    """
    from lgip_ort.report.html import write_report

    began = time.perf_counter()
    with _scorer(maker(name, bundle, plan, how, original), how) as scorer, progress(name, plan) as shown:
        load = time.perf_counter() - began
        run = execute(scorer, plan, how.out, shown, how.overwrite, how.resume, load)
    if not run.reused or not (run.folder / "report.html").exists():
        write_report(run)
    return run


def maker(name: str, bundle: Bundle, plan: Plan, how: How, original: Original) -> Make:
    """What builds the engine called `name` (ort, torch) for `plan`."""
    if name == "torch":
        return original(bundle, plan, how.provider)
    threads = how.cores if how.ray is not None else None
    options = (how.provider, plan.batch_size, plan.padding, how.precision, threads)
    return partial(OrtEngine.open, bundle.folder.resolve(), *options)


@contextmanager
def _scorer(make: Make, how: How) -> Iterator[Scorer]:
    if how.ray is None:
        yield Local(make())
        return
    from lgip_ort.cluster import Cluster

    gpus = 1 if choose(how.provider).device == "cuda" else 0
    with Cluster(make, how.workers, how.ray, gpus, how.cores) as cluster:
        yield cluster
