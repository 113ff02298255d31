"""Shards of images with all their texts -> scores. The same code for every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lgip_ort.encode import embed_pixels, encode_texts, read_ahead
from lgip_ort.engine import Embeddings, Engine, EngineStamp
from lgip_ort.errors import RunFault
from lgip_ort.image import ImageFault, Pixels, quiet
from lgip_ort.retrieval import image_key, in_gallery, text_key

SCORES = pl.Schema(
    {
        "pair_id": pl.UInt64,
        "s": pl.Float32,  # cosine of image and caption
        "s_perturbed": pl.Float32,  # cosine of image and perturbed caption
        "text_cosine": pl.Float32,  # cosine of caption and perturbed caption
    }
)
SKIPPED = pl.Schema({"image_id": pl.String, "path": pl.String, "reason": pl.String})

TEXT = (pl.col("text"), pl.col("text_length").alias("length"))
PERTURBED = (pl.col("perturbed").alias("text"), pl.col("perturbed_length").alias("length"))
"""Either text of a pair, as an embedding is keyed: by what it says and by the length it is padded to."""

Rows = NDArray[np.uint32]

Progress = Callable[[str, int], None]
"""Called with a stage (`images`, `texts`) and how many more of it are done."""

Pairs = Callable[["Shard"], pl.DataFrame]
"""Reads the rows of the table that belong to a shard."""


@dataclass(frozen=True)
class Shard:
    """A slice of images with all their pairs: what is in memory, kept, resumed and sent away as one.

    images: image_id, path, split. start, rows: where its pairs lie in the table. name: of its files, by what went in.
    """

    index: int
    images: pl.DataFrame
    start: int
    rows: int
    name: str


@dataclass(frozen=True)
class ShardScores:
    """scores: SCHEMA of SCORES, in the order of the table. skipped: images that could not be read.

    embeddings: tower, key u64, vector; of images of the gallery and of their captions (see `retrieval`).
    seconds: spent on `images` (waiting for them and encoding), on `texts` and in `total`.
    """

    scores: pl.DataFrame
    skipped: pl.DataFrame
    embeddings: pl.DataFrame
    seconds: dict[str, float]


class Scorer(Protocol):
    """What scores shards: an engine in this process (`Local`), or many in others. Who does it changes no byte."""

    stamp: EngineStamp

    def score(
        self, root: Path, shards: Sequence[Shard], pairs: Pairs, gallery: float, progress: Progress
    ) -> Iterator[tuple[Shard, ShardScores]]:
        """Every shard with its scores, in any order. `pairs` reads the rows of a shard."""
        ...


class Local:
    """An engine in this process. The images of the next shard are read while the texts of this one are encoded."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.stamp = engine, engine.stamp

    def score(
        self, root: Path, shards: Sequence[Shard], pairs: Pairs, gallery: float, progress: Progress
    ) -> Iterator[tuple[Shard, ShardScores]]:
        """Every shard with its scores, in order."""
        paths = (root / path for shard in shards for path in shard.images["path"])
        with quiet(), closing(read_ahead(self.engine, paths)) as pixels:
            for shard in shards:
                mine = islice(pixels, len(shard.images))
                yield shard, score_shard(self.engine, mine, shard.images, pairs(shard), gallery, progress)


def score_shard(
    engine: Engine,
    pixels: Iterable[Pixels | ImageFault],
    images: pl.DataFrame,
    table: pl.DataFrame,
    gallery: float,
    progress: Progress,
) -> ShardScores:
    """Score the pairs of `table` that belong to `images` (image_id, path, ...), of which `pixels` has one each.

    Every image and every distinct text is encoded once at each of its padded lengths, identity pairs apart: their
    second text is encoded again among other neighbours, so that their error is the engine's noise and not zero by
    construction. `gallery` is the share of images whose vectors are kept, with those of their captions. Products are
    taken in float32.

    Raises RunFault where a score is not finite, naming image and texts.
    """
    began = time.perf_counter()
    vectors, faults = embed_pixels(engine, pixels, lambda count: progress("images", count))
    images_done = time.perf_counter()
    there = [fault is None for fault in faults]
    rows = {image_id: row for row, image_id in enumerate(images.filter(there)["image_id"])}
    skipped = images.select("image_id", "path").filter([not known for known in there])
    skipped = skipped.with_columns(reason=pl.Series([str(f) for f in faults if f is not None], dtype=pl.String))
    table = table.filter(pl.col("image_id").is_in(list(rows)))
    texts, text_row, perturbed_row = _distinct(table)
    text_vectors = _encode_texts(engine, texts, progress)

    image = vectors[[rows[i] for i in table["image_id"]]]
    first, second = text_vectors[text_row], text_vectors[perturbed_row]
    control = table["kind"] == "identity"
    again = table.filter(control).select(PERTURBED).reverse()
    second[control.to_numpy()] = _encode_texts(engine, again, lambda *_: None)[::-1]
    texts_done = time.perf_counter()

    scores = pl.DataFrame(
        {
            "pair_id": table["pair_id"],
            "s": _dot(image, first),
            "s_perturbed": _dot(image, second),
            "text_cosine": _dot(first, second),
        },
        schema=SCORES,
    )
    _refuse_not_finite(scores, table)
    kept = [image_id for image_id in rows if in_gallery(image_id, gallery)]
    captions = np.unique(text_row[table["image_id"].is_in(kept).to_numpy()])
    embeddings = pl.concat(
        [
            _keyed("vision", [image_key(i) for i in kept], vectors[[rows[i] for i in kept]]),
            _keyed("text", [text_key(*row) for row in texts[captions].iter_rows()], text_vectors[captions]),
        ]
    )
    seconds = {
        "images": images_done - began,
        "texts": texts_done - images_done,
        "total": time.perf_counter() - began,
    }
    return ShardScores(scores, skipped, embeddings, seconds)


def _distinct(table: pl.DataFrame) -> tuple[pl.DataFrame, Rows, Rows]:
    """What is to be encoded (text, length), and for both texts of every pair its row there."""
    both = pl.concat([table.select(TEXT), table.select(PERTURBED)])
    distinct = both.unique(maintain_order=True)
    found = both.join(
        distinct.with_row_index("row"), on=["text", "length"], how="left", nulls_equal=True, maintain_order="left"
    )
    rows = found["row"].to_numpy()
    return distinct, rows[: len(table)], rows[len(table) :]


def _encode_texts(engine: Engine, texts: pl.DataFrame, progress: Progress) -> Embeddings:
    """float32 (n, dim) of n rows (text, length), in their order; those of one padded length go together."""
    out = np.empty((len(texts), engine.dim), np.float32)
    for same in texts.with_row_index("row").partition_by("length", maintain_order=True):
        found = encode_texts(engine, same["text"].to_list(), same[0, "length"], lambda n: progress("texts", n))
        out[same["row"].to_numpy()] = found
    return out


def _dot(a: Embeddings, b: Embeddings) -> NDArray[np.float32]:
    """Row by row: float32 (n, dim) x 2 -> float32 (n,)."""
    return np.einsum("nd,nd->n", a, b, dtype=np.float32)


def _refuse_not_finite(scores: pl.DataFrame, table: pl.DataFrame) -> None:
    wrong = ~pl.all_horizontal(pl.col("s", "s_perturbed", "text_cosine").is_finite())
    bad = scores.with_row_index("row").filter(wrong)
    if len(bad):
        row: dict[str, Any] = table.row(bad[0, "row"], named=True)
        raise RunFault(
            f"{len(bad)} of {len(scores)} scores are not finite; the first is image {row['image_id']}, "
            f"{row['text']!r} against {row['perturbed']!r}"
        )


def _keyed(tower: str, keys: list[int], vectors: Embeddings) -> pl.DataFrame:
    vector = pl.Array(pl.Float32, vectors.shape[1])
    schema = pl.Schema([("tower", pl.String()), ("key", pl.UInt64()), ("vector", vector)])
    return pl.DataFrame({"tower": [tower] * len(keys), "key": keys, "vector": vectors}, schema=schema)
