"""A run as one self-contained page: tables, charts and examples, no script and no network."""

from __future__ import annotations

import base64
import difflib
import io
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup, escape

from lgip_ort.image import read_image
from lgip_ort.metrics import ALL
from lgip_ort.report.charts import flips_chart, wrappers_chart
from lgip_ort.report.contract import headline, padding_line
from lgip_ort.report.page import write_page
from lgip_ort.run import Run, read_frame

EXAMPLES = 12
THUMBNAIL = 320  # pixels of the longest side


def write_report(run: Run) -> Path:
    """Write `report.html` into the run's folder and return its path."""
    profile = run.profile()
    return write_page(
        "report.html.j2",
        run.folder / "report.html",
        stamp=run.stamp,
        weights=run.weights,
        padding=padding_line(run.stamp),
        headlines=[
            ("E_inv", "invariance error", "lower is better", headline(profile, "E_inv", "paraphrase")),
            ("E_sens", "sensitivity gap", "higher is better", headline(profile, "E_sens", "flip")),
            ("PR", "positive rate", "higher is better, 0.5 is chance", headline(profile, "PR", "flip")),
        ],
        rows=profile.to_dicts(),
        flips=Markup(flips_chart(profile)),
        wrappers=Markup(wrappers_chart(profile)),
        examples=examples(run),
        skipped=run.skipped().to_dicts(),
        ALL=ALL,
    )


def examples(run: Run, count: int = EXAMPLES) -> list[dict[str, Any]]:
    """The pairs that went most wrong, worst first, one an image: flips by gap, then paraphrases by error."""
    worst: pl.DataFrame | None = None
    for part in run.parts():
        part = part.with_columns(gap=pl.col("s") - pl.col("s_perturbed"))
        worst = _worst(part if worst is None else pl.concat([worst, part]), count)
    assert worst is not None
    root = Path(run.stamp["dataset"]["root"])
    images = read_frame(run.folder / "images.parquet")
    rows = worst.join(images, on="image_id", how="left", maintain_order="left")
    return [
        row
        | {
            "picture": _data_uri(root / row["path"]),
            "marked": marked(row["text"], row["perturbed"]),
            "right": row["gap"] > 0 if row["kind"] == "flip" else None,
        }
        for row in rows.iter_rows(named=True)
    ]


def _worst(pairs: pl.DataFrame, count: int) -> pl.DataFrame:
    flips = pairs.filter(pl.col("kind") == "flip").sort("gap", "pair_id")
    paraphrases = pairs.filter(pl.col("kind") == "paraphrase").sort(
        pl.col("gap").abs(), "pair_id", descending=[True, False]
    )
    return pl.concat([flips, paraphrases]).unique("image_id", keep="first", maintain_order=True).head(count)


def marked(text: str, perturbed: str) -> Markup:
    """`perturbed`, escaped, with the words that are not in `text` in <mark>."""
    old, new = text.split(), perturbed.split()
    out = []
    for tag, _, _, start, end in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        words = escape(" ".join(new[start:end]))
        if words:
            out.append(words if tag == "equal" else Markup("<mark>{}</mark>").format(words))
    return Markup(" ").join(out)


def _data_uri(path: Path) -> str:
    image = read_image(path).convert("RGB")
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    kind = "png" if max(image.size) <= 96 else "jpeg"
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
