"""Images and captions that a graph is checked on: the demo's scenes where they are there, and pictures made by rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from lgip_ort.errors import UsageFault

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


@dataclass(frozen=True)
class Probes:
    """What a tower is checked on: as many images as captions, and further captions for the tokenizer alone."""

    images: list[Image.Image]
    captions: list[str]
    texts: list[str]


def probes(captions: Sequence[str] = ()) -> Probes:
    """The probes; the demo's scenes and captions are among them where this checkout has them."""
    images, texts = pictures(), list(captions)
    scenes, scene_captions = _demo(len(images) // 2)
    images[: len(scenes)] = scenes
    return Probes(images, list(CAPTIONS), [*texts, *scene_captions])


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
    if mode == "RGBA":
        image.putalpha(Image.fromarray((255 * x / x.max()).astype(np.uint8), "L"))
    return image if mode == "RGBA" else image.convert(mode)


def _demo(count: int) -> tuple[list[Image.Image], list[str]]:
    """The first `count` demo scenes and the captions of all, empty where this checkout has none."""
    from lgip_ort.dataset import open_dataset
    from lgip_ort.image import read_image

    try:
        demo = open_dataset("demo")
    except (UsageFault, OSError):
        return [], []
    paths = demo.images["path"].head(count).to_list()
    return [read_image(demo.root / path) for path in paths], demo.captions["text"].to_list()
