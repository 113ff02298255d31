"""The outcome in a sentence or two that need no glossary."""

from __future__ import annotations

import math

from lgip_ort.judge import in_margins
from lgip_ort.parity import Comparison
from lgip_ort.report import names
from lgip_ort.report.contract import headline
from lgip_ort.run import Run


def of_run(run: Run) -> str:
    """How often the true caption wins, and how rewording compares with falsifying."""
    profile = run.profile()
    positive, moved, gap = (
        headline(profile, *of) for of in (("PR", "flip"), ("E_inv", "paraphrase"), ("E_sens", "flip"))
    )
    model = run.stamp["model"]
    if positive["n"] == moved["n"] == 0:
        return f"Nothing was scored: the run of {model} has no pairs."
    found = []
    if positive["n"]:
        share = f"in {100 * positive['value']:.1f} % of {positive['n']:,} cases; chance is 50 %."
        found.append(f"{model} scores the true caption above the falsified one {share}")
    if moved["n"]:
        line = f"Rewording a caption moves its score by {moved['value']:.4f} on average"
        if gap["n"] and gap["value"] > moved["value"] > 0:
            times = f"{gap['value'] / moved['value']:.1f} times as much"
            line += f", falsifying it lowers the score by {gap['value']:.4f}: {times}"
        elif gap["n"]:
            line += f", falsifying it changes the score by {-gap['value']:+.4f}: no more than rewording does"
        found.append(f"{line}.")
    return " ".join(found)


def of_comparison(comparison: Comparison) -> str:
    """Whether the candidate kept the profile; where it did not, by what and at which step."""
    who, whom = names.candidate(comparison), names.original(comparison.reference.stamp)
    rows = comparison.rows
    within = sum(row.verdict == "equal" for row in rows)
    if comparison.verdict == "equal":
        return f"{_upper(who)} behaves like {whom}: all {len(rows)} differences lie within their margins."
    if comparison.verdict == "drifted":
        worst = max((r for r in rows if r.verdict == "drifted"), key=lambda r: abs(in_margins(r.delta, r.margin)))
        times = abs(in_margins(worst.delta, worst.margin))
        far = "where none is allowed" if math.isinf(times) else f"{times:.1f} times its margin"
        return (
            f"{_upper(who)} does not behave like {whom}: {names.metric_of(worst)} is off by {worst.delta:+.4f}, {far}; "
            f"{within} of {len(rows)} differences lie within theirs.{_blame(comparison)}"
        )
    if not rows:
        return f"Nothing was compared: {who} and {whom} share no pairs."
    open_rows = [row for row in rows if row.verdict == "inconclusive"]
    needed = max((row.images_needed or 0 for row in open_rows), default=0)
    more = f" About {needed:,} images would settle it." if needed else ""
    return (
        f"Whether {who} behaves like {whom} is not settled: {within} of {len(rows)} differences lie within their "
        f"margins, the others may or may not, {names.metric_of(open_rows[0])} among them.{more}{_blame(comparison)}"
    )


def _blame(comparison: Comparison) -> str:
    steps = [f"{step.step} ({step.tower})" for step in comparison.blame or [] if step.to_blame]
    if steps:
        return f" What differs first: {', '.join(steps)}."
    cosine = comparison.embedding_cosine
    known = {tower: cosine[f"{tower}_min"] for tower in ("image", "text") if cosine[f"{tower}_min"] is not None}
    if not known:
        return ""
    tower = min(known, key=lambda name: known[name] or 0.0)
    return f" The {tower} embeddings are the farther ones: least cosine {known[tower]:.6f}."


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
