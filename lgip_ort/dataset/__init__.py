"""Captioned images from where people have them. A source is named `kind` or `kind:argument`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import polars as pl

from lgip_ort.errors import UsageFault, did_you_mean

# kind -> module with `read(argument: str) -> Dataset`; imported when asked for.
SOURCES = {"demo": "lgip_ort.dataset.demo", "coco": "lgip_ort.dataset.coco"}


@dataclass(frozen=True)
class Dataset:
    """Captioned images.

    images: image_id str, path str, split str, in the order of the source.
    captions: image_id str, caption_index u16, text str, in the order of the source, as they are.
    root: what image paths are relative to.
    missing: images that the source names and the disk lacks (path str); named: how many it names, there or not.
    """

    name: str
    root: Path
    images: pl.DataFrame
    captions: pl.DataFrame
    missing: list[str]
    named: int

    def sha256(self) -> str:
        """Identity of the data: image ids, file names and sizes, captions; independent of where the folder lies."""
        digest = hashlib.sha256()
        for image_id, path in self.images.select("image_id", "path").iter_rows():
            digest.update(f"{image_id}\0{path}\0{(self.root / path).stat().st_size}\n".encode())
        for row in self.captions.iter_rows():
            digest.update("\0".join(map(str, row)).encode() + b"\n")
        return digest.hexdigest()

    def head(self, limit: int) -> Dataset:
        """The first `limit` images with their captions."""
        images = self.images.head(limit)
        return replace(
            self, images=images, captions=self.captions.join(images, on="image_id", how="semi", maintain_order="left")
        )


def open_dataset(source: str, available_only: bool = False) -> Dataset:
    """The dataset named `source`.

    Raises UsageFault where the kind is unknown, where the source can't be read, and where images that it names are
    not there, unless `available_only`.
    """
    kind, _, argument = source.partition(":")
    if kind not in SOURCES:
        raise UsageFault(f"unknown data {source!r}{did_you_mean(kind, SOURCES)}")
    read: Callable[[str], Dataset] = import_module(SOURCES[kind]).read
    dataset = read(argument)
    if dataset.missing and not available_only:
        raise UsageFault(
            f"{len(dataset.missing):,} of {dataset.named:,} images are not there, "
            f"the first is {dataset.root / dataset.missing[0]}; --available-only scores the others"
        )
    if dataset.images.is_empty():
        raise UsageFault(f"{source}: none of its {dataset.named:,} images is there")
    return dataset
