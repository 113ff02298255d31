"""At which step a candidate leaves its reference: tokens, pixels, one of the graphs, or the norm of what they give.

What the reference makes of texts and images is put through the candidate, a step at a time: its token ids and its
pixels go into the candidate's graphs. What is left of the difference then is the graph's; what went, preprocessing's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lgip_ort.encode import read_ahead
from lgip_ort.engine import Embeddings, Engine
from lgip_ort.image import ImageFault, Pixels
from lgip_ort.run import Run, read_frame

IMAGES, TEXTS = 32, 128
"""How many of each are looked at."""

SEEN = 1e-5
"""A loss of cosine, on average, that is smaller is nobody's fault: fp16 alone costs about a hundredth of it."""
SHARE = 0.1
"""A step is to blame where it costs at least this share of what the worst step costs."""
NORM = 1e-3
"""How far from 1 the norm of an embedding may be."""


@dataclass(frozen=True)
class Step:
    """What one step does to `compared` inputs.

    tower: image or text; step: `pixels`, `vision graph`, `tokens`, `text graph` or `normalisation`; differing: share of
    inputs that come out otherwise, by more than SEEN where vectors are compared; cosine_mean, cosine_min: between the
    candidate's vectors with and without the step's difference, None where there is nothing to compare; found: in words;
    noise: the mean loss of cosine between the candidate's vectors of the same inputs, together and one by one; a graph
    that is not sure of its own has that on its account, its inputs have not.
    """

    tower: str
    step: str
    compared: int
    differing: float
    cosine_mean: float | None
    cosine_min: float | None
    found: str
    noise: float = 0.0
    to_blame: bool = False

    @property
    def cost(self) -> float:
        """The mean loss of cosine; where there is no cosine, all of it if anything differs."""
        return (1.0 if self.differing else 0.0) if self.cosine_mean is None else 1 - self.cosine_mean

    @property
    def least(self) -> float:
        """A smaller cost says nothing."""
        return max(SEEN, 2 * self.noise)


def find(reference: Engine, candidate: Engine, run: Run) -> list[Step]:
    """The steps of both towers over a sample of the images and texts of `run`, those to blame marked."""
    images = read_frame(run.folder / "images.parquet").sort(pl.col("image_id").hash(0)).head(2 * IMAGES)
    root = Path(run.stamp["dataset"]["root"])
    return blame(reference, candidate, [root / path for path in images["path"]], _texts(run))


def blame(reference: Engine, candidate: Engine, images: Sequence[Path], texts: Sequence[str]) -> list[Step]:
    """The steps over these images, the first IMAGES that can be read, and these texts."""
    steps = [*_of_images(reference, candidate, images), *_of_texts(reference, candidate, texts)]
    worst = max((step.cost for step in steps), default=0.0)
    return [
        Step(**(vars(step) | {"to_blame": step.to_blame or (step.cost > step.least and step.cost >= SHARE * worst)}))
        for step in steps
    ]


def _texts(run: Run) -> list[str]:
    """TEXTS texts of the first shard, captions and what was made of them by turns."""
    part = next(run.parts(), None)
    if part is None:
        return []
    chosen = part.filter(pl.col("kind") != "identity").sort("pair_id").head(TEXTS)
    return list(dict.fromkeys(text for pair in chosen.select("text", "perturbed").iter_rows() for text in pair))[:TEXTS]


def _of_images(reference: Engine, candidate: Engine, paths: Sequence[Path]) -> list[Step]:
    theirs, ours = (list(_readable(engine, paths)) for engine in (reference, candidate))
    n = min(len(theirs), len(ours))
    if n == 0:
        return []
    expected = _embed(reference.embed_pixels, np.stack(theirs), reference.batch_size)
    shapes = theirs[0].shape, ours[0].shape
    if shapes[0] != shapes[1]:
        found = f"{' x '.join(map(str, shapes[1]))} values an image, {' x '.join(map(str, shapes[0]))} expected"
        return [Step("image", "pixels", n, 1.0, None, None, found)]
    differing = [not np.array_equal(a, b) for a, b in zip(theirs, ours, strict=True)]
    largest = max(float(np.abs(a - b).max()) for a, b in zip(theirs, ours, strict=True))
    with_theirs = _embed(candidate.embed_pixels, np.stack(theirs), candidate.batch_size)
    with_ours = _embed(candidate.embed_pixels, np.stack(ours), candidate.batch_size)
    noise = _loss(_cosine(_embed(candidate.embed_pixels, np.stack(theirs), 1), with_theirs))
    found = f"largest difference {largest:.3g}" if any(differing) else "equal, bit for bit"
    return [
        _step("image", "pixels", np.array(differing), _cosine(with_ours, with_theirs), found, noise),
        _graph("image", "vision graph", with_theirs, expected),
        *_norm("image", with_ours),
    ]


def _of_texts(reference: Engine, candidate: Engine, texts: Sequence[str]) -> list[Step]:
    if not texts:
        return []
    theirs, ours = _ids(reference, texts), _ids(candidate, texts)
    expected, with_theirs, with_ours = (
        _embed_ids(engine, ids) for engine, ids in ((reference, theirs), (candidate, theirs), (candidate, ours))
    )
    differing = np.array([not _same_but_padding(a, b) for a, b in zip(theirs, ours, strict=True)])
    noise, cosine = _loss(_cosine(_embed_ids(candidate, theirs, 1), with_theirs)), _cosine(with_ours, with_theirs)
    if differing.any():
        row = int(differing.argmax())
        a, b = (" ".join(map(str, ids[row])) for ids in (theirs, ours))
        found = f"the first is {texts[row]!r}: {b}, {a} expected"
    elif _loss(cosine) > max(SEEN, 2 * noise):
        found = f"equal but for padding: {len(ours[0])} ids ending in {ours[0][-1]}, "
        found += f"{len(theirs[0])} ending in {theirs[0][-1]} expected"
    else:
        found = "equal"
    return [
        _step("text", "tokens", differing, cosine, found, noise),
        _graph("text", "text graph", with_theirs, expected),
        *_norm("text", with_ours),
    ]


def _readable(engine: Engine, paths: Sequence[Path]) -> list[Pixels]:
    return [item for item in read_ahead(engine, paths) if not isinstance(item, ImageFault)][:IMAGES]


def _ids(engine: Engine, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    """Token ids of each text as the engine makes them: int64 (length,), padding included."""
    out: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(texts)
    for rows, ids in engine.batches(texts):
        for row, of_text in zip(rows, ids, strict=True):
            out[row] = of_text
    return out


def _same_but_padding(a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    """Whether two texts are the same ids up to where one ends, or where each repeats an id to its end: that is padding.

    A single last id is no padding: it is read as one only beside nothing.
    """
    shared = min(len(a), len(b))
    same = int(np.argmin(np.append(a[:shared] == b[:shared], False)))
    rests = a[same:], b[same:]
    if any(len(np.unique(rest)) > 1 for rest in rests):
        return False
    return min(len(rest) for rest in rests) == 0 or max(len(rest) for rest in rests) > 1


def _embed(embed: Callable[[Any], Embeddings], inputs: NDArray[Any], batch: int) -> Embeddings:
    return np.concatenate([embed(inputs[start : start + batch]) for start in range(0, len(inputs), batch)])


def _embed_ids(engine: Engine, ids: Sequence[NDArray[np.int64]], batch: int | None = None) -> Embeddings:
    """float32 (n, dim): texts of one length go together, `batch` at a time, by default as many as the engine takes."""
    out = np.empty((len(ids), engine.dim), np.float32)
    for length in sorted({len(of_text) for of_text in ids}):
        rows = [row for row, of_text in enumerate(ids) if len(of_text) == length]
        out[rows] = _embed(engine.embed_ids, np.stack([ids[row] for row in rows]), batch or engine.batch_size)
    return out


def _cosine(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    """Row by row; NaN where a vector has no length."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1))


def _loss(cosine: NDArray[np.float64]) -> float:
    return 1 - float(np.nan_to_num(cosine, nan=0.0).mean())


def _step(
    tower: str, step: str, differing: NDArray[np.bool_], cosine: NDArray[np.float64], found: str, noise: float
) -> Step:
    known = np.nan_to_num(cosine, nan=0.0)
    return Step(
        tower, step, len(cosine), float(differing.mean()), float(known.mean()), float(known.min()), found, noise
    )


def _graph(tower: str, step: str, made: Embeddings, expected: Embeddings) -> Step:
    if made.shape != expected.shape:
        found = f"{made.shape[1]} values an embedding, {expected.shape[1]} expected"
        return Step(tower, step, len(made), 1.0, None, None, found)
    cosine = _cosine(made, expected)
    differing = ~(cosine >= 1 - SEEN)
    found = f"cosine to the reference {np.nan_to_num(cosine).mean():.6f} on average, with its own inputs"
    return _step(tower, step, differing, cosine, found, 0.0)


def _norm(tower: str, made: Embeddings) -> list[Step]:
    norms = np.linalg.norm(made.astype(np.float64), axis=1)
    off = ~(np.abs(norms - 1) <= NORM)
    if not off.any():
        return []
    found = f"norms from {np.nanmin(norms):.4g} to {np.nanmax(norms):.4g}, 1 expected"
    return [Step(tower, "normalisation", len(made), float(off.mean()), None, None, found, to_blame=True)]
