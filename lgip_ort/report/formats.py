"""A report for pull requests (Markdown), sheets (CSV), programs (JSON) and CI (JUnit XML)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

import polars as pl

from lgip_ort.parity import Row
from lgip_ort.report import names, sentence
from lgip_ort.report.contract import summary
from lgip_ort.report.html import Report


def markdown(report: Report) -> str:
    """The verdict, the leaderboard, and the rows that are not equal: what a comment on a pull request has room for."""
    lines = [f"**{_cell(line)}**" for line in report.sentences()]
    lines += ["", "| run | E_inv ↓ | E_sens ↑ | PR ↑ | R@1 ↑ | verdict |", "|---|---|---|---|---|---|"]
    for entry in report.board:
        cells = [_value(m) for m in (entry.e_inv, entry.e_sens, entry.pr, entry.recall)]
        lines.append(f"| {_cell(entry.label)} | {' | '.join(cells)} | {entry.verdict} |")
    for comparison in report.comparisons:
        shown = [row for row in comparison.rows if row.verdict != "equal"]
        if shown:
            lines += [
                "",
                "| metric | pairs of | reference | difference, 95 % | margin | verdict |",
                "|---|---|---|---|---|---|",
            ]
            lines += [
                f"| {row.metric} | {_cell(names.pairs_of(row.kind, row.family, row.stratum))} | {row.reference:.4f} | "
                f"{_interval(row)} | {row.margin:.4f} | {row.verdict} |"
                for row in shown
            ]
    return "\n".join(lines) + "\n"


def csv(report: Report) -> str:
    """Every number of every run and of every comparison, a row each."""
    runs = [
        run.profile().select(
            pl.lit("run").alias("of"), pl.lit(str(run.folder)).alias("run"), pl.lit(None, pl.String).alias("reference"),
            "metric", "kind", "family", "stratum", "value", "ci_low", "ci_high", "n",
            pl.lit(None, pl.Float64).alias("margin"), pl.lit(None, pl.String).alias("verdict"),
        )
        for run in report.runs
    ]  # fmt: skip
    compared = [
        pl.DataFrame(
            {
                "of": "difference", "run": str(c.candidate.folder), "reference": str(c.reference.folder),
                "metric": [r.metric for r in c.rows], "kind": [r.kind for r in c.rows],
                "family": [r.family for r in c.rows], "stratum": [r.stratum for r in c.rows],
                "value": [r.delta for r in c.rows], "ci_low": [r.ci_low for r in c.rows],
                "ci_high": [r.ci_high for r in c.rows], "n": pl.Series([r.n for r in c.rows], dtype=pl.UInt64),
                "margin": [r.margin for r in c.rows], "verdict": [str(r.verdict) for r in c.rows],
            },
            schema_overrides={"ci_low": pl.Float64, "ci_high": pl.Float64},
        )
        for c in report.comparisons
        if c.rows
    ]  # fmt: skip
    return pl.concat(runs + compared, how="vertical").write_csv()


def as_json(report: Report) -> str:
    """One object: `runs` and `comparisons` as `--json` prints them, and `claims`."""
    found = {
        "runs": [summary(run) for run in report.runs],
        "comparisons": [comparison.summary() for comparison in report.comparisons],
        "claims": [vars(claim) for claim in report.claims],
    }
    return json.dumps(found, indent=2, allow_nan=False) + "\n"


def junit(report: Report) -> str:
    """A test suite a comparison, a test case a row, failed where it is not equal; runs that failed are failed cases."""
    root = ElementTree.Element("testsuites", name="lgip-ort")
    alone = ElementTree.SubElement(root, "testsuite", name="runs")
    for run, label in zip(report.runs, names.labels(report.runs), strict=True):
        case = ElementTree.SubElement(alone, "testcase", classname="runs", name=_xml(label))
        if run.failed:
            _fail(case, "failed", str(run.stamp.get("error", run.stamp["status"])))
    _count(alone)
    for comparison in report.comparisons:
        name = _xml(names.comparison(comparison))
        suite = ElementTree.SubElement(root, "testsuite", name=name)
        for row in comparison.rows:
            what = f"{row.metric}, {names.pairs_of(row.kind, row.family, row.stratum)}"
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=_xml(what))
            if row.verdict != "equal":
                needed = f"; about {row.images_needed:,} images would settle it" if row.images_needed else ""
                _fail(case, row.verdict, f"difference {_interval(row)}, margin {row.margin:.4f}{needed}")
        if not comparison.rows:
            _fail(ElementTree.SubElement(suite, "testcase", classname=name, name="pairs"), "inconclusive", "no pairs")
        ElementTree.SubElement(suite, "system-out").text = _xml(sentence.of_comparison(comparison))
        _count(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


FORMATS: Mapping[str, Callable[[Report], str]] = {"md": markdown, "csv": csv, "json": as_json, "junit": junit}


def _fail(case: ElementTree.Element, kind: str, message: str) -> None:
    ElementTree.SubElement(case, "failure", type=kind, message=_xml(message)).text = _xml(message)


def _count(suite: ElementTree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(len([case for case in cases if case.find("failure") is not None])))
    suite.set("errors", "0")


def _xml(text: str) -> str:
    """`text` without the letters that XML 1.0 has no way to write."""
    return "".join(
        letter
        for letter in text
        if letter in "\t\n\r" or " " <= letter <= "\ud7ff" or "\ue000" <= letter <= "\ufffd" or letter >= "\U00010000"
    )


def _cell(text: str) -> str:
    """A cell of a table: a bar would end it, and markup would be markup."""
    for mark in "\\`*_{}[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _value(metric: Mapping[str, Any]) -> str:
    if metric["value"] is None:
        return ""
    interval = "" if metric["ci_low"] is None else f" ({metric['ci_low']:.4f} .. {metric['ci_high']:.4f})"
    return f"{metric['value']:.4f}{interval}"


def _interval(row: Row) -> str:
    return "too few images" if row.ci_low is None else f"{row.ci_low:+.1e} .. {row.ci_high:+.1e}"
