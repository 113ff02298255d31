"""Tables for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lgip_ort.doctor import Finding
from lgip_ort.metrics import ALL
from lgip_ort.pairs import Made
from lgip_ort.parity import Comparison
from lgip_ort.report.contract import padding_line
from lgip_ort.run import Run
from lgip_ort.table_file import EXAMPLES

COLOURS = {"equal": "green", "drifted": "red", "inconclusive": "yellow"}
FIRST = ("E_inv", "E_sens", "PR")
"""Metrics with a block of a table to themselves; the others, retrieval and scale, share one."""
STATES = {"works": "green", "missing": "yellow", "broken": "red"}


def print_run(console: Console, run: Run) -> None:
    """The profile of a run, what it was made of, and where it lies."""
    stamp = run.stamp
    provider, precision, data = stamp["provider"], stamp["precision"], stamp["dataset"]
    table = new_table(f"LGIP profile of {stamp['model']}", ("metric", "pairs of"), ("value", "95 % interval", "n"))
    table.caption = "↑ higher is better, ↓ lower is better"
    last = None
    for row in run.profile().iter_rows(named=True):
        block = (row["metric"], row["kind"]) if row["metric"] in FIRST else ()
        if last not in (None, block):
            table.add_section()
        last = block
        table.add_row(
            f"{row['metric']} {'↑' if row['higher_is_better'] else '↓'}",
            Text(
                _pairs_of(row["kind"], row["family"], row["stratum"]),
                style="bold" if row["family"] == row["stratum"] == ALL else "",
            ),
            f"{row['value']:.4f}",
            _interval(row["ci_low"], row["ci_high"]),
            f"{row['n']:,}",
        )
    print_table(console, table)
    missing = f", {data['missing']:,} of {data['named']:,} not there" if data["missing"] else ""
    lines = [
        f"engine     {stamp['engine']}, {provider['active']} (asked: {provider['asked']}), "
        f"{precision['asked']} executed as {precision['executed']}",
        f"padding    {padding_line(stamp)}",
        f"weights    {run.weights}",
        f"data       {data['name']}, {stamp['n']['images']:,} images, {data['captions']:,} captions{missing}",
        f"pairs      {stamp['n']['effective']:,} of {stamp['n']['original']:,} scored, "
        f"{stamp['n']['skipped']} images skipped",
        f"seconds    {stamp['seconds']['total']:.1f}" + (" (an earlier run, shown again)" if run.reused else ""),
        f"run        {run.folder}",
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    for row in run.skipped().head(10).iter_rows(named=True):
        console.print(Text(f"skipped    {row['path']}: {row['reason']}", style="yellow"), soft_wrap=True)
    if "error" in stamp:
        console.print(Text(f"FAILED     {stamp['error']}", style="bold red"), soft_wrap=True)


def print_comparison(console: Console, comparison: Comparison, page: Path | None = None) -> None:
    """Every row behind the verdict, the pairs whose sign changed, the steps to blame, the page, and the verdict."""
    reference, candidate = comparison.reference.stamp, comparison.candidate.stamp
    table = new_table(
        f"{candidate['model']}: {_engine(candidate)} against {_engine(reference)}",
        ("metric", "pairs of"),
        ("reference", "delta, 95 %", "margin"),
    )
    table.add_column("verdict")
    # Eighty columns hold the families; single wrappers are shown where they are not equal, and in --json.
    shown = [row for row in comparison.rows if row.stratum == ALL or row.verdict != "equal"]
    for row in shown:
        table.add_row(
            row.metric,
            Text(_pairs_of(row.kind, row.family, row.stratum)),
            f"{row.reference:.4f}",
            _interval(row.ci_low, row.ci_high, "+.0e"),
            f"{row.margin:.4f}",
            Text(row.verdict, style=COLOURS[row.verdict]),
        )
    finer = len(comparison.rows) - len(shown)
    table.caption = f"and {finer} finer rows, all equal" if finer else None
    if comparison.left_out:
        few = f"{comparison.left_out} finer rows of too few images left out"
        table.caption = f"{table.caption}; {few}" if finer else few
    print_table(console, table)
    needed = max((row.images_needed or 0 for row in comparison.rows), default=0)
    if needed:
        console.print(Text(f"the inconclusive rows would take about {needed:,} images to settle"), soft_wrap=True)
    cosine = ", ".join(
        f"{k.replace('_', ' ')} {v:.6f}" for k, v in comparison.embedding_cosine.items() if v is not None
    )
    console.print(
        Text(f"cosine of embeddings: {cosine}; largest difference of a score: {comparison.max_ds:.1e}"),
        soft_wrap=True,
    )
    console.print(Text(f"weights: {comparison.candidate.weights}"), soft_wrap=True)
    noise = next((row.noise for row in comparison.rows if row.metric == "E_inv"), None)
    if noise is not None:
        console.print(Text(f"noise floor: the same text, encoded twice, differs by {noise:.1e} of a score on average"))
    against = "" if candidate["padding"] == reference["padding"] else f", against {padding_line(reference)}"
    console.print(Text(f"padding: {padding_line(candidate)}{against}"), soft_wrap=True)
    console.print(Text(f"sign changes: {len(comparison.sign_changes)} of {comparison.flips} flips"))
    for pair in comparison.sign_changes.head(5).iter_rows(named=True):
        before, after = pair["s"] - pair["s_perturbed"], pair["s_candidate"] - pair["s_perturbed_candidate"]
        line = f"  image {pair['image_id']}: {pair['text']!r} / {pair['perturbed']!r}: {before:+.5f} -> {after:+.5f}"
        console.print(Text(line), soft_wrap=True)
    for step in comparison.blame or []:
        line = f"{step.tower} {step.step}: {step.differing:.0%} of {step.compared} differ; {step.found}"
        line = f"  {line}" if not step.to_blame else f"  {line}  <- to blame"
        console.print(Text(line, style="bold" if step.to_blame else ""), soft_wrap=True)
    if page is not None:
        console.print(Text(f"report: {page}"), soft_wrap=True)
    console.print(Text(verdict_line(comparison), style=f"bold {COLOURS[comparison.verdict]}"), soft_wrap=True)


def verdict_line(comparison: Comparison) -> str:
    """The comparison in one line: what a log, a badge or a commit status has room for."""
    reference, candidate = comparison.reference.stamp, comparison.candidate.stamp
    within = sum(row.verdict == "equal" for row in comparison.rows)
    return (
        f"verdict: {comparison.verdict} ({candidate['model']}, {_engine(candidate)} against {_engine(reference)}: "
        f"{within} of {len(comparison.rows)} rows within their margins, {reference['n']['images']:,} images)"
    )


def print_findings(console: Console, findings: list[Finding]) -> None:
    """What was found on a machine, a line each, and below it how to mend what does not work."""
    for finding in findings:
        line = Text(f"{finding.state:<9}", style=STATES[finding.state])
        console.print(line.append(f"{finding.what}: {finding.found}", style=""), soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':<9}  → {finding.remedy}"), soft_wrap=True)


def print_pairs(console: Console, made: Made, path: Path | None, show: str | None) -> None:
    """What a table holds: counts by family, and five pairs of each, or fifty of the family `show`."""
    summary, dataset = made.summary, made.dataset
    if show is None:
        table = new_table(f"suite {made.suite} on {dataset.name}", ("kind", "family"), ("pairs", "a caption"))
        captions = max(1, len(dataset.captions))
        for (kind, family), n in sorted(summary.families.items()):
            table.add_row(kind, Text(family), f"{n:,}", f"{n / captions:.3f}")
        print_table(console, table)
        flips, others = (f"{n / captions:.1%}" for n in (summary.flipped, summary.reworded))
        line = f"{flips} of {captions:,} captions have a flip, {others} a paraphrase other than a wrapper"
        console.print(Text(line), soft_wrap=True)
    for (kind, family), rows in sorted(summary.examples.items()):
        if show in (None, family):
            console.print(Text(f"\n{kind}: {family}", style="bold"))
            for text, perturbed in rows.head(5 if show is None else EXAMPLES).select("text", "perturbed").iter_rows():
                console.print(Text(f"  {text.strip()}\n    {perturbed.strip()}"), soft_wrap=True)
    console.print(Text(f"\ntable {summary.sha256[:16]}" + (f" in {path}" if path else "")), soft_wrap=True)


def new_table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left", box=box.SIMPLE_HEAD)
    table.pad_edge = False
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Whole, whatever the width: a pipe has 80 columns by default, and a cut number or verdict is none."""
    table.width = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.print(table, soft_wrap=True)


def _engine(stamp: dict[str, Any]) -> str:
    return f"{stamp['engine']} {stamp['provider']['active']} {stamp['precision']['asked']}"


def _pairs_of(kind: str, family: str, stratum: str) -> str:
    """`flip`, `flip: colour`, or for one wrapper its template."""
    if family in (ALL, kind):
        name = f"{kind}, all" if family == ALL else kind
        return name if stratum == ALL else f"  {stratum}"
    return f"  {family}" if stratum == ALL else f"    {stratum}"


def _interval(low: float | None, high: float | None, form: str = ".4f") -> str:
    return "too few images" if low is None or high is None else f"{low:{form}} .. {high:{form}}"
