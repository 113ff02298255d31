"""Data sets, engines and runs made by hand, so that the right answer is known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import polars as pl
from PIL import Image

from lgip_ort.dataset import Dataset
from lgip_ort.engine import Embeddings, EngineStamp
from lgip_ort.execute import Plan
from lgip_ort.padding import Lengths, Padding
from lgip_ort.run import Run
from lgip_ort.score import SCORES
from lgip_ort.stored import store
from lgip_ort.table import SCHEMA

COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "gray")
COUNTS = ("one", "two", "three", "four", "five")
OBJECTS = ("dog", "cat", "horse", "car", "bus", "train", "person", "bird", "boat")

STAMP: dict[str, Any] = {
    "status": "done",
    "engine": "ort",
    "model": "made",
    "weights": {"source": "random", "name": "seed 0", "revision": None, "sha256": "0" * 64},
    "artifact": "1" * 64,
    "provider": {"asked": "auto", "active": "cpu", "options": {}},
    "precision": {"asked": "fp16", "executed": "fp32 (cast)"},
    "padding": "trained",
    "versions": {"numpy": "2"},
    "suite": "paper",
    "seed": 0,
    "table": "2" * 64,
    "dataset": {"name": "made", "hash": "3" * 64},
}


class MadeEngine:
    """Texts have the vectors they are given, all others [1, 0, 0]; an image's vector is its first pixel's RGB.

    `texts` and `images` record every call.
    """

    name = "made"
    dim = 3
    stamp = EngineStamp(
        "made", "made", STAMP["weights"], "1" * 64, STAMP["provider"], STAMP["precision"], "trained", {"numpy": "2"}
    )

    def __init__(self, vectors: dict[str, Sequence[float]] | None = None) -> None:
        self.batch_size = 64
        self.vectors = vectors or {}
        self.texts: list[list[str]] = []
        self.images: list[int] = []
        self._asked: list[tuple[list[str], int | None]] = []

    def pixels(self, image: Image.Image) -> np.ndarray:
        return np.array(image.convert("RGB").getpixel((0, 0)), np.float32).reshape(3, 1, 1)

    def embed_pixels(self, pixels: np.ndarray) -> Embeddings:
        self.images.append(len(pixels))
        rows = pixels.reshape(-1, 3)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        self._asked.append((list(texts), pad_to))
        yield list(range(len(texts))), np.full((len(texts), 1), len(self._asked) - 1)

    def embed_ids(self, ids: np.ndarray) -> Embeddings:
        """All that was asked for in one call, whatever a subclass makes of it."""
        return self.encode_texts(*self._asked[ids[0, 0]])

    def encode_texts(self, texts: Sequence[str], pad_to: int | None = None) -> Embeddings:
        self.texts.append(list(texts))
        return np.array([self.vectors.get(text, (1, 0, 0)) for text in texts], np.float32).reshape(len(texts), 3)


def make_table(rows: Sequence[tuple[str, str, str]], **columns: Sequence[Any]) -> pl.DataFrame:
    """A table of (image_id, kind, family); texts are numbered, other columns null or given."""
    n = len(rows)
    data = {
        "pair_id": range(1, n + 1),
        "image_id": [row[0] for row in rows],
        "caption_index": [0] * n,
        "suite": ["paper"] * n,
        "kind": [row[1] for row in rows],
        "family": [row[2] for row in rows],
        "text": [f"text {i}" for i in range(n)],
        "perturbed": [f"other {i}" for i in range(n)],
    }
    rest = {name: [None] * n for name in SCHEMA if name not in data}
    return pl.DataFrame(data | rest | columns, schema=SCHEMA)


def make_scores(table: pl.DataFrame, s: Sequence[float | None], s_perturbed: Sequence[float | None]) -> pl.DataFrame:
    """The scores of the pairs of `table`, in its order."""
    return pl.DataFrame(
        {"pair_id": table["pair_id"], "s": s, "s_perturbed": s_perturbed, "text_cosine": [0.5] * len(table)},
        schema=SCORES,
    )


def make_run(
    folder: Path, table: pl.DataFrame, s: Sequence[float], s_perturbed: Sequence[float], /, **stamp: Any
) -> Run:
    """A finished run with these scores; its sampled vectors are the same in every such run."""
    for name in ("scores", "embeddings"):
        (folder / name).mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(STAMP | stamp))
    table.write_parquet(folder / "table.parquet")
    write_shard(folder, make_scores(table, s, s_perturbed))
    make_vectors([("vision", 1, (1, 0)), ("text", 1, (0, 1))]).write_parquet(folder / "embeddings/0.parquet")
    return Run(folder, STAMP | stamp)


def wide_margins(folder: Path) -> Path:
    """Margins that a share of a hundred images can be proved to keep."""
    path = folder / "wide.toml"
    path.write_text("[PR]\nabsolute = 0.05\n[recall]\nabsolute = 0.05\n")
    return path


def write_shard(folder: Path, scores: pl.DataFrame, number: int = 0, start: int = 0, rows: int | None = None) -> None:
    """The scores of `rows` rows of the table from `start` on as a shard of a run; by default of the whole table."""
    place = json.dumps({"start": start, "rows": len(scores) if rows is None else rows, "skipped": []})
    scores.write_parquet(folder / f"scores/{number}.parquet", metadata={"shard": place})


def make_plan(
    folder: Path,
    data: Dataset,
    table: pl.DataFrame,
    seed: int = 0,
    batch_size: int = 64,
    max_skipped: int = 0,
    padding: Padding = "trained",
) -> Plan:
    """A plan over `table`, in whatever order its rows are; the table is stored in `folder`."""
    path = folder / f"{len(list(folder.iterdir())) if folder.exists() else 0}.parquet"
    ordered = data.images.select("image_id").join(table, on="image_id", how="inner", maintain_order="left_right")
    stored = store([ordered.select(table.columns)], data.images, path)
    return Plan(data, stored, "paper", seed, batch_size, max_skipped, padding)


def lengths_of(table: pl.DataFrame) -> dict[str, Any] | None:
    """What a stamp says of the padded lengths of a whole table."""
    lengths = Lengths()
    lengths.add(table)
    return lengths.known()


def make_vectors(rows: Sequence[tuple[str, int, Sequence[float]]]) -> pl.DataFrame:
    """Sampled vectors: (tower, key, vector of two)."""
    schema = pl.Schema([("tower", pl.String()), ("key", pl.UInt64()), ("vector", pl.Array(pl.Float32, 2))])
    return pl.DataFrame(rows, schema=schema, orient="row")


def make_coco(root: Path, images: int = 40) -> Path:
    """A data set in COCO's layout, split `val`: noise images of odd sizes, captions that every flip applies to."""
    (root / "annotations").mkdir(parents=True)
    (root / "val").mkdir()
    rng = np.random.default_rng(0)
    listed, captions = [], []
    for i in range(1, images + 1):
        name = f"{i:012d}.png"
        pixels = rng.integers(0, 256, (9 + i % 5, 12 + i % 3, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "val" / name)
        listed.append({"id": i, "file_name": name})
        colour, count, thing = COLOURS[i % 8], COUNTS[i % 5], OBJECTS[i % 9]
        captions.append({"image_id": i, "caption": f"{count} {colour} {thing} in the scene."})
        captions.append({"image_id": i, "caption": f"A photo of a {colour} {thing}, {count} of them\n"})
    write_captions(root, listed, captions)
    return root


def write_captions(
    root: Path, images: list[dict[str, Any]], annotations: list[dict[str, Any]], split: str = "val"
) -> Path:
    """annotations/captions_<split>.json; returns its path."""
    path = root / "annotations" / f"captions_{split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"images": images, "annotations": annotations}), encoding="utf-8")
    return path


def write_instances(root: Path, images: list[int], objects: list[tuple[int, str]], split: str = "val") -> Path:
    """annotations/instances_<split>.json of objects (image id, category); returns its path."""
    path = root / "annotations" / f"instances_{split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for _, name in objects))
    data = {
        "images": [{"id": i} for i in images],
        "categories": [{"id": i, "name": name} for i, name in enumerate(names)],
        "annotations": [{"image_id": i, "category_id": names.index(name)} for i, name in objects],
    }
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def pack(folder: Path) -> Path:
    """`folder` as an archive beside it, its members named as COCO's are (`val/name.png`); the folder is removed."""
    archive = folder.with_suffix(".zip")
    with ZipFile(archive, "w") as file:
        file.mkdir(folder.name)
        for path in sorted(folder.iterdir()):
            file.write(path, f"{folder.name}/{path.name}")
    shutil.rmtree(folder)
    return archive
