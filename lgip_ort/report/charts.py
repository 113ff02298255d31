"""Charts as inline SVG: no script, no font, no network. Text takes the colour of the page around it."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl
import vl_convert

from lgip_ort.metrics import ALL

INK = "currentColor"
ACCENT = "#3b7dd8"


def flips_chart(profile: pl.DataFrame) -> str:
    """PR and E_sens by flip family with 95 % intervals, as two SVGs; empty where the profile has no flips."""
    rows = profile.filter((pl.col("kind") == "flip") & (pl.col("stratum") == ALL)).with_columns(
        family=pl.when(pl.col("family") == ALL).then(pl.lit("all flips")).otherwise("family")
    )
    if rows.is_empty():
        return ""
    order = rows.filter(pl.col("metric") == "PR")["family"].to_list()
    positive = _dots(
        rows.filter(pl.col("metric") == "PR"),
        "positive rate (PR), higher is better",
        order,
        [0, 1],
        chance=0.5,
    )
    gap = _dots(
        rows.filter(pl.col("metric") == "E_sens"),
        "sensitivity gap (E_sens), higher is better",
        order,
        None,
        chance=0.0,
    )
    return svg(positive) + svg(gap)  # two pictures: side by side where there is room, below each other on a phone


def wrappers_chart(profile: pl.DataFrame) -> str:
    """E_inv by wrapper with 95 % intervals, as SVG; empty where the profile has no wrappers."""
    rows = profile.filter((pl.col("family") == "wrapper") & (pl.col("stratum") != ALL)).with_columns(family="stratum")
    if rows.is_empty():
        return ""
    order = rows.sort("value", descending=True)["family"].to_list()
    return svg(_dots(rows, "invariance error (E_inv), lower is better", order, None, chance=0.0))


def _dots(rows: pl.DataFrame, title: str, order: list[str], domain: list[float] | None, chance: float) -> Any:
    """A dot and a whisker a row; a dashed rule marks chance, or zero."""
    scale = alt.Scale(domain=domain) if domain else alt.Scale(zero=True)
    axis = alt.Axis(tickCount=5)  # more would run into each other
    x = alt.X("value:Q", title=title, scale=scale, axis=axis)
    y = alt.Y("family:N", title=None, sort=order)
    base = alt.Chart(rows)
    label = (
        alt.Chart(rows)
        .mark_text(dy=-11, fontSize=11, color=INK)
        .encode(x=x, y=y, text=alt.Text("value:Q", format=".3f"))
    )
    whisker = base.mark_rule(strokeWidth=2, color=ACCENT).encode(
        x=alt.X("ci_low:Q", scale=scale, title=title, axis=axis), x2="ci_high:Q", y=y
    )
    dot = base.mark_point(filled=True, size=70, opacity=1, color=ACCENT).encode(x=x, y=y)
    rule = (
        alt.Chart(pl.DataFrame({"value": [chance]}))
        .mark_rule(strokeDash=[4, 4], color=INK, opacity=0.5)
        .encode(x="value:Q")
    )
    return alt.layer(rule, whisker, dot, label).properties(width=300, height=alt.Step(38))


ROOM = {"left": 32, "right": 32, "top": 5, "bottom": 5}


def svg(chart: alt.LayerChart) -> str:
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
        .configure_axis(**axis, labelFontSize=12, titleFontSize=12, titleFontWeight="normal", labelLimit=260)
        .configure_view(stroke=None)
    )
    return str(vl_convert.vegalite_to_svg(styled.to_json()))
