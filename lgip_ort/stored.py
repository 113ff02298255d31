"""The table of a run on disk, in the order of its images: a shard is a slice of it, and memory holds one slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lgip_ort.padding import Lengths
from lgip_ort.score import Shard
from lgip_ort.table import table_sha256
from lgip_ort.table_file import write_table


@dataclass(frozen=True)
class StoredTable:
    """A table as a file, its rows in the order of `images`.

    rows: how many; sha256: as `table_sha256` of the whole; lengths: the padded ones, see `padding.Lengths`;
    starts: int64 (images + 1,): where the rows of each image begin, and the end of the last.
    """

    path: Path
    images: pl.DataFrame
    rows: int
    sha256: str
    lengths: dict[str, Any] | None
    starts: np.ndarray

    def shards(self, size: int) -> Iterator[Shard]:
        """The images in slices of `size`, each with its part of the table, named by its pairs."""
        for index, images in enumerate(self.images.iter_slices(size)):
            first = index * size
            start, end = int(self.starts[first]), int(self.starts[first + len(images)])
            ids = self.scan().select("pair_id").slice(start, end - start).collect()
            yield Shard(index, images, start, end - start, f"{index:05d}-{table_sha256(ids)[:8]}.parquet")

    def pairs(self, shard: Shard) -> pl.DataFrame:
        """The rows of a shard."""
        return self.scan().slice(shard.start, shard.rows).collect()

    def scan(self) -> pl.LazyFrame:
        """The whole, not read yet."""
        return pl.scan_parquet(self.path, glob=False)


def store(parts: Iterable[pl.DataFrame], images: pl.DataFrame, path: Path) -> StoredTable:
    """Write a table to `path`, part by part. `parts`: the rows in the order of `images` (image_id, ...).

    Raises ValueError where they are in another order, or of other images.
    """
    place = {image_id: number for number, image_id in enumerate(images["image_id"])}
    counts = np.zeros(len(images), np.int64)
    lengths = Lengths()
    last = -1

    def counted() -> Iterator[pl.DataFrame]:
        nonlocal last
        for part in parts:
            runs = part.select(pl.col("image_id").rle()).unnest("image_id")
            for image_id, rows in runs.select("value", "len").iter_rows():
                number = place.get(image_id, -1)
                if number < max(last, 0):
                    raise ValueError(f"pairs of image {image_id} out of the order of the images")
                counts[number] += rows
                last = number
            lengths.add(part)
            yield part

    summary = write_table(counted(), path)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return StoredTable(path, images, summary.rows, summary.sha256, lengths.known(), starts)
