"""Captioned images from where people have them. A source is named `kind` or `kind:argument`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import polars as pl

from lgip_ort.dataset import archive
from lgip_ort.errors import UsageFault, did_you_mean

# kind -> module with `read(argument: str) -> Dataset`, all named images in it; imported when asked for.
SOURCES = {
    "demo": "lgip_ort.dataset.demo",
    "coco": "lgip_ort.dataset.coco",
    "jsonl": "lgip_ort.dataset.jsonl",
    "flickr": "lgip_ort.dataset.flickr",
    "frame": "lgip_ort.dataset.frame",  # its `read` takes the names of the columns, too
    "sugarcrepe": "lgip_ort.dataset.sugarcrepe",
}

TABLE = pl.Schema(
    {
        "image_id": pl.String,
        "caption_index": pl.UInt16,
        "kind": pl.String,
        "family": pl.String,
        "text": pl.String,  # the caption as it is
        "perturbed": pl.String,
    }
)
"""Perturbations that a source brings with its captions."""


@dataclass(frozen=True)
class Dataset:
    """Captioned images.

    images: image_id str, path str, split str, in the order of the source. A path may lead into a zip archive.
    captions: image_id str, caption_index u16, text str, in the order of the source, as they are.
    root: what image paths are relative to.
    missing: images that the source names and the disk lacks (path str); named: how many it names, there or not.
    annotated: image_id str, category str: the kinds of objects annotated in each image, one row a kind. An image
        without a row has no annotation. None where the source has none at all.
    table: perturbations that the source brings, in the columns of TABLE; None where it brings none.
    captions_only: nobody looked for the images, they may not be there.
    """

    name: str
    root: Path
    images: pl.DataFrame
    captions: pl.DataFrame
    missing: list[str]
    named: int
    annotated: pl.DataFrame | None = None
    table: pl.DataFrame | None = None
    captions_only: bool = False

    def sha256(self) -> str:
        """Identity of the data: image ids, file names and contents, captions.

        It is independent of where the folder lies, and of whether images lie in it or in an archive. Of
        `captions_only` data no image file is looked at: contents do not count.
        """
        digest = hashlib.sha256()
        for image_id, path in self.images.select("image_id", "path").iter_rows():
            content = "" if self.captions_only else archive.digest(self.root / path)
            digest.update(f"{image_id}\0{archive.plain_name(path)}\0{content}\n".encode())
        for row in self.captions.iter_rows():
            digest.update("\0".join(map(str, row)).encode() + b"\n")
        return digest.hexdigest()

    def head(self, limit: int) -> Dataset:
        """The first `limit` images with all that belongs to them."""
        return self.only(self.images.head(limit))

    def sample(self, count: int, seed: int) -> Dataset:
        """`count` images drawn from those with exactly five captions, in the order of the source.

        Which are drawn depends on the seed and the image ids alone, not on their order; a smaller sample is part of a
        larger one of the same seed. Raises UsageFault where there are fewer.
        """
        five = self.captions.group_by("image_id").len().filter(pl.col("len") == 5)["image_id"].to_list()
        if len(five) < count:
            raise UsageFault(
                f"{self.name}: {count:,} images with exactly five captions asked for, {len(five):,} are there"
            )
        drawn = sorted(five, key=lambda image_id: (_rank(seed, image_id), image_id))[:count]
        return self.only(self.images.filter(pl.col("image_id").is_in(drawn)))

    def only(self, images: pl.DataFrame) -> Dataset:
        """With these of its images and what belongs to them, all in the order they had."""

        def of_images(frame: pl.DataFrame) -> pl.DataFrame:
            return frame.join(images, on="image_id", how="semi", maintain_order="left")

        return replace(
            self,
            images=images,
            captions=of_images(self.captions),
            annotated=None if self.annotated is None else of_images(self.annotated),
            table=None if self.table is None else of_images(self.table),
        )


def open_dataset(source: str, available_only: bool = False, images: bool = True, columns: str | None = None) -> Dataset:
    """The dataset named `source`.

    Without `images` nobody looks for image files: all that are named are kept, none is missing. `columns` says which
    columns of a `frame` hold images and captions: `image=filepath,caption=title`.

    Raises UsageFault where the kind is unknown, where the source can't be read (naming file and line or record), and
    where images that it names are not there, unless `available_only`.
    """
    kind, _, argument = source.partition(":")
    if kind not in SOURCES:
        raise UsageFault(f"unknown data {source!r}{did_you_mean(kind, SOURCES)}")
    if columns is not None and kind != "frame":
        raise UsageFault(f"--columns names the columns of frame:FILE; {kind} data has names of its own")
    read: Callable[..., Dataset] = import_module(SOURCES[kind]).read
    dataset = read(argument) if columns is None else read(argument, columns)
    if dataset.images.is_empty():
        raise UsageFault(f"{source}: no image with a caption in it")
    return _available(dataset, source, available_only) if images else replace(dataset, captions_only=True)


def _available(dataset: Dataset, source: str, available_only: bool) -> Dataset:
    """Without the images that are not there, which stop it unless `available_only`."""
    paths = dataset.images["path"]
    there = pl.Series([archive.is_file(dataset.root / path) for path in paths], dtype=pl.Boolean)
    missing = paths.filter(~there).to_list()
    if missing and not available_only:
        raise UsageFault(
            f"{len(missing):,} of {dataset.named:,} images are not there, "
            f"the first is {dataset.root / missing[0]}; --available-only scores the others"
        )
    if not there.any():
        raise UsageFault(f"{source}: none of its {dataset.named:,} images is there")
    return replace(dataset.only(dataset.images.filter(there)), missing=missing)


def _rank(seed: int, image_id: str) -> bytes:
    """A place in the order of drawing that nothing else has a say in."""
    return hashlib.blake2b(f"sample\0{seed}\0{image_id}".encode(), digest_size=8).digest()
