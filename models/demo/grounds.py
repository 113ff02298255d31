"""Textured backgrounds: a gradient, often with a horizon, some grain, and a detail that tells what it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from models.demo import SIZE
from models.demo.words import COLOURS, GROUNDS

Pixels = np.ndarray
"""Shape (SIZE, SIZE, 3), float64, sRGB levels, not clipped yet."""


def gradient(ends: list[list[float]], jitter: float, rng: np.random.Generator) -> Pixels:
    """A vertical gradient between two colours, each moved by at most `jitter` levels a channel."""
    top, bottom = np.array(ends, dtype=np.float64) + rng.uniform(-jitter, jitter, (2, 3))
    weight = np.linspace(0, 1, SIZE)[:, None, None]
    return np.broadcast_to(top * (1 - weight) + bottom * weight, (SIZE, SIZE, 3)).copy()


def noise(deviation: float, cell: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth noise of zero mean, shape (SIZE, SIZE, 1): one normal draw a cell of `cell` pixels, enlarged."""
    coarse = rng.normal(0, deviation, (SIZE // cell, SIZE // cell)).astype(np.float32)
    smooth = Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    return np.asarray(smooth, dtype=np.float64)[..., None]


def lane(pixels: Pixels, horizon: int, rng: np.random.Generator) -> Pixels:
    """A dashed white line across the road."""
    row = int(rng.integers(SIZE // 2, SIZE * 4 // 5))
    for column in range(int(rng.integers(0, 8)), SIZE, 14):
        pixels[row : row + 2, column : column + 7] = 235
    return pixels


def foam(pixels: Pixels, horizon: int, rng: np.random.Generator) -> Pixels:
    """The bright edge of the sea."""
    pixels[horizon : horizon + 2] = 245
    return pixels


def ripples(pixels: Pixels, horizon: int, rng: np.random.Generator) -> Pixels:
    """A few short bright strokes."""
    for _ in range(7):
        row, column = int(rng.integers(2, SIZE - 2)), int(rng.integers(0, SIZE - 12))
        pixels[row, column : column + int(rng.integers(5, 12))] += 35
    return pixels


def shade(pixels: Pixels, horizon: int, rng: np.random.Generator) -> Pixels:
    """Light that falls on the wall from one side."""
    across, down = rng.uniform(-0.12, 0.12, 2)
    position = np.linspace(-1, 1, SIZE)
    return pixels * (1 + across * position[None, :, None] + down * position[:, None, None])


def clouds(pixels: Pixels, horizon: int, rng: np.random.Generator) -> Pixels:
    """Soft bright patches."""
    return pixels + 1.5 * np.maximum(noise(22, 12, rng), 0)


def stars(pixels: Pixels, horizon: int, rng: np.random.Generator) -> Pixels:
    """Single bright pixels in the upper half."""
    lit = rng.random((SIZE, SIZE)) < 0.012
    lit[SIZE // 2 :] = False
    pixels[lit] = 220
    return pixels


DETAILS: dict[str, Callable[[Pixels, int, np.random.Generator], Pixels]] = {
    "none": lambda pixels, horizon, rng: pixels,
    "lane": lane,
    "foam": foam,
    "ripples": ripples,
    "shade": shade,
    "clouds": clouds,
    "stars": stars,
}


def wall_ends(colour: str) -> list[list[float]]:
    """Both ends of a wall's gradient: its colour, paler than an object of that colour would be."""
    rgb = np.array(COLOURS[colour].rgb, dtype=np.float64)
    pale = rgb * 0.9 + 8 if colour in ("white", "black") else rgb * 0.55 + 0.45 * 205
    return [pale.tolist()] * 2


def paint(name: str, wall: str | None, rng: np.random.Generator) -> Image.Image:
    """A background of kind `name` (a wall has the colour `wall`) as an RGB image of SIZE x SIZE."""
    ground = GROUNDS[name]
    floor = ground.floor if ground.floor is not None else wall_ends(wall or "white")
    pixels = gradient(floor, ground.jitter, rng)
    horizon = int(rng.integers(SIZE * 18 // 100, SIZE * 35 // 100))
    if ground.sky is not None:
        pixels[:horizon] = gradient(ground.sky, ground.jitter, rng)[:horizon]
    for deviation, cell in ground.grain:
        pixels += noise(deviation, int(cell), rng)
    pixels = DETAILS[ground.detail](pixels, horizon, rng)
    return Image.fromarray(np.rint(pixels.clip(0, 255)).astype(np.uint8))
