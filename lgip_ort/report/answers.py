"""What a command answers of a run or a comparison: one object or tables, where the page lies, and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from lgip_ort import blame
from lgip_ort.engine import Engine
from lgip_ort.errors import RunFault
from lgip_ort.margins import Margins
from lgip_ort.parity import compare
from lgip_ort.report import console, contract
from lgip_ort.report.html import write_verdict
from lgip_ort.run import Run


def answer_run(out: Console, run: Run, as_json: bool) -> int:
    """Print a run; 1 where it has failed, else 0."""
    if as_json:
        contract.print_json(contract.summary(run))
    else:
        console.print_run(out, run)
        out.print(f"report     {run.folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    return 1 if run.failed else 0


def answer_comparison(
    out: Console,
    reference: Run,
    candidate: Run,
    as_json: bool,
    margins: Margins,
    across_arms: bool = False,
    engines: Sequence[Callable[[], Engine]] = (),
) -> int:
    """Compare two runs and print the verdict; 0 where it is equal, else 1.

    `engines` builds both: then the verdict has a page, and where it is not equal the step is found where they part.
    Raises RunFault where a run has failed, UsageFault where the two can't be compared.
    """
    for run in (reference, candidate):
        if run.failed:
            if as_json:
                contract.print_json({"status": "failed", "error": run.stamp["error"]})
            raise RunFault(f"{run.folder}: {run.stamp['error']}")
    comparison = compare(reference, candidate, across_arms, margins)
    if engines and comparison.verdict != "equal":
        theirs, ours = (make() for make in engines)
        comparison = replace(comparison, blame=blame.find(theirs, ours, reference))
    page = write_verdict(comparison) if engines else None
    if as_json:
        contract.print_json(comparison.summary() | {"report": None if page is None else str(page)})
    else:
        console.print_comparison(out, comparison, page)
    return 0 if comparison.verdict == "equal" else 1
