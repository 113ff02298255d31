"""What an export is checked on: captions and images of a data set, and odd ones made by rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lgip_ort.dataset import Dataset, archive, open_dataset
from lgip_ort.errors import UsageFault
from lgip_ort.image import ImageFault, read_image

SIZES = (
    (640, 480, "RGB"),
    (333, 500, "RGB"),
    (224, 224, "L"),
    (97, 311, "RGBA"),
    (512, 257, "P"),
    (64, 64, "RGB"),
    (801, 600, "RGB"),
)
"""Width, height and mode of the pictures made by rule: odd and even, wide and high, every mode that is common."""

ODD_SIZES = (
    (1, 1, "RGB"),
    (7, 1, "RGB"),
    (3, 200, "L"),
    (225, 227, "RGB"),
    (31, 47, "1"),
    (47, 31, "LA"),
    (200, 301, "CMYK"),
    (2000, 50, "RGB"),
)
"""Further ones for the preprocessing alone."""

CAPTIONS = (
    "",
    "a cat",
    "A red bus is parked next to two blue bicycles in front of a train station.",
    "a photo of a person riding a brown horse on the beach while a small white dog runs behind them and three birds "
    "fly over the water near a wooden boat under an orange and purple evening sky with a few clouds",
    "Café São Paulo — naïve “quotes”, 日本 and a 🐈 …",
    "dog",
    "a very long caption that does not fit any context length " * 12,
)
"""Empty, short, long, cut, and not English."""

REPLACED = slice(1, 4)
"""The plain ones of CAPTIONS: the data's shortest, middle and longest caption take their place."""

REAL = 4
"""Of the pictures that a tower is checked on, so many are the data's images, where it has them."""

PHOTOGRAPHS = 54
"""At most so many of the data's images go through the preprocessing."""


@dataclass(frozen=True)
class Probes:
    """What towers are checked on: as many images as captions. `texts`: further ones for the tokenizer alone.

    `files`: the data's images that the preprocessing is proven on. `data`: the data set's name, and how many of its
    captions and images there are among the probes, for the record.
    """

    images: list[Image.Image]
    captions: list[str]
    texts: list[str]
    files: list[Path] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def pixels(self) -> Iterator[Image.Image]:
        """The images that the preprocessing is proven on, one at a time: made by rule, and the data's."""
        yield from pictures()
        yield from (_picture(i, *size) for i, size in enumerate(ODD_SIZES))
        yield from (read_image(file) for file in self.files)


def probes(data: str = "demo", columns: str | None = None) -> Probes:
    """The probes out of the data set `data`, named as for the benchmark; `columns` as for `frame` data.

    All its captions are among them, and images spread over all that are there: those that are absent, or can't be
    read, are passed over. Without the demo's scenes, which a checkout has, everything is made by rule. Raises
    UsageFault where other data can't be read.
    """
    try:
        dataset = open_dataset(data, images=False, columns=columns)
    except (UsageFault, OSError):
        if data != "demo":
            raise
        return Probes(pictures(), list(CAPTIONS), [], data={"name": "none", "captions": 0, "images": 0})
    files, images = _files(dataset)
    texts = dataset.captions["text"].to_list()
    if dataset.table is not None:
        texts += dataset.table["perturbed"].to_list()
    texts = list(dict.fromkeys(texts))
    captions = list(CAPTIONS)
    captions[REPLACED] = _of_lengths(texts, captions[REPLACED])
    record = {"name": dataset.name, "captions": len(texts), "images": len(files)}
    return Probes([*images, *pictures()[len(images) :]], captions, texts, files, record)


def pictures() -> list[Image.Image]:
    """Deterministic pictures of SIZES: smooth colour, an edge and a little noise, as photographs have them."""
    return [_picture(i, *size) for i, size in enumerate(SIZES)]


def _picture(seed: int, width: int, height: int, mode: str) -> Image.Image:
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    waves = random.uniform(2, 20, (3, 2))
    smooth = np.stack([np.sin(a * x + b * y) for a, b in waves], axis=-1) * 60 + 128
    edge = np.where((x > random.uniform(0.2, 0.4)) & (y > random.uniform(0.2, 0.4)), 50, -50)[..., None]
    noise = random.normal(0, 8, (height, width, 3))
    image = Image.fromarray(np.clip(smooth + edge + noise, 0, 255).astype(np.uint8), "RGB")
    if not mode.endswith("A"):
        return image.convert(mode)
    image = image.convert(mode.removesuffix("A"))
    image.putalpha(Image.fromarray((255 * x / x.max()).astype(np.uint8), "L"))
    return image


def _files(dataset: Dataset) -> tuple[list[Path], list[Image.Image]]:
    """At most PHOTOGRAPHS of the image files that are there and readable, spread over all; the first REAL decoded."""
    there = [path for name in dataset.images["path"] if archive.is_file(path := dataset.root / name)]
    chosen = np.linspace(0, len(there) - 1, min(PHOTOGRAPHS, len(there))).astype(int)
    files: list[Path] = []
    images: list[Image.Image] = []
    for path in (there[i] for i in chosen):
        try:
            image = read_image(path)
        except ImageFault:
            continue
        files.append(path)
        if len(images) < REAL:
            images.append(image)
    return files, images


def _of_lengths(texts: Sequence[str], otherwise: Sequence[str]) -> Sequence[str]:
    """The shortest, the middle and the longest of `texts` that are not blank, `otherwise` where there are too few."""
    ordered = sorted((text for text in texts if text.strip()), key=lambda text: (len(text), text))
    if len(ordered) < len(otherwise):
        return otherwise
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
