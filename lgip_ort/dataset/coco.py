"""COCO's own layout: `coco:DIR[:split]` reads DIR/annotations/captions_<split>.json and the images in DIR/<split>/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from lgip_ort.dataset import Dataset
from lgip_ort.errors import UsageFault


def read(argument: str) -> Dataset:
    """The split of a COCO folder; images without a caption are left out. Raises UsageFault naming the file at fault."""
    root, split = _split(argument)
    return read_split(root, split, name=f"coco-{split}")


def read_split(root: Path, split: str, name: str) -> Dataset:
    """DIR/annotations/captions_<split>.json with the images of DIR/<split>/, as a dataset called `name`."""
    path = root / "annotations" / f"captions_{split}.json"
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        known = ", ".join(_splits(root)) or "none"
        raise UsageFault(f"{path}: not there; splits with captions in {root}: {known}") from error
    except ValueError as error:
        raise UsageFault(f"{path}: not JSON: {error}") from error
    captions = _captions(data, path)
    images = pl.DataFrame(
        [
            (
                str(_get(row, "id", int, path, f"images[{i}]")),
                f"{split}/{_get(row, 'file_name', str, path, f'images[{i}]')}",
                split,
            )
            for i, row in enumerate(_get(data, "images", list, path, "the file"))
        ],
        schema={"image_id": pl.String, "path": pl.String, "split": pl.String},
        orient="row",
    )
    twice = images.filter(pl.col("image_id").is_duplicated())
    if len(twice):
        raise UsageFault(f"{path}: image id {twice[0, 'image_id']} is listed more than once")
    unknown = captions.join(images, on="image_id", how="anti")
    if len(unknown):
        raise UsageFault(
            f"{path}: {len(unknown)} captions name images that are not listed, the first is {unknown[0, 'image_id']}"
        )
    images = images.join(captions, on="image_id", how="semi", maintain_order="left")
    try:
        present = {file.name for file in (root / split).iterdir() if file.exists()}  # no links to nowhere
    except FileNotFoundError:
        present = set()
    there = images["path"].map_elements(lambda p: p.split("/", 1)[1] in present, return_dtype=pl.Boolean)
    available = images.filter(there)
    return Dataset(
        name=name,
        root=root,
        images=available,
        captions=captions.join(available, on="image_id", how="semi", maintain_order="left"),
        missing=images.filter(~there)["path"].to_list(),
        named=len(images),
    )


def _captions(data: Any, path: Path) -> pl.DataFrame:
    """image_id, caption_index, text; the captions of an image are numbered in the order of the file."""
    rows = [
        (
            str(_get(row, "image_id", int, path, f"annotations[{i}]")),
            _get(row, "caption", str, path, f"annotations[{i}]"),
        )
        for i, row in enumerate(_get(data, "annotations", list, path, "the file"))
    ]
    frame = pl.DataFrame(rows, schema={"image_id": pl.String, "text": pl.String}, orient="row")
    index = pl.int_range(pl.len(), dtype=pl.UInt16).over("image_id").alias("caption_index")
    return frame.select("image_id", index, "text")


def _get(row: Any, field: str, kind: type, path: Path, where: str) -> Any:
    value = row.get(field) if isinstance(row, dict) else None
    if not isinstance(value, kind):
        raise UsageFault(f"{path}: {where}: field {field!r} of type {kind.__name__} expected, {value!r} found")
    return value


def _split(argument: str) -> tuple[Path, str]:
    if not argument:
        raise UsageFault("coco needs a folder: coco:DIR or coco:DIR:split")
    root = Path(argument)
    folder, colon, split = argument.rpartition(":")
    # A colon may also belong to the folder (C:\coco, data:v2): a split is a plain name after what is no folder.
    if colon and split and not set("/\\") & set(split) and not root.is_dir():
        return Path(folder), split
    splits = _splits(root)
    if len(splits) == 1:
        return root, splits[0]
    if "val2017" in splits:
        return root, "val2017"
    raise UsageFault(f"{root}: name a split (coco:{root}:split); with captions there: {', '.join(splits) or 'none'}")


def _splits(root: Path) -> list[str]:
    return sorted(p.stem.removeprefix("captions_") for p in (root / "annotations").glob("captions_*.json"))
