"""Scenes: what is in one (`Spec`), and how it is drawn.

Every scene has a random stream of its own, named by (seed, index), so that scene 7 is the same whether it is drawn
alone, after scene 6, or in another process.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from models.demo import SIZE
from models.demo.grounds import paint
from models.demo.sprites import MARGIN, Sprite, sprite
from models.demo.words import COLOURS, COUNT_WEIGHTS, COUNTS, GROUNDS, OBJECTS

SECOND_OBJECT = 0.18
"""Share of scenes with one more object, of another kind."""

SIDES = {1: (24, 32, 40), 2: (20, 24, 28), 3: (20, 24), 4: (18, 22), 5: (18, 20), 6: (18,)}
"""Possible longer sides of a sprite, in pixels, by the number of sprites in the scene."""

GRID = 4
"""Sprites sit on a grid of this many pixels: few positions, so that counting can be learned from few scenes."""

LAYOUTS = 6
"""How many layouts are tried before an overlap is accepted."""

Box = tuple[int, int, int, int]
"""Left, top, width, height, in pixels."""


@dataclass(frozen=True)
class Spec:
    """What a scene shows: `count` objects of one kind and colour, a ground, perhaps one object of another kind."""

    object: str
    colour: str
    count: int
    ground: str
    wall: str | None = None
    second: tuple[str, str] | None = None

    def things(self) -> list[tuple[str, str]]:
        """Every (object, colour) to draw, in the order of drawing."""
        return [(self.object, self.colour)] * self.count + ([self.second] if self.second else [])


@dataclass(frozen=True)
class Instance:
    """One drawn object: kind, colour, bounding box, and area in opaque pixels."""

    object: str
    colour: str
    box: Box
    area: int


def stream(seed: int, index: int, purpose: str) -> random.Random:
    """The random stream of scene `index` for one purpose (spec, layout, captions)."""
    return random.Random(f"{seed}/{index}/{purpose}")


def sample(rng: random.Random) -> Spec:
    """Draw a scene: kinds, colours and grounds uniformly, counts by `count_weights`."""
    kind, colour = rng.choice(list(OBJECTS)), rng.choice(list(COLOURS))
    (number,) = rng.choices(range(1, len(COUNTS) + 1), COUNT_WEIGHTS)
    ground = rng.choice(list(GROUNDS))
    # An object on a wall of its own colour would be hard to see even for us.
    wall = rng.choice([name for name in COLOURS if name != colour]) if ground == "wall" else None
    second = None
    if rng.random() < SECOND_OBJECT:
        # Never the colour of the wall, for the same reason; never the first kind, or the count would be wrong.
        second = (
            rng.choice([name for name in OBJECTS if name != kind]),
            rng.choice([name for name in COLOURS if name != wall]),
        )
    return Spec(kind, colour, number, ground, wall, second)


def overlap(box: Box, others: list[Box]) -> int:
    """Area, in square pixels, that `box` shares with the other boxes."""
    left, top, width, height = box
    shared = 0
    for x, y, w, h in others:
        across = min(left + width, x + w) - max(left, x)
        down = min(top + height, y + h) - max(top, y)
        shared += max(0, across) * max(0, down)
    return shared


def place(sizes: list[tuple[int, int]], rng: random.Random) -> list[Box]:
    """Boxes of the given sizes on the grid, free of each other wherever a few tries find such a layout."""
    best: tuple[int, list[Box]] | None = None
    for _ in range(LAYOUTS):
        boxes: list[Box] = []
        shared = 0
        for width, height in sizes:
            cells = [
                (left, top, width, height)
                for left in range(MARGIN, SIZE - width, GRID)
                for top in range(MARGIN, SIZE - height, GRID)
            ]
            costs = [overlap(cell, boxes) for cell in cells]
            least = min(costs)
            boxes.append(rng.choice([cell for cell, cost in zip(cells, costs, strict=True) if cost == least]))
            shared += least
        if best is None or shared < best[0]:
            best = (shared, boxes)
        if shared == 0:
            break
    assert best is not None
    return best[1]


def halo_colour(spec: Spec, colour: str) -> tuple[int, int, int]:
    """Dark around every sprite, except at night, where only bright sprites stand out by themselves."""
    return (150, 150, 170) if spec.ground == "night" and colour not in ("white", "yellow") else (20, 20, 25)


def render(spec: Spec, seed: int, index: int) -> tuple[np.ndarray, list[Instance]]:
    """Draw a scene: pixels of shape (SIZE, SIZE, 3), uint8, sRGB, and what was drawn where."""
    rng = stream(seed, index, "layout")
    image = paint(spec.ground, spec.wall, np.random.default_rng([seed, index]))
    things = spec.things()
    side = rng.choice(SIDES[len(things)])
    sprites: list[Sprite] = [sprite(name, colour, side, rng.random() < 0.5) for name, colour in things]
    boxes = place([drawn.size for drawn in sprites], rng)
    instances = []
    for (name, colour), drawn, box in zip(things, sprites, boxes, strict=True):
        left, top = box[:2]
        # A thin soft edge keeps an object legible on a ground of its own colour.
        image.paste(halo_colour(spec, colour), (left - MARGIN, top - MARGIN), drawn.halo)
        image.paste(drawn.image, (left, top), drawn.image)
        instances.append(Instance(name, colour, box, drawn.area()))
    return np.asarray(image), instances


def scene(seed: int, index: int) -> tuple[Spec, np.ndarray, list[Instance]]:
    """Scene `index` of the stream `seed`: its spec, its pixels, its instances."""
    spec = sample(stream(seed, index, "spec"))
    pixels, instances = render(spec, seed, index)
    return spec, pixels, instances
