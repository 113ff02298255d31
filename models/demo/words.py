"""The word data of the scenes (`words.toml`) as typed tables."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

RGB = tuple[int, int, int]


@dataclass(frozen=True)
class Noun:
    """An object of the scenes: its names, how it is drawn, and COCO's id and supercategory for it."""

    name: str
    id: int
    supercategory: str
    glyph: str
    plural: str
    synonyms: list[list[str]]
    verbs: list[str]


@dataclass(frozen=True)
class Colour:
    """A colour: its middle tone in sRGB levels, and other words for it."""

    name: str
    rgb: RGB
    synonyms: list[str]


@dataclass(frozen=True)
class Ground:
    """A kind of background: how to say it, and how to paint it (see `words.toml`)."""

    name: str
    phrase: str
    places: list[str]
    jitter: float
    grain: list[list[float]]
    detail: str
    floor: list[list[float]] | None = None
    sky: list[list[float]] | None = None


@dataclass(frozen=True)
class Sentence:
    """A sentence pattern, how often it is drawn, and for which number of objects (None: any)."""

    weight: int
    text: str
    count: str | None = None


TABLES = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))

COUNTS: list[str] = TABLES["counts"]
COUNT_WEIGHTS: list[int] = TABLES["count_weights"]
WRAPPERS: list[str] = TABLES["wrappers"]
BESIDE: list[str] = TABLES["beside"]
SOME: list[str] = TABLES["some"]
SOME_TWO: list[str] = TABLES["some_two"]
SINGLE: list[str] = TABLES["single"]
TWO: list[str] = TABLES["two"]
OBJECTS = {name: Noun(name=name, **entry) for name, entry in TABLES["objects"].items()}
COLOURS = {
    name: Colour(name=name, rgb=tuple(entry["rgb"]), synonyms=entry["synonyms"])
    for name, entry in TABLES["colours"].items()
}
GROUNDS = {name: Ground(name=name, **entry) for name, entry in TABLES["grounds"].items()}
SENTENCES = [Sentence(**entry) for entry in TABLES["sentences"]]
