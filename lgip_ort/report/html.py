"""One run, or many beside each other, as one self-contained page: no script, no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from lgip_ort.atomic import replacing
from lgip_ort.errors import UsageFault
from lgip_ort.margins import Margins
from lgip_ort.metrics import ALL
from lgip_ort.parity import Comparison
from lgip_ort.report import charts, claims, many, names, sentence
from lgip_ort.report.contract import headline, padding_line
from lgip_ort.report.distribution import distribution
from lgip_ort.report.examples import EXAMPLES, disagreements, examples
from lgip_ort.report.page import render
from lgip_ort.run import Run

TILES = (
    ("E_inv", "paraphrase", "invariance error", "lower is better"),
    ("E_sens", "flip", "sensitivity gap", "higher is better"),
    ("PR", "flip", "positive rate", "higher is better, 0.5 is chance"),
)
SKIPPED = 100
"""Skipped images of a run that are listed."""
DISTRIBUTIONS = 4
"""Runs whose scores are drawn; the others would say the same again."""


@dataclass(frozen=True)
class Report:
    """What a report is about: runs over the same pairs, and comparisons among them."""

    runs: Sequence[Run]
    comparisons: Sequence[Comparison]

    @cached_property
    def board(self) -> list[many.Entry]:
        """The leaderboard."""
        return many.board(self.runs, self.comparisons)

    @cached_property
    def claims(self) -> list[claims.Claim]:
        """What the paper says of the order of models, on these runs."""
        return claims.judged(self.runs)

    def sentences(self) -> list[str]:
        """The outcome: a line a comparison, else a line a run."""
        if self.comparisons:
            return [sentence.of_comparison(comparison) for comparison in self.comparisons]
        return [sentence.of_run(run) for run in self.runs]


def report_on(runs: Sequence[Run], margins: Margins | None = None) -> Report:
    """A report on `runs`, those of one model, weights and arm compared.

    Raises UsageFault where two are not over the same pairs, naming the field that differs.
    """
    many.check(runs)
    return Report(runs, many.comparisons(runs, margins))


def write_report(run: Run) -> Path:
    """Write `report.html` into the run's folder and return its path."""
    return write_page(Report([run], []), run.folder / "report.html")


def write_verdict(comparison: Comparison) -> Path:
    """Write `verdict.html` into the candidate's folder and return its path."""
    runs = [comparison.reference, comparison.candidate]
    return write_page(Report(runs, [comparison]), comparison.candidate.folder / "verdict.html")


def write_page(report: Report, path: Path, speed: Path | None = None) -> Path:
    """Write the page to `path` and return it. `speed`: a speed.json, whose ratios are shown.

    Raises UsageFault where `speed` is none.
    """
    page = render("report.html.j2", **_values(report, None if speed is None else _speed(speed)))
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def _values(report: Report, speed: dict[str, Any] | None) -> dict[str, Any]:
    """What the template is filled with."""
    runs, first = report.runs, report.runs[0]
    alone = len(runs) == 1
    verdicts = [str(c.verdict) for c in report.comparisons]
    labels = names.labels(runs)
    positive, gaps = many.strata(runs, "PR", "flip"), many.strata(runs, "E_sens", "flip")
    gallery, examples_of = _gallery(report)
    return {
        "alone": alone,
        "first": first,
        "title": f"LGIP profile of {first.stamp['model']}" if alone else _title(report),
        "sentences": list(zip(report.sentences(), verdicts or [""] * len(runs), strict=True)),
        "kept": verdicts.count("equal"),
        "tiles": [(name, title, better, headline(first.profile(), name, kind)) for name, kind, title, better in TILES],
        "board": report.board,
        "frontier": ""
        if alone
        else Markup(charts.frontier_chart(sorted(report.board, key=lambda e: labels.index(e.label)))),
        "flips": Markup(charts.families_chart(positive, "positive rate (PR), higher is better", 0.5)),
        "gaps": Markup(charts.families_chart(gaps, "sensitivity gap (E_sens), higher is better", 0.0)),
        "strength": Markup(charts.strength_chart(positive)),
        "wrappers": Markup(charts.wrappers_chart(many.strata(runs, "E_inv", "paraphrase"))),
        "distributions": [
            (label, Markup(chart))
            for run, label in list(zip(runs, labels, strict=True))[:DISTRIBUTIONS]
            if (chart := charts.distribution_chart(distribution(run)))
        ],
        "undrawn": max(0, len(runs) - DISTRIBUTIONS),
        "undrawn_families": max(0, positive.filter(pl.col("stratum") == ALL)["family"].n_unique() - charts.MOST),
        "comparisons": [(c, names.comparison(c), Markup(charts.differences_chart(c))) for c in report.comparisons],
        "gallery": gallery,
        "families": sorted({e["family"] for e in gallery}),
        "examples_of": examples_of,
        "claims": report.claims if not alone else [],
        "profiles": [(label, run.profile().to_dicts()) for run, label in zip(runs, labels, strict=True)],
        "skipped": [
            (label, row)
            for run, label in zip(runs, labels, strict=True)
            for row in run.skipped().head(SKIPPED).to_dicts()
        ],
        "stamps": list(zip(labels, runs, strict=True)),
        "speed": speed,
        "padding_line": padding_line,
        "pairs_of": names.pairs_of,
        "ALL": ALL,
    }


def _title(report: Report) -> str:
    models = list(dict.fromkeys(run.stamp["model"] for run in report.runs))
    return f"LGIP: {', '.join(models[:4])}" + (f" and {len(models) - 4} more" if len(models) > 4 else "")


def _gallery(report: Report) -> tuple[list[dict[str, Any]], str]:
    """Examples, and how many there are that are not shown. On what engines disagree about, where any were compared."""
    found: list[dict[str, Any]] = []
    of = 0
    sources = report.comparisons or report.runs
    each = max(1, EXAMPLES // len(sources))
    for source in sources[:EXAMPLES]:
        rows, n = disagreements(source, each) if isinstance(source, Comparison) else examples(source, each)
        found += rows
        of += n
    if not found:
        return [], ""
    what = "flips that changed their side" if report.comparisons else "flips that are wrong"
    shown = sum(bool(row.get("changed", row["right"] is False)) for row in found)
    return found, f"{len(found)} pairs, one an image; among them {shown:,} of {of:,} {what}."


def _speed(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"ratios": list(found["ratios"]), "model": found["model"], "command": found["command"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageFault(f"{path}: not a speed.json of bench.py speed: {error}") from error
