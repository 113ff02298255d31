"""From what a file holds to the frames of a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath

import polars as pl

from lgip_ort.dataset import Dataset
from lgip_ort.errors import UsageFault

MAX_CAPTIONS = 2**16
"""Captions of one image: they are numbered in 16 bits."""


def by_path(name: str, root: Path, paths: Sequence[str], texts: Sequence[str]) -> Dataset:
    """A dataset of captions with the paths of their images, equally long; no image is looked for.

    Raises UsageFault for more than MAX_CAPTIONS captions of an image.
    """
    distinct = list(dict.fromkeys(paths))
    ids = image_ids(distinct)
    by = dict(zip(distinct, ids, strict=True))
    images = images_frame(ids, distinct, "")
    return Dataset(name, root, images, captions_frame([by[path] for path in paths], texts), [], len(images))


def images_frame(ids: Sequence[str], paths: Sequence[str], split: str) -> pl.DataFrame:
    """image_id, path, split; all of one split."""
    return pl.DataFrame(
        {"image_id": ids, "path": paths}, schema={"image_id": pl.String, "path": pl.String}
    ).with_columns(split=pl.lit(split))


def captions_frame(ids: Sequence[str], texts: Sequence[str]) -> pl.DataFrame:
    """image_id, caption_index, text; an image's captions are numbered in the order given.

    Raises UsageFault for more than MAX_CAPTIONS captions of an image.
    """
    frame = pl.DataFrame({"image_id": ids, "text": texts}, schema={"image_id": pl.String, "text": pl.String})
    numbered = frame.with_columns(pl.int_range(pl.len()).over("image_id").alias("caption_index"))
    too_many = numbered.filter(pl.col("caption_index") >= MAX_CAPTIONS)
    if len(too_many):
        raise UsageFault(f"image {too_many[0, 'image_id']} has more than {MAX_CAPTIONS:,} captions")
    return numbered.select("image_id", pl.col("caption_index").cast(pl.UInt16), "text")


def image_ids(paths: Sequence[str]) -> list[str]:
    """An id for each of `paths`, which differ: the file's name without its suffix where that is one image's alone.

    Otherwise the whole path.
    """
    stems = [PurePath(path).stem for path in paths]
    times = Counter(stems)
    ids = [stem if times[stem] == 1 else path for stem, path in zip(stems, paths, strict=True)]
    return ids if len(set(ids)) == len(ids) else list(paths)


def contained(name: str, where: str) -> str:
    """`name`, if it stays in the folder it is relative to. Raises UsageFault otherwise."""
    path = PurePath(name)
    if path.anchor or ".." in path.parts:
        raise UsageFault(f"{where}: image {name!r} leaves the folder of images")
    return name


def two_paths(argument: str) -> tuple[Path, Path | None]:
    """`FIRST:SECOND` or `FIRST`, where either may hold colons of its own (C:\\data, data:v2).

    The colon meant is the last one after something that is there; where nothing is there, the last that names no drive.
    """
    if not argument or Path(argument).exists():
        return Path(argument), None
    colons = [i for i, character in enumerate(argument) if character == ":" and argument[i + 1 :]]
    there = [i for i in colons if i and Path(argument[:i]).exists()]
    chosen = there or [i for i in colons if i and not _names_drive(argument, i)]
    return (Path(argument[: chosen[-1]]), Path(argument[chosen[-1] + 1 :])) if chosen else (Path(argument), None)


def _names_drive(argument: str, colon: int) -> bool:
    letter = argument[:colon].rpartition(":")[2]
    return len(letter) == 1 and letter.isalpha() and argument[colon + 1] in "/\\"
