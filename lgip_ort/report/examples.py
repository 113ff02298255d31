"""Pairs to look at: those that went most wrong, or on which two engines disagree most, with their pictures."""

from __future__ import annotations

import base64
import difflib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup, escape

from lgip_ort.errors import UsageFault
from lgip_ort.image import ImageFault, read_image
from lgip_ort.parity import Comparison, scored_by_both
from lgip_ort.run import Run, read_frame

EXAMPLES = 24
THUMBNAIL = 240  # pixels of the longest side
LONGEST = 600  # letters of a text


def examples(run: Run, count: int = EXAMPLES) -> tuple[list[dict[str, Any]], int]:
    """The pairs that went most wrong, and how many flips are wrong in all.

    Worst first, one an image: flips by gap, then paraphrases by error.
    """
    worst: pl.DataFrame | None = None
    wrong = 0
    for part in run.parts():
        part = part.with_columns(gap=pl.col("s") - pl.col("s_perturbed"))
        wrong += part.filter((pl.col("kind") == "flip") & (pl.col("gap") <= 0)).height
        worst = _worst(part if worst is None else pl.concat([worst, part]), count)
    if worst is None:
        return [], 0
    rows = [
        row
        | {"scores": [("", row["s"], row["s_perturbed"])], "right": row["gap"] > 0 if row["kind"] == "flip" else None}
        for row in worst.iter_rows(named=True)
    ]
    return _shown(run, rows), wrong


def disagreements(comparison: Comparison, count: int = EXAMPLES) -> tuple[list[dict[str, Any]], int]:
    """The pairs on which reference and candidate disagree most, and how many flips changed their sign.

    One an image: those that changed their sign first, then by how far the gap moved.
    """
    both = scored_by_both(comparison.reference, comparison.candidate).filter(
        pl.col("kind").is_in(["flip", "paraphrase"])
    )
    before, after = pl.col("s") - pl.col("s_perturbed"), pl.col("s_candidate") - pl.col("s_perturbed_candidate")
    both = both.with_columns(
        changed=(pl.col("kind") == "flip") & ((before > 0) != (after > 0)), moved=(after - before).abs()
    )
    chosen = (
        both.filter(pl.col("changed") | (pl.col("moved") > 0))
        .sort("changed", "moved", "pair_id", descending=[True, True, False])
        .unique("image_id", keep="first", maintain_order=True)
        .head(count)
    )
    rows = [
        row
        | {
            "scores": [
                ("reference", row["s"], row["s_perturbed"]),
                ("candidate", row["s_candidate"], row["s_perturbed_candidate"]),
            ],
            "gap": row["s_candidate"] - row["s_perturbed_candidate"],
            "right": row["s_candidate"] > row["s_perturbed_candidate"] if row["kind"] == "flip" else None,
        }
        for row in chosen.iter_rows(named=True)
    ]
    return _shown(comparison.reference, rows), len(comparison.sign_changes)


def _worst(pairs: pl.DataFrame, count: int) -> pl.DataFrame:
    flips = pairs.filter(pl.col("kind") == "flip").sort("gap", "pair_id")
    paraphrases = pairs.filter(pl.col("kind") == "paraphrase").sort(
        pl.col("gap").abs(), "pair_id", descending=[True, False]
    )
    return pl.concat([flips, paraphrases]).unique("image_id", keep="first", maintain_order=True).head(count)


def _shown(run: Run, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`rows` with `picture` (a data URI, None where the image is gone) and both texts, `before` and `after`, marked."""
    root = Path(run.stamp["dataset"]["root"])
    images = read_frame(run.folder / "images.parquet").select("image_id", "path")
    paths = dict(images.filter(pl.col("image_id").is_in([row["image_id"] for row in rows])).iter_rows())
    out = []
    for row in rows:
        before, after = marked(_cut(row["text"]), _cut(row["perturbed"]))
        out.append(row | {"picture": _data_uri(root / paths[row["image_id"]]), "before": before, "after": after})
    return out


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def marked(text: str, perturbed: str) -> tuple[Markup, Markup]:
    """Both texts, escaped: words that only the first has in <del>, words that only the second has in <mark>."""
    old, new = text.split(), perturbed.split()
    before, after = list[Markup](), list[Markup]()
    for tag, start, end, first, last in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        for words, out, wrap in (
            (old[start:end], before, "<del>{}</del>"),
            (new[first:last], after, "<mark>{}</mark>"),
        ):
            if words:
                joined = escape(" ".join(words))
                out.append(joined if tag == "equal" else Markup(wrap).format(joined))
    return Markup(" ").join(before), Markup(" ").join(after)


def _data_uri(path: Path) -> str | None:
    try:
        image = read_image(path).convert("RGB")
    except (ImageFault, UsageFault, OSError):
        return None  # gone since the run: the page is about the scores
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    kind = "png" if max(image.size) <= 96 else "jpeg"
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
