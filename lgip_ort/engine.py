"""What scores captions: the Engine protocol, and the engine that runs a bundle on ONNX Runtime."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL.Image import Image

from lgip_ort.bundle import Bundle
from lgip_ort.errors import UsageFault
from lgip_ort.image import preprocess
from lgip_ort.session import Session, choose
from lgip_ort.text import TextEncoder

Embeddings = NDArray[np.float32]
"""float32 (n, dim), rows of L2 norm 1."""


@dataclass(frozen=True)
class EngineStamp:
    """What an engine is, for the record of a run.

    `weights`: source, name, revision and sha256 of the tensors; `provider`: `asked`, `active` and its options;
    `precision`: `asked` (what the artifact is stored in) and `executed` (what the arithmetic ran in);
    `versions`: of every library that touches a number.
    """

    engine: str
    model: str
    weights: dict[str, Any]
    artifact: str
    provider: dict[str, Any]
    precision: dict[str, str]
    padding: str
    versions: dict[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """A dual encoder. Everything above this protocol is the same code, so two runs can only differ by their engine."""

    name: str
    dim: int
    stamp: EngineStamp

    def encode_images(self, images: Sequence[Image]) -> Embeddings:
        """Decoded images, in any colour mode -> float32 (n, dim), L2-normalised. Preprocessing is the engine's own."""
        ...

    def encode_texts(self, texts: Sequence[str], pad_to: int | None = None) -> Embeddings:
        """Texts -> float32 (n, dim), L2-normalised.

        `pad_to`: length in tokens that every text is padded to; None is the trained length, or any length where the
        tower is exact at any.
        """
        ...


class OrtEngine:
    """A bundle on ONNX Runtime.

    Raises UsageFault where the provider is unknown or not active, and where a graph's output is not the manifest's.
    """

    name = "ort"

    def __init__(self, bundle: Bundle, provider: str = "auto", batch_size: int = 64) -> None:
        chosen = choose(provider)
        self.batch_size = batch_size
        self._image_spec = bundle.manifest.image
        self._text = TextEncoder(bundle)
        vision, text = bundle.graph("vision"), bundle.graph("text")
        self._vision_session = Session(bundle.path(vision.file), chosen)
        self._text_session = Session(bundle.path(text.file), chosen)
        self.dim = bundle.manifest.embedding_dim
        for session, graph in ((self._vision_session, vision), (self._text_session, text)):
            if session.dim != self.dim:
                raise UsageFault(f"{bundle.path(graph.file)}: {session.dim} values an embedding, {self.dim} expected")
        # The CPU provider has no fp16 kernels for most operators: it casts, and computes in fp32.
        cast = chosen.key == "cpu" and vision.precision == "fp16"
        self.stamp = EngineStamp(
            engine=self.name,
            model=bundle.manifest.model,
            weights=dataclasses.asdict(bundle.manifest.weights),
            artifact=bundle.sha256,
            provider={"asked": provider, "active": chosen.key, "options": self._vision_session.options()},
            precision={"asked": vision.precision, "executed": "fp32 (cast)" if cast else vision.precision},
            padding="trained",
            versions={n: importlib.metadata.version(n) for n in ("numpy", "pillow", "tokenizers", "ftfy")}
            | {"onnxruntime": onnxruntime.__version__},
        )

    def encode_images(self, images: Sequence[Image]) -> Embeddings:
        """Decoded images, in any colour mode -> float32 (n, dim), L2-normalised."""
        out = np.empty((len(images), self.dim), np.float32)
        for start in range(0, len(images), self.batch_size):
            rows = slice(start, start + self.batch_size)
            out[rows] = self._vision_session(preprocess(images[rows], self._image_spec))
        return out

    def encode_texts(self, texts: Sequence[str], pad_to: int | None = None) -> Embeddings:
        """Texts -> float32 (n, dim), L2-normalised. Batches hold texts of like length; the order of rows is kept."""
        out = np.empty((len(texts), self.dim), np.float32)
        ids = self._text.ids(texts)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            out[rows] = self._text_session(self._text.pad([ids[i] for i in rows], pad_to))
        return out
