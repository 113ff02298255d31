"""Rendered scenes with their captions, made once and kept in a cache folder, and batches drawn from them."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from models.demo import ROOT
from models.demo.grammar import captions
from models.demo.scenes import Spec, scene

CHUNK = 1000
SIMILAR_KINDS = (0.5, 0.2, 0.3)
"""Shares of similar batches: of two colours, of two objects, of sixteen pairs of both.

Telling objects apart is hardest to learn, so that most batches share colours.
"""
GROUP = 8
"""Scenes of one object and colour that stand together in a batch of the third kind."""

SOURCES = ("words.toml", "words.py", "sprites.py", "grounds.py", "scenes.py", "grammar.py")


@dataclass(frozen=True)
class Corpus:
    """Scenes: pixels (n, SIZE, SIZE, 3) uint8, five captions each, and what each shows."""

    pixels: np.ndarray
    captions: list[list[str]]
    objects: np.ndarray
    colours: np.ndarray

    def texts(self) -> list[str]:
        """All captions in order."""
        return [text for row in self.captions for text in row]


def draw(seed: int, indices: range) -> tuple[np.ndarray, list[dict[str, object]]]:
    """Scenes `indices` of a stream: pixels, and a record (object, colour, captions) each."""
    pixels, records = [], []
    for index in indices:
        spec, image, _ = scene(seed, index)
        pixels.append(image)
        records.append(record(spec, captions(spec, seed, index)))
    return np.stack(pixels), records


def record(spec: Spec, texts: list[str]) -> dict[str, object]:
    """What of a scene is kept beside its pixels."""
    return {"object": spec.object, "colour": spec.colour, "captions": texts}


def fingerprint(seed: int, count: int) -> str:
    """Twelve hex digits that change with whatever decides what the scenes are."""
    digest = hashlib.sha256(f"{seed}/{count}".encode())
    for name in SOURCES:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()[:12]


def load(seed: int, count: int, cache: Path, processes: int = 2) -> Corpus:
    """Scenes 0 to `count` - 1 of a stream, rendered where the cache lacks them."""
    stem = cache / f"scenes-{fingerprint(seed, count)}"
    images, notes = stem.with_suffix(".npy"), stem.with_suffix(".json")
    # The notes come last: where they are, the pixels are whole.
    if not notes.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        chunks = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
        with multiprocessing.Pool(processes) as pool:
            parts = pool.map(partial(draw, seed), chunks, chunksize=1)
        # Two trainings may fill the same cache at once: each writes files of its own and renames them.
        own = cache / f"partial-{os.getpid()}"
        np.save(own.with_suffix(".npy"), np.concatenate([pixels for pixels, _ in parts]))
        own.with_suffix(".npy").replace(images)
        own.with_suffix(".json").write_text(json.dumps([entry for _, rows in parts for entry in rows]), "utf-8")
        own.with_suffix(".json").replace(notes)
    entries = json.loads(notes.read_text("utf-8"))
    return Corpus(
        np.load(images, mmap_mode="r"),
        [entry["captions"] for entry in entries],
        np.array([entry["object"] for entry in entries]),
        np.array([entry["colour"] for entry in entries]),
    )


class Batches:
    """Batches of scene indices, each a function of (seed, step) alone, so that training can be taken up again.

    A share of the batches is of similar scenes: they cannot be told apart by what they share, so that the
    model must look at the rest. Without them colour alone answers most of a batch.
    """

    def __init__(self, corpus: Corpus, size: int, similar: float, seed: int) -> None:
        self.count, self.size, self.similar, self.seed = len(corpus.captions), size, similar, seed
        self.by_colour = self._groups(corpus.colours)
        self.by_object = self._groups(corpus.objects)
        self.by_both = self._groups(np.char.add(np.char.add(corpus.colours, " "), corpus.objects))

    @staticmethod
    def _groups(labels: np.ndarray) -> list[np.ndarray]:
        found = defaultdict(list)
        for index, label in enumerate(labels.tolist()):
            found[label].append(index)
        return [np.array(members) for members in found.values()]

    def rng(self, step: int) -> np.random.Generator:
        """The random stream of a step."""
        return np.random.default_rng([self.seed, step])

    def indices(self, rng: np.random.Generator) -> np.ndarray:
        """Scene indices of one batch, shape (size,)."""
        if rng.random() >= self.similar:
            return rng.choice(self.count, self.size, replace=False)
        kind = int(rng.choice(3, p=SIMILAR_KINDS))
        if kind < 2:
            groups = (self.by_colour, self.by_object)[kind]
            pool = np.concatenate([groups[chosen] for chosen in rng.choice(len(groups), 2, replace=False)])
            return rng.choice(pool, self.size, replace=False)
        chosen = rng.choice(len(self.by_both), self.size // GROUP, replace=False)
        return np.concatenate([rng.choice(self.by_both[group], GROUP, replace=False) for group in chosen])
