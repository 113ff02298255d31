"""The command: score a model's captions and say whether the artifact kept the original's profile.

    python bench.py --engine ort                      the demo: a trained model on ONNX Runtime
    python bench.py --engine both --model tiny_clip   the same pairs on PyTorch, and a verdict
    python bench.py compare RUN_A RUN_B               the verdict on two runs made before
    python bench.py report RUN...                     many runs on one page; also md, csv, json, junit
    python bench.py table --data coco:DIR --out FILE  only the pairs, without a model
    python bench.py speed                             how fast the artifact is, beside PyTorch and the machine's roof
    python bench.py doctor                            what this machine can do, and how to mend what it can't

Exit code 0: done, or equal; 1: a result that can't be trusted, drifted, or inconclusive; 2: usage or environment;
130, 143: interrupted.
"""

from __future__ import annotations

import io
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lgip_ort.errors import Interrupted, RunFault, UsageFault, did_you_mean
from lgip_ort.options import (
    AsJson,
    Columns,
    Data,
    EngineName,
    Format,
    LexiconFile,
    Limit,
    MarginsFile,
    Pool,
    Sample,
    Seed,
    SuiteName,
)

if TYPE_CHECKING:
    from lgip_ort.bundle import Bundle
    from lgip_ort.engine import Engine
    from lgip_ort.execute import Plan
    from lgip_ort.speed.cases import Rivals

# Imports of the runtime are inside the functions: --help answers at once.

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)
out, log = Console(emoji=False), Console(stderr=True, highlight=False, emoji=False)


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
    data: Data = "demo",
    columns: Columns = None,
    suite: SuiteName = None,
    paraphrases: Pool = "wrappers",
    lexicon: LexiconFile = None,
    table: Annotated[
        Path | None, typer.Option(help="Score the pairs of this file, made by `bench.py table`, instead of a suite's.")
    ] = None,
    available_only: Annotated[
        bool,
        typer.Option("--available-only", help="Score the images that are there, and say how many are not."),
    ] = False,
    limit: Limit = None,
    sample: Sample = None,
    seed: Seed = 0,
    provider: Annotated[
        str, typer.Option(help="auto, cpu, openvino, cuda or tensorrt. One that is named must be active.")
    ] = "auto",
    padding: Annotated[
        str,
        typer.Option(help="trained, or paper: to the longest text of a group, as the released LGIP scripts do."),
    ] = "trained",
    precision: Annotated[
        str | None, typer.Option(help="fp16, fp32 or int8. Default: the first of these that the bundle has.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Images, or texts of full length, a batch. Default: 16 on a CPU, 64 on a GPU."),
    ] = None,
    max_skipped: Annotated[int, typer.Option(min=0, help="Unreadable images that are tolerated.")] = 0,
    margins: MarginsFile = None,
    runs: Annotated[Path, typer.Option("--out", help="Where run folders are made.")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Compute a run again that is there already.")] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Only go on with a run that was cut short. Without it such a run is gone on with, too, "
            "and a new one is started where there is none.",
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(help="Spread the shards by Ray: the address of a cluster, auto for the one that runs, or local."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that score (implies --ray local).")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of each worker. Default: 1.")] = None,
    as_json: AsJson = False,
) -> None:
    """Score a model over a suite of perturbed captions."""
    if context.invoked_subcommand is not None:
        for name in context.params:
            source = context.get_parameter_source(name)
            if source is not None and source.name != "DEFAULT":
                raise UsageFault(f"options of {context.invoked_subcommand!r} go behind it; {name} stands before")
        return
    if workers is not None or cores is not None:
        ray = ray or "local"
    if model is not None and bundle is not None:
        raise UsageFault("--model and --bundle exclude each other")
    from lgip_ort.bundle import choose_precision, open_bundle
    from lgip_ort.engine import provider_for
    from lgip_ort.execute import Plan
    from lgip_ort.launch import How, launch, maker
    from lgip_ort.margins import read_margins
    from lgip_ort.padding import check_graphs, choose_padding, with_lengths
    from lgip_ort.pairs import Wanted, open_pairs
    from lgip_ort.provider import BATCH
    from lgip_ort.report.answers import answer_comparison, answer_run
    from lgip_ort.stored import store
    from models import zoo

    read = read_margins(margins)
    arm, stored = choose_padding(padding), choose_precision(precision) if precision is not None else None
    if bundle is None:
        bundle = zoo.find_bundle(model) if model is not None else zoo.get("tiny_clip").committed_bundle
        assert bundle is not None
    opened = open_bundle(bundle)
    names, device = ("torch", "ort") if engine is EngineName.both else (engine.value,), "cpu"
    if "ort" in names:  # before the original has run for hours
        device = provider_for(provider, opened.graph("vision", stored).precision).device
        check_graphs(opened, arm)
    elif stored not in (None, "fp32"):
        raise UsageFault(f"--engine torch is the fp32 original, --precision {stored} is of a bundle's graphs")
    made_by = f", {opened.manifest.exported_by}" if opened.manifest.adopted else ""
    log.print(f"bundle {bundle}{made_by}", markup=False)
    wanted = Wanted(data, columns, suite, paraphrases, lexicon, limit, sample, seed)
    dataset, parts, suite = open_pairs(wanted, available_only, table)
    if dataset.missing:
        there = f"{len(dataset.missing):,} of {dataset.named:,} images of {dataset.name} are not there"
        log.print(there, markup=False)
    parts = (with_lengths(part, dataset.captions, opened, arm) for part in parts)
    how = How(provider, stored, runs, overwrite, resume, ray, workers or 1, cores or 1)
    with tempfile.TemporaryDirectory(prefix="lgip-ort-") as folder:
        stored_table = store(parts, dataset.images, Path(folder) / "table.parquet")
        plan = Plan(dataset, stored_table, suite, seed, batch_size or BATCH[device], max_skipped, arm)
        made = []
        on = {name: how.beside() if name == "torch" and engine is EngineName.both else how for name in names}
        try:
            for name in names:
                made.append(launch(name, opened, plan, on[name], _original, _progress))
        except RunFault as fault:
            if as_json:
                _print_json({"status": "failed", "error": str(fault)})
            raise
    if engine is EngineName.both:
        reference, candidate = made
        engines = [maker(name, opened, plan, on[name], _original) for name in names]
        code = answer_comparison(out, reference, candidate, as_json, read, engines=engines)
    else:
        code = answer_run(out, made[0], as_json)
    raise typer.Exit(code)


@app.command()
def compare(
    reference: Annotated[Path, typer.Argument(help="The run folder of what was chosen.")],
    candidate: Annotated[Path, typer.Argument(help="The run folder of what is to be deployed.")],
    across_arms: Annotated[
        bool, typer.Option("--across-arms", help="Compare runs whose texts were padded in two ways (--padding).")
    ] = False,
    margins: MarginsFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether the candidate's run kept the reference's profile."""
    from lgip_ort.margins import read_margins
    from lgip_ort.report.answers import answer_comparison
    from lgip_ort.run import open_run

    read = read_margins(margins)
    runs = open_run(reference), open_run(candidate)
    raise typer.Exit(answer_comparison(out, *runs, as_json, read, across_arms))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, over the same pairs.")],
    to: Annotated[
        Path | None, typer.Option("--out", help="The file. Default: runs/report.html; other formats go to stdout.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="What is written.")] = Format.html,
    margins: MarginsFile = None,
    speed: Annotated[Path | None, typer.Option(help="A speed.json of bench.py speed, shown on the page.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Put runs side by side: models, precisions, engines, ways of padding; those of one model are compared.

    Exit code 0 and 1 as for `compare`: 1 where a comparison is not equal, or a run has failed.
    """
    from lgip_ort.atomic import replacing
    from lgip_ort.margins import read_margins
    from lgip_ort.report.formats import FORMATS
    from lgip_ort.report.html import report_on, write_page
    from lgip_ort.run import open_run

    if to is None and form is Format.html:
        to = Path("runs") / "report.html"
    if to is not None and to.exists() and not overwrite:
        raise UsageFault(f"{to} exists; --overwrite replaces it")
    if speed is not None and form is not Format.html:
        raise UsageFault("--speed is for --format html")
    read = read_margins(margins)
    once = {folder.resolve(): folder for folder in reversed(runs)}
    found = report_on([open_run(folder) for folder in reversed(once.values())], read)
    if to is None:
        sys.stdout.write(FORMATS[form.value](found))
    elif form is Format.html:
        log.print(f"report {write_page(found, to, speed)}", markup=False, soft_wrap=True)
    else:
        with replacing(to) as temporary:
            temporary.write_text(FORMATS[form.value](found), encoding="utf-8")
    raise typer.Exit(0 if all(c.verdict == "equal" for c in found.comparisons) else 1)


@app.command("table")
def make_table(
    data: Data = "demo",
    columns: Columns = None,
    suite: SuiteName = None,
    paraphrases: Pool = "wrappers",
    lexicon: LexiconFile = None,
    limit: Limit = None,
    sample: Sample = None,
    seed: Seed = 0,
    to: Annotated[
        Path | None, typer.Option("--out", help="Write the pairs there: FILE.parquet, or FILE.jsonl as others read it.")
    ] = None,
    show: Annotated[str | None, typer.Option(help="Print fifty pairs of this family.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the pairs of a suite alone: no model, no images."""
    from lgip_ort.pairs import Wanted, write_pairs
    from lgip_ort.report import console, contract

    if to is not None and to.exists() and not overwrite:
        raise UsageFault(f"{to} exists; --overwrite replaces it")
    wanted = Wanted(data, columns, suite, paraphrases, lexicon, limit, sample, seed)
    made = write_pairs(wanted, to)
    if show is not None and show not in (families := sorted({family for _, family in made.summary.families})):
        raise UsageFault(f"no pairs of family {show!r}{did_you_mean(show, families)}")
    if as_json:
        _print_json(contract.table_summary(made, to, show))
    else:
        console.print_pairs(out, made, to, show)


@app.command()
def speed(
    model: Annotated[
        str | None, typer.Option(help="A key of the zoo, as for a run. Default: the committed tiny_clip.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="A bundle's folder, instead of --model.")] = None,
    data: Data = "demo",
    available_only: Annotated[
        bool, typer.Option("--available-only", help="Use the images that are there, and the captions of all.")
    ] = False,
    provider: Annotated[
        list[str] | None, typer.Option(help="auto, cpu, openvino, cuda or tensorrt. Default: all that work here.")
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="fp16, fp32 or int8. Default: all that the bundle has.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=2, help="Images a batch. Default: 16 on a CPU, 64 on a GPU.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often every case is run.")] = 5,
    torch: Annotated[
        bool | None, typer.Option("--torch/--no-torch", help="Beside PyTorch. Default: where it is installed.")
    ] = None,
    as_json: AsJson = False,
    to: Annotated[
        Path | None, typer.Option("--out", help="Folder of speed.json and speed.html. Default: runs/MODEL/speed.")
    ] = None,
) -> None:
    """Say how fast the artifact is, beside PyTorch and beside what this machine can do at most."""
    if model is not None and bundle is not None:
        raise UsageFault("--model and --bundle exclude each other")
    from lgip_ort.bundle import open_bundle
    from lgip_ort.report.speed import print_speed, write_speed
    from lgip_ort.speed.measure import Asked, measure
    from models import zoo

    if bundle is None:
        bundle = zoo.find_bundle(model) if model is not None else zoo.get("tiny_clip").committed_bundle
        assert bundle is not None
    opened = open_bundle(bundle)
    log.print(f"bundle {bundle}", markup=False)
    asked = Asked(data, available_only, provider, precision, batch, rounds, torch)
    try:
        with log.status("") as status:
            result = measure(opened, asked, _rivals, status.update)
    except RunFault as fault:
        if as_json:
            _print_json({"status": "failed", "error": str(fault)})
        raise
    result["command"] = shlex.join(["python", "bench.py", *sys.argv[1:]])
    page = write_speed(result, to or Path("runs") / opened.manifest.model / "speed")
    if as_json:
        _print_json(result)
    else:
        print_speed(out, result)
        out.print(f"report     {page}", markup=False, highlight=False, soft_wrap=True)


def _rivals(bundle: Bundle, device: str) -> Rivals:
    try:
        from exporter.rivals import rivals
    except ImportError as error:
        raise UsageFault(f"to measure beside it needs PyTorch ({error}): pip install -e '.[export]'") from error
    return rivals(bundle, device)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can do, and how to mend what it can't."""
    from lgip_ort.doctor import examine, summary
    from lgip_ort.report import console

    findings = examine()
    if as_json:
        _print_json(summary(findings))
    else:
        console.print_findings(out, findings)
    raise typer.Exit(2 if any(finding.state == "broken" for finding in findings) else 0)


def _original(bundle: Bundle, plan: Plan, device: str) -> Callable[[], Engine]:
    try:
        from exporter.reference import TorchEngine
    except ImportError as error:
        raise UsageFault(f"--engine torch needs PyTorch ({error}): pip install -e '.[export]'") from error
    return partial(TorchEngine.open, bundle.folder.resolve(), plan.batch_size, device, plan.padding)


@contextmanager
def _progress(name: str, plan: Plan) -> Iterator[Callable[[str, int], None]]:
    """Bars on stderr for images and texts; silent where stderr is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=log, transient=True, disable=not log.is_terminal) as bars:
        images = bars.add_task(f"{name} images", total=len(plan.dataset.images))
        texts = bars.add_task(f"{name} texts", total=None)
        tasks = {"images": images, "texts": texts}
        yield lambda stage, count: bars.advance(tasks[stage], count)


def _print_json(data: dict[str, Any]) -> None:
    from lgip_ort.report.contract import print_json

    print_json(data)


def _stop(number: int, frame: object) -> None:
    raise Interrupted(number)


def main() -> None:
    """Run the command; faults become one line on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # captions hold what a terminal's encoding may lack
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        app()
    except Interrupted as stop:
        log.print("interrupted; finished shards are kept, the same command goes on with them", style="bold red")
        raise SystemExit(128 + stop.signal) from None
    except (UsageFault, RunFault, OSError) as fault:
        log.print(f"error: {fault}", style="bold red", markup=False, soft_wrap=True)
        raise SystemExit(1 if isinstance(fault, RunFault) else 2) from None
    except Exception:
        # Exit code 1 is a verdict: a fault of the program itself must not look like one.
        traceback.print_exc()
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
