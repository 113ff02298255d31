"""What was measured of a bundle's speed: tables for the terminal, and a page of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from lgip_ort.atomic import replacing, write_json
from lgip_ort.report.charts import ACCENT, INK, svg
from lgip_ort.report.console import new_table, print_table
from lgip_ort.report.page import render

Result = Mapping[str, Any]
"""The object of `bench.py speed --json`."""

CHARTS = (("images", "images/s"), ("texts", "texts/s"), ("run", "pairs/s, from files to scores"))
"""What a chart of rates shows, and its title."""

BUSY = 0.1
"""Cores that others use, from which on a page says so."""

WORDS = {"images": "images", "texts": "texts", "run": "whole runs", "share of roof": "share of the roof"}


def write_speed(result: Result, folder: Path) -> Path:
    """Write `speed.json` and `speed.html` into `folder` and return the path of the page."""
    write_json(folder / "speed.json", result)
    charts = [(title, Markup(rates_chart(result, what, title))) for what, title in CHARTS]
    charts.append(("share of the roof", Markup(roof_chart(result))))
    page = render(
        "speed.html.j2",
        result=result,
        charts=[(title, chart) for title, chart in charts if chart],
        rows=rows(result),
        loads=loads(result),
        busy=busy(result),
        WORDS=WORDS,
    )
    path = folder / "speed.html"
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def rows(result: Result) -> list[dict[str, str]]:
    """The cases in words: name, rate, latency (p50 / p95 of single ones, in ms), share of the roof, executed."""
    return [
        {
            "name": case["name"],
            "rate": f"{case['rate']:,.{1 if case['rate'] < 1000 else 0}f} {case['unit']}",
            "latency": _latency(case["latency"]),
            "share": "" if case["roof"] is None else f"{case['roof']['ratio']:.0%}",
            "executed": case["precision"]["executed"],
        }
        for case in result["cases"]
    ]


def loads(result: Result) -> list[str]:
    """What each bundle took to load, in a line."""
    lines = {}
    for case in result["cases"]:
        if (load := case["load"]) is not None:
            memory = "" if load["peak_bytes"] is None else f", {load['peak_bytes'] / 2**20:,.0f} MiB of memory at most"
            lines[case["provider"], case["precision"]["stored"]] = (
                f"{case['provider']} {case['precision']['stored']}: opened and checked in {load['open']:.2f} s, "
                f"engine built in {load['engine']:.2f} s, first batches in {load['first_batch']:.2f} s{memory}"
            )
    return list(lines.values())


def print_speed(console: Console, result: Result) -> None:
    """The cases, the ratios, and what they were measured on."""
    machine, data = result["machine"], result["data"]
    table = new_table(f"speed of {result['model']}", ("case",), ("rate", "p50 / p95", "of the roof"))
    table.caption = f"medians of {result['rounds']} rounds; every round runs every case once"
    last = None
    for row, case in zip(rows(result), result["cases"], strict=True):
        if last not in (None, (case["engine"], case["provider"], case["precision"])):
            table.add_section()
        last = (case["engine"], case["provider"], case["precision"])
        table.add_row(Text(row["name"]), row["rate"], row["latency"], row["share"])
    print_table(console, table)
    table = new_table("times as fast", ("case", "against"), ("ratio", "in the rounds"))
    for ratio in result["ratios"]:
        spread = f"{ratio['low']:.2f} .. {ratio['high']:.2f}"
        table.add_row(Text(ratio["case"]), Text(ratio["against"]), f"{ratio['ratio']:.2f}", spread)
    print_table(console, table)
    roofs = [f"{r['name'].removeprefix('roof ')}: {r['flops_per_second'] / 1e9:,.0f} GFLOP/s" for r in best(result)]
    lines = [
        *(f"roof       {line}" for line in roofs),
        *(f"load       {line}" for line in loads(result)),
        *(f"left out   {line}" for line in result["left_out"]),
        f"weights    {result['weights']}",
        f"data       {data['name']}, {data['images']:,} images, {data['captions']:,} captions; "
        "a text that occurs twice is encoded twice",
        f"machine    {machine['cpu']}, {machine['cores']} cores, {machine['system']}{busy(result)}",
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def busy(result: Result) -> str:
    """That others used the machine meanwhile, where they did: numbers are too low then, and not all by as much."""
    cores = result["machine"]["used_by_others"]
    return "" if cores is None or cores < BUSY else f"; BUSY: other processes used {cores} cores of it meanwhile"


def best(result: Result) -> list[Result]:
    """The fastest products of matrices, one for each device and precision."""
    return [roof for roof in result["roof"] if roof["best"]]


def rates_chart(result: Result, what: str, title: str) -> str:
    """Rates of the cases that do `what`, single images and texts apart, as SVG; empty where there is none."""
    cases = [case for case in result["cases"] if case["what"] == what and case["latency"] is None]
    return _bars([(_short(case), case["rate"]) for case in cases], title, ",.1f")


def roof_chart(result: Result) -> str:
    """Which share of the roof each case reaches, as SVG; empty where none is known."""
    cases = [case for case in result["cases"] if case["roof"] is not None and case["latency"] is None]
    bars = [(case["name"], case["roof"]["ratio"]) for case in cases]
    end = max([1.0, *(share for _, share in bars)])  # beyond the roof only where something else disturbed it
    return _bars(bars, "share of the fastest product of matrices", ".0%", alt.Scale(domain=[0, end]))


def _bars(bars: Sequence[tuple[str, float]], title: str, form: str, scale: alt.Scale | None = None) -> str:
    if not bars:
        return ""
    frame = pl.DataFrame(bars, schema=["name", "value"], orient="row")
    axis = alt.Axis(tickCount=5, format="%" if form.endswith("%") else ",~f")
    x = alt.X("value:Q", title=title, axis=axis, scale=scale or alt.Scale(zero=True))
    y = alt.Y("name:N", title=None, sort=frame["name"].to_list())
    base = alt.Chart(frame)
    bar = base.mark_bar(color=ACCENT, height=14).encode(x=x, y=y)
    label = base.mark_text(dx=4, align="left", fontSize=11, color=INK).encode(
        x=x, y=y, text=alt.Text("value:Q", format=form)
    )
    layers: Any = alt.layer(bar, label)
    return svg(layers.properties(width=460, height=alt.Step(24)))


def _short(case: Mapping[str, Any]) -> str:
    return str(case["name"].removeprefix(f"{case['what']} "))


def _latency(latency: Mapping[str, float] | None) -> str:
    return "" if latency is None else f"{latency['p50'] * 1000:.2f} / {latency['p95'] * 1000:.2f} ms"
