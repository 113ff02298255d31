"""SugarCrepe: `sugarcrepe:DIR:IMAGES` reads its seven files of hard negatives as flips, families named after the files.

The images are COCO's val2017, in the folder IMAGES or a folder within a zip archive; without it, in DIR. SugarCrepe
(Hsieh et al., 2023, arXiv 2306.14610) pairs one caption of an image with one that is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from lgip_ort.dataset import TABLE, Dataset
from lgip_ort.dataset.build import by_path, contained, two_paths
from lgip_ort.dataset.records import field, read_json
from lgip_ort.errors import UsageFault

FAMILIES = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")


def read(argument: str) -> Dataset:
    """The captions of all files, each once an image, and a flip for every record.

    Raises UsageFault naming file and record at fault.
    """
    if not argument:
        raise UsageFault("sugarcrepe needs its folder and one of images: sugarcrepe:DIR:IMAGES")
    folder, images = two_paths(argument)
    rows = pl.DataFrame(
        [row for family in FAMILIES for row in _records(folder / f"{family}.json", family)],
        schema=["path", "text", "family", "perturbed"],
        orient="row",
    ).cast(pl.String)
    captions = rows.unique(["path", "text"], keep="first", maintain_order=True)
    dataset = by_path(
        "sugarcrepe",
        images if images is not None else folder,
        captions["path"].to_list(),
        captions["text"].to_list(),
    )
    table = (
        rows.join(dataset.images, on="path", maintain_order="left")
        .join(dataset.captions, on=["image_id", "text"], maintain_order="left")
        .with_columns(kind=pl.lit("flip"))
    )
    return replace(dataset, table=table.select(TABLE.names()))


def _records(path: Path, family: str) -> list[tuple[str, str, str, str]]:
    """Image, caption, family and negative caption of every record of a file."""
    records = read_json(path)
    if not isinstance(records, dict):
        raise UsageFault(f"{path}: an object expected, {type(records).__name__} found")
    rows = []
    for key, record in records.items():
        where = f"{path}: record {key!r}"
        name = contained(field(record, "filename", str, where), where)
        rows.append((name, field(record, "caption", str, where), family, field(record, "negative_caption", str, where)))
    return rows
