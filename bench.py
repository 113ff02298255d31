"""The command: score a model's captions and say whether the artifact kept the original's profile.

    python bench.py --engine ort                      the demo: a trained model on ONNX Runtime
    python bench.py --engine both --model tiny_clip   the same pairs on PyTorch, and a verdict
    python bench.py compare RUN_A RUN_B               the verdict on two runs made before

Exit code 0: done, or equal; 1: a result that can't be trusted, drifted, or inconclusive; 2: usage or environment.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lgip_ort.errors import RunFault, UsageFault

if TYPE_CHECKING:
    from lgip_ort.bundle import Bundle
    from lgip_ort.engine import Engine
    from lgip_ort.parity import Comparison
    from lgip_ort.run import Plan, Run

# Imports of the runtime are inside the functions: --help answers at once.

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)
out, log = Console(), Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


class EngineName(StrEnum):
    """What computes the embeddings: the bundle on ONNX Runtime, the PyTorch original, or one after the other."""

    ort = "ort"
    torch = "torch"
    both = "both"


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    engine: Annotated[EngineName, typer.Option(help="What computes the embeddings.")] = EngineName.ort,
    model: Annotated[
        str | None,
        typer.Option(
            help="A key of the zoo: its bundle in artifacts/, else the committed one. Default: the committed tiny_clip."
        ),
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="A bundle's folder, instead of --model.")] = None,
    data: Annotated[str, typer.Option(help="demo, or coco:DIR[:split].")] = "demo",
    suite: Annotated[str, typer.Option(help="Which perturbations: paper.")] = "paper",
    available_only: Annotated[
        bool,
        typer.Option("--available-only", help="Score the images that are there, and say how many are not."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N images.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the drawn perturbations and of the bootstrap.")] = 0,
    provider: Annotated[str, typer.Option(help="auto, cpu or cuda. One that is named must be active.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images or texts a batch.")] = 64,
    max_skipped: Annotated[int, typer.Option(min=0, help="Unreadable images that are tolerated.")] = 0,
    runs: Annotated[Path, typer.Option("--out", help="Where run folders are made.")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Compute a run again that is there already.")] = False,
    as_json: AsJson = False,
) -> None:
    """Score a model over a suite of perturbed captions."""
    if context.invoked_subcommand is not None:
        return
    if model is not None and bundle is not None:
        raise UsageFault("--model and --bundle exclude each other")
    from lgip_ort.bundle import open_bundle
    from lgip_ort.dataset import open_dataset
    from lgip_ort.run import Plan
    from lgip_ort.table import build_table
    from models import zoo

    if bundle is None:
        bundle = zoo.find_bundle(model) if model else zoo.get("tiny_clip").committed_bundle
        assert bundle is not None
    opened = open_bundle(bundle)
    log.print(f"bundle {bundle}", markup=False)
    dataset = open_dataset(data, available_only)
    if dataset.missing:
        log.print(
            f"{len(dataset.missing):,} of {dataset.named:,} images of {dataset.name} are not there",
            markup=False,
        )
    if limit is not None:
        dataset = dataset.head(limit)
    plan = Plan(dataset, build_table(dataset.captions, suite, seed), suite, seed, batch_size, max_skipped)

    names = ("torch", "ort") if engine is EngineName.both else (engine.value,)
    try:
        made = [_execute(name, opened, plan, provider, runs, overwrite) for name in names]
    except RunFault as fault:
        if as_json:
            _print_json({"status": "failed", "error": str(fault)})
        raise
    if engine is EngineName.both:
        reference, candidate = made
        _report_comparison(reference, candidate, as_json)
    else:
        _report_run(made[0], as_json)


@app.command()
def compare(
    reference: Annotated[Path, typer.Argument(help="The run folder of what was chosen.")],
    candidate: Annotated[Path, typer.Argument(help="The run folder of what is to be deployed.")],
    as_json: AsJson = False,
) -> None:
    """Say whether the candidate's run kept the reference's profile."""
    from lgip_ort.run import open_run

    _report_comparison(open_run(reference), open_run(candidate), as_json)


def _engine(name: str, bundle: Bundle, provider: str, batch_size: int) -> Engine:
    if name == "ort":
        from lgip_ort.engine import OrtEngine

        return OrtEngine(bundle, provider, batch_size)
    try:
        from exporter.reference import TorchEngine
    except ImportError as error:
        raise UsageFault(f"--engine {name} needs PyTorch ({error}): pip install -e '.[export]'") from error
    return TorchEngine.from_bundle(bundle, batch_size, provider)


def _execute(name: str, bundle: Bundle, plan: Plan, provider: str, runs: Path, overwrite: bool) -> Run:
    from lgip_ort.report.html import write_report
    from lgip_ort.run import execute

    began = time.perf_counter()
    engine = _engine(name, bundle, provider, plan.batch_size)
    load = time.perf_counter() - began
    with _progress(name, plan) as progress:
        run = execute(engine, plan, runs, progress, overwrite, load)
    if not run.reused or not (run.folder / "report.html").exists():
        write_report(run)
    return run


@contextmanager
def _progress(name: str, plan: Plan) -> Iterator[Callable[[str, int], None]]:
    """Bars on stderr for images and texts; silent where stderr is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=log, transient=True, disable=not log.is_terminal) as bars:
        images = bars.add_task(f"{name} images", total=len(plan.dataset.images))
        texts = bars.add_task(f"{name} texts", total=None)
        tasks = {"images": images, "texts": texts}
        yield lambda stage, count: bars.advance(tasks[stage], count)


def _report_run(run: Run, as_json: bool) -> None:
    from lgip_ort.report import console, contract

    if as_json:
        _print_json(contract.summary(run))
    else:
        console.print_run(out, run)
        out.print(f"report     {run.folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1 if run.failed else 0)


def _report_comparison(reference: Run, candidate: Run, as_json: bool) -> None:
    from lgip_ort.parity import compare as compare_runs
    from lgip_ort.report import console

    for run in (reference, candidate):
        if run.failed:
            raise RunFault(f"{run.folder}: {run.stamp['error']}")
    comparison: Comparison = compare_runs(reference, candidate)
    if as_json:
        _print_json(comparison.summary())
    else:
        console.print_comparison(out, comparison)
    raise typer.Exit(0 if comparison.verdict == "equal" else 1)


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, indent=2, allow_nan=False))


def main() -> None:
    """Run the command; faults become one line on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # captions hold what a terminal's encoding may lack
    try:
        app()
    except (UsageFault, RunFault, OSError) as fault:
        log.print(f"error: {fault}", style="bold red", markup=False, soft_wrap=True)
        raise SystemExit(1 if isinstance(fault, RunFault) else 2) from None


if __name__ == "__main__":
    main()
