"""Which kinds of objects are annotated in the images of a COCO split: the truth that flips are checked against."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl

from lgip_ort.dataset.records import field, read_json, read_text
from lgip_ort.errors import UsageFault

# Outlines are nine tenths of train2017's 450 MB and of no use here. Only numbers stand between their brackets.
OUTLINE = re.compile(r'"segmentation":\s*\[[^"{}]*\]')

ANNOTATED = pl.Schema({"image_id": pl.String, "category": pl.String})


def read_annotated(root: Path, split: str, wanted: Collection[str]) -> pl.DataFrame | None:
    """The categories annotated in the images `wanted`: image_id, category, each pair once; None without annotations.

    They come from DIR/annotations/instances_<split>.json, or from parts of it (instances_<split>_subset.json). Raises
    UsageFault, naming file and record, for an annotation of an image or a category that its file does not list.
    """
    paths = _files(root / "annotations", split)
    if not paths:
        return None
    pairs = {pair: None for path in paths for pair in _pairs(_load(path), path) if pair[0] in wanted}
    return pl.DataFrame(list(pairs), schema=ANNOTATED, orient="row")


def _files(folder: Path, split: str) -> list[Path]:
    whole = folder / f"instances_{split}.json"
    if whole.exists():
        return [whole]
    # Parts of `val` are val_1 and val-b; val2017 is another split.
    return sorted(folder.glob(f"instances_{glob.escape(split)}[!0-9A-Za-z]*.json"))


def _load(path: Path) -> Any:
    """The file without the outlines of the objects."""
    try:
        return json.loads(OUTLINE.sub('"segmentation":[]', read_text(path)))
    except (ValueError, RecursionError):
        return read_json(path)  # says where it is wrong in the file as it is


def _pairs(data: Any, path: Path) -> list[tuple[str, str]]:
    """Image id and category of every annotation."""
    categories = {}
    for i, row in enumerate(field(data, "categories", list, f"{path}: the file")):
        where = f"{path}: categories[{i}]"
        categories[field(row, "id", int, where)] = field(row, "name", str, where)
    listed = {
        field(row, "id", int, f"{path}: images[{i}]")
        for i, row in enumerate(field(data, "images", list, f"{path}: the file"))
    }
    pairs = []
    for i, row in enumerate(field(data, "annotations", list, f"{path}: the file")):
        where = f"{path}: annotations[{i}]"
        image_id, category = field(row, "image_id", int, where), field(row, "category_id", int, where)
        if image_id not in listed:
            raise UsageFault(f"{where}: image {image_id} is not listed in the file")
        if category not in categories:
            raise UsageFault(f"{where}: category {category} is not listed in the file")
        pairs.append((str(image_id), categories[category]))
    return pairs
