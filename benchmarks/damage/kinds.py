"""What a variant of a deployment is: files changed in a copy of a bundle, or code that calls it otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from lgip_ort.bundle import MANIFEST, TOKENIZER, sha256_file
from lgip_ort.engine import Engine, OrtEngine

Change = Callable[[Path], None]
"""Changes the files of a bundle. Raises Absent where the model has nothing to change."""

Wrap = Callable[[OrtEngine], Engine]
"""Makes another engine of one."""


class Absent(Exception):
    """The model has no part that could be damaged so; the message says what was looked for."""


@dataclass(frozen=True)
class Variant:
    """name: in a word or two. group: tokens, pixels, graph, calls or honest. what: what people do.

    change: to the copy's files; wrap: of the engine; both may be there. engine: options of OrtEngine.
    """

    name: str
    group: str
    what: str
    change: Change | None = None
    wrap: Wrap | None = None
    options: tuple[tuple[str, Any], ...] = ()


def edit_json(name: str, edit: Callable[[dict[str, Any]], None]) -> Change:
    """Edit a JSON file of the bundle in place."""

    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        edit(content)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")

    return change


def manifest(edit: Callable[[dict[str, Any]], None]) -> Change:
    """Edit the manifest."""
    return edit_json(MANIFEST, edit)


def tokenizer(edit: Callable[[dict[str, Any]], None]) -> Change:
    """Edit tokenizer.json."""
    return edit_json(TOKENIZER, edit)


def graph(towers: Sequence[str], edit: Callable[[onnx.ModelProto], None]) -> Change:
    """Edit the graphs of these towers, in every precision; Absent where the edit finds its place in none of them."""

    def change(folder: Path) -> None:
        absent: list[Absent] = []
        files = [g["file"] for g in _manifest(folder)["graphs"] if g["tower"] in towers]
        for name in files:
            model = onnx.load(folder / name)
            try:
                edit(model)
            except Absent as reason:
                absent.append(reason)
            onnx.save(model, folder / name)
        if len(absent) == len(files):
            raise absent[0]

    return change


def rehash(folder: Path) -> None:
    """Write the hashes of the files as they are now: whoever damages a bundle publishes it as well."""
    content = _manifest(folder)
    content["files"] = {name: sha256_file(folder / name) for name in content["files"]}
    (folder / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def _manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))


class Wrapped:
    """An engine as it is; a subclass changes a step."""

    def __init__(self, inner: OrtEngine) -> None:
        self.inner = inner
        self.name, self.dim, self.batch_size, self.stamp = inner.name, inner.dim, inner.batch_size, inner.stamp

    def pixels(self, image: Any) -> np.ndarray:
        """float32 (3, size, size)."""
        return self.inner.pixels(image)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """float32 (n, dim)."""
        return self.inner.embed_pixels(pixels)

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Any:
        """Which texts, and int64 (n, length)."""
        return self.inner.batches(texts, pad_to)

    def embed_ids(self, ids: np.ndarray) -> np.ndarray:
        """float32 (n, dim)."""
        return self.inner.embed_ids(ids)
