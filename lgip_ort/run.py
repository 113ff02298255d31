"""A run's folder: what is in it, and reading it.

run.json            the stamp: what went in, what ran it, how it ended
table.parquet       the pairs in the order of the images, with the lengths that their texts were padded to
images.parquet      the images: image_id, path, split
scores/*.parquet    a file a shard, named by what went in: a run that was cut short goes on where it was
embeddings/*.parquet  vectors of images and their captions, about 5,000 images: for retrieval, and to compare runs
skipped.parquet     images that could not be read, with the reason
profile.parquet     the metrics
report.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from lgip_ort import metrics
from lgip_ort.errors import UsageFault
from lgip_ort.retrieval import Gallery, gallery

STAMP = "run.json"
SCORED, SAMPLED = "scores", "embeddings"


@dataclass(frozen=True)
class Run:
    """A finished run. `stamp` is the content of run.json; `reused` says that nothing had to be computed."""

    folder: Path
    stamp: dict[str, Any]
    reused: bool = False

    @property
    def failed(self) -> bool:
        """Whether the result can't be trusted; `stamp["error"]` says why."""
        return bool(self.stamp["status"] != "done")

    @property
    def weights(self) -> str:
        """Which weights, in a word or two: `random`, a hub id with its revision, or a path."""
        weights = self.stamp["weights"]
        if weights["source"] == "random":
            return "random"
        return f"{weights['name']}@{weights['revision']}" if weights["revision"] else str(weights["name"])

    def table(self) -> pl.DataFrame:
        """The pairs, scored or not."""
        return read_frame(self.folder / "table.parquet")

    def parts(self) -> Iterator[pl.DataFrame]:
        """The scored pairs, table and scores, shard by shard: memory holds one at a time."""
        for path in shard_files(self.folder):
            place = shard_metadata(path)
            rows = read_frame(self.folder / "table.parquet", place["start"], place["rows"])
            yield metrics.join_scores(rows, read_frame(path))

    def pairs(self) -> pl.DataFrame:
        """The scored pairs, all of them."""
        return pl.concat(list(self.parts()))

    def profile(self) -> pl.DataFrame:
        """The profile, see `metrics.PROFILE`."""
        return read_frame(self.folder / "profile.parquet")

    def skipped(self) -> pl.DataFrame:
        """Images that could not be read: image_id, path, reason."""
        return read_frame(self.folder / "skipped.parquet")

    def embeddings(self) -> pl.DataFrame:
        """The kept vectors: tower, key, vector. A text of several shards was encoded in each: the first counts."""
        found = pl.concat([read_frame(path) for path in sorted((self.folder / SAMPLED).glob("*.parquet"))])
        return found.unique(["tower", "key"], keep="first", maintain_order=True)

    def gallery(self) -> Gallery | None:
        """The images that were kept, with their captions; None where there are fewer than two."""
        columns = ("image_id", "text", "text_length")
        captions = (
            read_frame(self.folder / "table.parquet", place["start"], place["rows"]).select(columns)
            for place in map(shard_metadata, shard_files(self.folder))
        )
        return gallery(captions, self.embeddings())


def open_run(folder: Path) -> Run:
    """A run that was finished before. Raises UsageFault where the folder holds none."""
    stamp = read_stamp(folder)
    if stamp["status"] != "done":
        raise UsageFault(f"{folder}: the run is {stamp['status']!r}, not done")
    return Run(folder, stamp, reused=True)


def read_stamp(folder: Path) -> dict[str, Any]:
    """The content of run.json. Raises UsageFault where there is none, or it is another file."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageFault(f"{folder}: not a run, {STAMP} is missing") from error
    except ValueError as error:
        raise UsageFault(f"{folder / STAMP}: not JSON: {error}") from error
    if not isinstance(stamp, dict) or "status" not in stamp:
        raise UsageFault(f"{folder / STAMP}: not the stamp of a run")
    return stamp


def read_frame(path: Path, start: int = 0, rows: int | None = None) -> pl.DataFrame:
    """A frame of a run, or a slice of it. A folder's name may hold what means something in a pattern: [, *, ?.

    Raises UsageFault where the file is missing or damaged.
    """
    try:
        return pl.scan_parquet(path, glob=False).slice(start, rows).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageFault(f"{path}: can't be read: {error}; --overwrite computes the run again") from error


def shard_files(folder: Path) -> list[Path]:
    """The scores of the finished shards, in order."""
    return sorted((folder / SCORED).glob("*.parquet"))


def shard_metadata(path: Path) -> dict[str, Any]:
    """What the scores of a shard say of themselves: `start` and `rows` of its part of the table, and `skipped`, the
    rows of its images that could not be read. Raises UsageFault where the file is damaged or another's."""
    try:
        return dict(json.loads(pl.read_parquet_metadata(path)["shard"]))
    except (OSError, KeyError, ValueError, pl.exceptions.PolarsError) as error:
        raise UsageFault(f"{path}: not the scores of a shard; --overwrite computes the run again") from error
