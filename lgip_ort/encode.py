"""Images and texts through an engine: what its session needs next is made ready while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from PIL.Image import Image

from lgip_ort.ahead import ahead
from lgip_ort.engine import Embeddings, Engine
from lgip_ort.image import ImageFault, Pixels, read_pixels

SECONDS = 60.0
"""A decoder that takes longer over one image hangs; the image is skipped, and says so."""

TEXTS_AT_ONCE = 16_384
"""Texts that are tokenised and sorted by length together."""


def read_ahead(
    engine: Engine, paths: Iterable[Path], seconds: float = SECONDS
) -> Generator[Pixels | ImageFault, None, None]:
    """The images at `paths` as the engine's pixels, in order, or why one can't be read.

    Decoded and preprocessed by as many threads as there are cores, at most two batches ahead of what was taken.
    """

    def read(path: Path) -> Pixels | ImageFault:
        try:
            return read_pixels(path, engine.pixels)
        except ImageFault as fault:
            return fault

    def late(path: Path) -> ImageFault:
        return ImageFault(f"not decoded within {seconds:g} s")

    workers = os.cpu_count() or 1
    return ahead(read, paths, workers, max(2 * engine.batch_size, workers), seconds, late)


def embed_pixels(
    engine: Engine, pixels: Iterable[Pixels | ImageFault], progress: Callable[[int], None] = lambda _: None
) -> tuple[Embeddings, list[ImageFault | None]]:
    """float32 (n, dim) of the readable ones of `pixels`, in order, and for each of all of them its fault or None."""
    faults: list[ImageFault | None] = []
    parts = [np.empty((0, engine.dim), np.float32)]
    source = iter(pixels)
    batch: Pixels | None = None
    while chunk := list(islice(source, engine.batch_size)):
        faults += [item if isinstance(item, ImageFault) else None for item in chunk]
        read = [item for item in chunk if not isinstance(item, ImageFault)]
        if read:
            if batch is None:
                batch = np.empty((engine.batch_size, *read[0].shape), read[0].dtype)
            for row, item in zip(batch, read, strict=False):
                row[:] = item
            parts.append(engine.embed_pixels(batch[: len(read)]))
        progress(len(chunk))
    return np.concatenate(parts), faults


def encode_images(engine: Engine, images: Sequence[Image]) -> Embeddings:
    """Decoded images, in any colour mode -> float32 (n, dim), L2-normalised. Preprocessing is the engine's own."""
    return embed_pixels(engine, (engine.pixels(image) for image in images))[0]


def encode_texts(
    engine: Engine,
    texts: Sequence[str],
    pad_to: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Embeddings:
    """Texts -> float32 (n, dim), L2-normalised, in their order. `pad_to`: see `Engine.batches`.

    The next texts are tokenised while the session computes.
    """
    out = np.empty((len(texts), engine.dim), np.float32)

    def tokenise(start: int) -> list[tuple[list[int], np.ndarray]]:
        return list(engine.batches(texts[start : start + TEXTS_AT_ONCE], pad_to))

    starts = range(0, len(texts), TEXTS_AT_ONCE)
    for start, batches in zip(starts, ahead(tokenise, starts, workers=1, depth=2), strict=True):
        for rows, ids in batches:
            out[np.add(rows, start)] = engine.embed_ids(ids)
            progress(len(rows))
    return out
