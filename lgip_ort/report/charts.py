"""Charts as inline SVG: no script, no font, no network. Text takes the colour of the page around it.

Runs are told apart by colour and by shape, so that a chart can be read in grey, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl
import vl_convert

from lgip_ort.judge import in_margins
from lgip_ort.metrics import ALL
from lgip_ort.parity import Comparison
from lgip_ort.report import names
from lgip_ort.report.many import Entry
from lgip_ort.strength import BANDS

INK = "currentColor"
ACCENT = "#3b7dd8"
COLOURS = ["#3b7dd8", "#d9822b", "#2e9e6b", "#b0478c", "#7a6ee0", "#b8860b", "#1f9aa8", "#cc4b4b"]
SHAPES = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right", "triangle-left"]
MOST = 24
"""Rows that a chart shows; more can't be read."""
CUT = 3.0
"""Margins beyond which a difference is drawn at the edge."""


def families_chart(frame: pl.DataFrame, title: str, chance: float | None = None) -> str:
    """A metric by family with 95 % intervals, a row a family and a mark a run; empty where there is none.

    frame: rows of profiles with a column `run`. chance: where a dashed rule stands.
    """
    rows = frame.filter(pl.col("stratum") == ALL).with_columns(
        name=pl.when(pl.col("family") == ALL).then(pl.lit("all")).otherwise("family")
    )
    return _dots(rows, title, chance) if len(rows) else ""


def wrappers_chart(frame: pl.DataFrame) -> str:
    """E_inv by wrapper, the worst first; empty where there are no wrappers."""
    rows = frame.filter((pl.col("family") == "wrapper") & (pl.col("stratum") != ALL)).with_columns(name="stratum")
    rows = rows.sort("value", descending=True, maintain_order=True)
    return _dots(rows, "invariance error (E_inv), lower is better", 0.0) if len(rows) else ""


def strength_chart(frame: pl.DataFrame) -> str:
    """PR by strength of the flip, a line a run; empty where strength is not known."""
    rows = frame.filter((pl.col("family") == ALL) & pl.col("stratum").is_in(BANDS))
    if rows.is_empty():
        return ""
    x = alt.X("stratum:N", sort=list(BANDS), title="strength of the flip", axis=alt.Axis(labelAngle=0))
    y = alt.Y("value:Q", title="positive rate (PR)", scale=alt.Scale(domain=[0, 1]))
    base = alt.Chart(rows)
    line = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=_colour(rows))
    whisker = base.mark_rule(strokeWidth=2).encode(x=x, y="ci_low:Q", y2="ci_high:Q", color=_colour(rows))
    dot = base.mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, color=_colour(rows), shape=_shape(rows))
    return svg(alt.layer(_rule("y", 0.5), line, whisker, dot).properties(width=300, height=220))


def frontier_chart(board: Sequence[Entry]) -> str:
    """E_inv against E_sens, a point a run with its intervals; runs of one model and arm are joined by a line.

    Up and to the left is better. Empty where no run has both.
    """
    rows = pl.DataFrame(
        [
            {
                "run": e.label,
                "group": f"{e.run.stamp['model']} {e.run.stamp['padding']}",
                "x": e.e_inv["value"],
                "x_low": e.e_inv["ci_low"],
                "x_high": e.e_inv["ci_high"],
                "y": e.e_sens["value"],
                "y_low": e.e_sens["ci_low"],
                "y_high": e.e_sens["ci_high"],
            }
            for e in board
            if e.e_inv["n"] and e.e_sens["n"]
        ]
    )
    if rows.is_empty():
        return ""
    scale, axis = alt.Scale(zero=False, padding=24), alt.Axis(tickCount=5)
    x = alt.X("x:Q", title="invariance error (E_inv): less is better", scale=scale, axis=axis)
    y = alt.Y("y:Q", title="sensitivity gap (E_sens): more is better", scale=scale, axis=axis)
    base = alt.Chart(rows)
    colour, shape = _colour(rows), _shape(rows)
    line = base.mark_line(strokeWidth=1.5, color=INK, opacity=0.35).encode(x=x, y=y, detail="group:N")
    across = base.mark_rule(strokeWidth=2).encode(x=alt.X("x_low:Q"), x2="x_high:Q", y=y, color=colour)
    along = base.mark_rule(strokeWidth=2).encode(x=x, y=alt.Y("y_low:Q"), y2="y_high:Q", color=colour)
    dot = base.mark_point(filled=True, size=90, opacity=1).encode(x=x, y=y, color=colour, shape=shape)
    return svg(alt.layer(line, across, along, dot).properties(width=460, height=320))


def distribution_chart(counted: pl.DataFrame) -> str:
    """Shares of scores by kind of text, see `distribution.distribution`; empty where there is nothing."""
    if counted.is_empty():
        return ""
    kinds = counted["text"].unique(maintain_order=True).to_list()
    dashes = [[1, 0], [6, 3], [2, 2]][: len(kinds)]
    colour = alt.Color("text:N", title=None, scale=alt.Scale(domain=kinds, range=COLOURS[: len(kinds)]), legend=LEGEND)
    dash = alt.StrokeDash("text:N", title=None, scale=alt.Scale(domain=kinds, range=dashes), legend=LEGEND)
    chart = (
        alt.Chart(counted)
        .mark_line(strokeWidth=2, interpolate="step")
        .encode(
            x=alt.X("score:Q", title="score (cosine of image and text)", scale=alt.Scale(zero=False)),
            y=alt.Y("share:Q", title="share of texts", axis=alt.Axis(format="%", tickCount=4)),
            color=colour,
            strokeDash=dash,
        )
    )
    return svg(alt.layer(chart).properties(width=460, height=200))


def differences_chart(comparison: Comparison) -> str:
    """Every difference over its margin with its interval: inside the band, -1 to 1, it is equal.

    Whole families only, the farthest first; what lies beyond CUT margins is drawn at the edge.
    """
    rows = [r for r in comparison.rows if r.ci_low is not None and (r.stratum == ALL or r.verdict != "equal")]
    rows = sorted(rows, key=lambda r: -in_margins(max(abs(r.ci_low or 0.0), abs(r.ci_high or 0.0)), r.margin))[:MOST]
    if not rows:
        return ""
    frame = pl.DataFrame(
        {
            "name": [f"{r.metric}, {names.pairs_of(r.kind, r.family, r.stratum)}" for r in rows],
            "verdict": [str(r.verdict) for r in rows],
            **{
                column: [
                    max(-CUT, min(CUT, in_margins(value, r.margin))) for r, value in zip(rows, values, strict=True)
                ]
                for column, values in (
                    ("delta", [r.delta for r in rows]),
                    ("low", [r.ci_low or 0.0 for r in rows]),
                    ("high", [r.ci_high or 0.0 for r in rows]),
                )
            },
        }
    )
    verdicts = ["equal", "inconclusive", "drifted"]
    colour = alt.Color(
        "verdict:N",
        scale=alt.Scale(domain=verdicts, range=["#2e9e6b", "#b8860b", "#cc4b4b"]),
        legend=LEGEND,
        title=None,
    )
    shape = alt.Shape(
        "verdict:N", scale=alt.Scale(domain=verdicts, range=["circle", "diamond", "square"]), legend=LEGEND, title=None
    )
    x = alt.X("delta:Q", title="difference, in margins", scale=alt.Scale(domain=[-CUT, CUT]))
    y = alt.Y("name:N", sort=frame["name"].to_list(), title=None)
    base = alt.Chart(frame)
    band = alt.Chart(pl.DataFrame({"from": [-1.0], "to": [1.0]})).mark_rect(color=INK, opacity=0.08)
    whisker = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour)
    dot = base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, shape=shape)
    layers = alt.layer(band.encode(x="from:Q", x2="to:Q"), _rule("x", 0.0), whisker, dot)
    return svg(layers.properties(width=320, height=alt.Step(22)))


def _dots(rows: pl.DataFrame, title: str, chance: float | None) -> str:
    """A row a name, in it a mark and a whisker a run; where there is one run, its value is written beside it."""
    runs = rows["run"].unique(maintain_order=True).to_list()
    order = rows["name"].unique(maintain_order=True).to_list()[:MOST]
    rows = rows.filter(pl.col("name").is_in(order))
    axis = alt.Axis(tickCount=5)  # more would run into each other
    x = alt.X("value:Q", title=title, scale=alt.Scale(zero=True), axis=axis)
    y = alt.Y("name:N", title=None, sort=order)
    side: dict[str, Any] = {} if len(runs) == 1 else {"yOffset": alt.YOffset("run:N", sort=runs)}
    colour: Any = alt.value(ACCENT) if len(runs) == 1 else _colour(rows)
    shape: Any = alt.value("circle") if len(runs) == 1 else _shape(rows)
    base = alt.Chart(rows)
    whisker = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("ci_low:Q", title=title, axis=axis), x2="ci_high:Q", y=y, color=colour, **side
    )
    dot = base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, shape=shape, **side)
    layers = [whisker, dot]
    if len(runs) == 1:
        text = alt.Text("value:Q", format=".3f")
        layers.append(base.mark_text(dy=-11, fontSize=11, color=INK).encode(x=x, y=y, text=text))
    if chance is not None:
        layers.insert(0, _rule("x", chance))
    step = 38 if len(runs) == 1 else 14 * len(runs) + 14
    height: Any = alt.Step(step) if len(runs) == 1 else step * len(order)
    return svg(alt.layer(*layers).properties(width=300, height=height))


LEGEND = alt.Legend(orient="bottom", columns=1, labelLimit=420, symbolSize=80, title=None)


def _scale(rows: pl.DataFrame, marks: list[str]) -> alt.Scale:
    runs = rows["run"].unique(maintain_order=True).to_list()
    return alt.Scale(domain=runs, range=[marks[n % len(marks)] for n in range(len(runs))])


def _colour(rows: pl.DataFrame) -> Any:
    return alt.Color("run:N", scale=_scale(rows, COLOURS), legend=_legend(rows), title=None)


def _shape(rows: pl.DataFrame) -> Any:
    return alt.Shape("run:N", scale=_scale(rows, SHAPES), legend=_legend(rows), title=None)


def _legend(rows: pl.DataFrame) -> alt.Legend | None:
    return LEGEND if rows["run"].n_unique() > 1 else None


def _rule(axis: str, value: float) -> alt.Chart:
    rule = alt.Chart(pl.DataFrame({"value": [value]})).mark_rule(strokeDash=[4, 4], color=INK, opacity=0.5)
    return rule.encode(x="value:Q") if axis == "x" else rule.encode(y="value:Q")


ROOM = {"left": 32, "right": 32, "top": 5, "bottom": 5}


def svg(chart: Any) -> str:
    """The chart as SVG, in the page's colours.

    There is room at its sides: a browser's font may be wider than the one that the labels were measured with.
    """
    axis = {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": INK,
        "tickColor": INK,
        "gridColor": INK,
        "gridOpacity": 0.12,
    }
    styled = (
        chart.configure(background="transparent", font="system-ui, sans-serif", padding=ROOM)
        .configure_axis(
            **axis,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=260,
            titlePadding=10,
            labelOverlap="greedy",
            labelSeparation=12,
        )
        .configure_legend(labelColor=INK, labelFontSize=12)
        .configure_view(stroke=None)
    )
    return str(vl_convert.vegalite_to_svg(styled.to_json()))
