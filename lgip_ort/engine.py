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

from lgip_ort.bundle import Bundle, Precision
from lgip_ort.errors import UsageFault
from lgip_ort.image import preprocess
from lgip_ort.padding import check_graphs, choose_padding, pinned
from lgip_ort.session import Provider, Session, choose
from lgip_ort.text import TextEncoder

Embeddings = NDArray[np.float32]
"""float32 (n, dim), rows of L2 norm 1."""

EXECUTED = {("cpu", "fp16"): "fp32 (cast)", ("cpu", "int8"): "int8 (dynamic)"}
"""Provider, precision -> what the arithmetic runs in, where that is not the precision itself.

The CPU provider has no fp16 kernels for most operators: it casts, and computes in fp32. In an int8 graph what is
multiplied by weights is quantised batch by batch; the rest is fp32.
"""


@dataclass(frozen=True)
class EngineStamp:
    """What an engine is, for the record of a run.

    `weights`: source, name, revision and sha256 of the tensors; `provider`: `asked`, `active` and its options;
    `precision`: `asked` (what the artifact is stored in) and `executed` (what the arithmetic ran in, see EXECUTED);
    `padding`: the arm; `versions`: of every library that touches a number.
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
        tower is exact at any. Raises ValueError where a text is longer, and for another length than the trained one
        where the arm is `trained` and the length matters.
        """
        ...


class OrtEngine:
    """A bundle on ONNX Runtime.

    `padding`: the arm (see `padding`); `precision`: which graphs, None for the bundle's default.

    Raises UsageFault where the provider or the arm is unknown, where the provider is not active or can't run the
    precision, where the bundle lacks the precision, where a graph's output is not the manifest's, and where the text
    graph takes none of the arm's lengths.
    """

    name = "ort"

    def __init__(
        self,
        bundle: Bundle,
        provider: str = "auto",
        batch_size: int = 64,
        padding: str = "trained",
        precision: Precision | None = None,
    ) -> None:
        vision, text = bundle.graph("vision", precision), bundle.graph("text", precision)
        chosen, arm = provider_for(provider, vision.precision), choose_padding(padding)
        check_graphs(bundle, arm)
        self.batch_size = batch_size
        self._image_spec = bundle.manifest.image
        self._text = TextEncoder(bundle)
        self._vision_session = Session(bundle.path(vision.file), chosen)
        self._text_session = Session(bundle.path(text.file), chosen, pinned(bundle.manifest.text, text, arm))
        self.dim = bundle.manifest.embedding_dim
        for session, graph in ((self._vision_session, vision), (self._text_session, text)):
            if session.dim != self.dim:
                raise UsageFault(f"{bundle.path(graph.file)}: {session.dim} values an embedding, {self.dim} expected")
        executed = EXECUTED.get((chosen.key, vision.precision), vision.precision)
        self.stamp = EngineStamp(
            engine=self.name,
            model=bundle.manifest.model,
            weights=dataclasses.asdict(bundle.manifest.weights),
            artifact=bundle.sha256,
            provider={"asked": provider, "active": chosen.key, "options": self._vision_session.options()},
            precision={"asked": vision.precision, "executed": executed},
            padding=arm,
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


def provider_for(asked: str, precision: Precision) -> Provider:
    """The provider for graphs in `precision`; `auto` is the CPU for int8. Raises UsageFault as `session.choose` does.

    CUDA's integer product takes signed activations, quantising as they come makes unsigned ones: ONNX Runtime would put
    every product of an int8 graph on the CPU, copies to and fro included, and call CUDA active. That is an error, too.
    """
    if precision == "int8" and asked == "cuda":
        raise UsageFault(
            "CUDAExecutionProvider has no kernel for the products of an int8 graph; --provider cpu runs them"
        )
    return choose("cpu" if precision == "int8" and asked == "auto" else asked)
