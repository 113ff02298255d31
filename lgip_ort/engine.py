"""What scores captions: the Engine protocol, and the engine that runs a bundle on ONNX Runtime."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL.Image import Image

from lgip_ort.bundle import Bundle, Precision, open_bundle
from lgip_ort.errors import UsageFault
from lgip_ort.halving import Halving
from lgip_ort.image import Pixels, pixels_of
from lgip_ort.padding import check_graphs, choose_padding, pinned
from lgip_ort.provider import PROVIDERS, Provider, arithmetic, choose
from lgip_ort.session import Session
from lgip_ort.text import Rows, TextEncoder, TokenIds

Embeddings = NDArray[np.float32]
"""float32 (n, dim), rows of L2 norm 1."""

LEAST_PLACED = 0.9
"""Least share of the compute time of a batch that a provider must do itself."""


@dataclass(frozen=True)
class EngineStamp:
    """What an engine is, for the record of a run.

    `weights`: source, name, revision and sha256 of the tensors; `provider`: `asked`, `active` and its options;
    `precision`: `asked` (what the artifact is stored in) and `executed` (what the arithmetic ran in, see `executed`);
    `padding`: the arm; `versions`: of every library that touches a number; `placement`: by tower, the share of nodes
    and of time on the provider, measured, hence not the same in every run; empty where there is no other provider;
    `size`: bytes of both towers as stored, None where nobody knows.
    """

    engine: str
    model: str
    weights: dict[str, Any]
    artifact: str
    provider: dict[str, Any]
    precision: dict[str, str]
    padding: str
    versions: dict[str, str] = field(default_factory=dict)
    placement: dict[str, Any] = field(default_factory=dict)
    size: int | None = None

    def identity(self) -> dict[str, Any]:
        """What makes two engines the same: everything but what was measured."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "placement"}


class Engine(Protocol):
    """A dual encoder. Everything above this protocol is the same code, so two runs can only differ by their engine.

    `batch_size`: images, or texts of the full length, that go through it together.
    """

    name: str
    dim: int
    batch_size: int
    stamp: EngineStamp

    def pixels(self, image: Image) -> Pixels:
        """A decoded image, in any colour mode -> float32 (3, size, size): the engine's own preprocessing.

        Called from several threads at a time.
        """
        ...

    def embed_pixels(self, pixels: Pixels) -> Embeddings:
        """float32 (n, 3, size, size) -> float32 (n, dim), L2-normalised."""
        ...

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[Rows, TokenIds]]:
        """`texts` tokenised, batch by batch: which of them, and int64 (n, length).

        `pad_to`: length in tokens that every text is padded to; None is the trained length, or any length where the
        tower is exact at any. Raises ValueError where a text is longer, and for another length than the trained one
        where the arm is `trained` and the length matters.
        """
        ...

    def embed_ids(self, ids: TokenIds) -> Embeddings:
        """int64 (n, length) -> float32 (n, dim), L2-normalised."""
        ...


class OrtEngine:
    """A bundle on ONNX Runtime.

    `padding`: the arm (see `padding`); `precision`: which graphs, None for the bundle's default; `threads`: that a
    session computes with on a CPU, None for all cores. `sessions`: the two, by tower.

    Raises UsageFault where the provider or the arm is unknown, where the provider is not active, can't run the
    precision or leaves more of it to the CPU than LEAST_PLACED allows, where the bundle lacks the precision, where a
    graph's output is not the manifest's, and where the text graph takes none of the arm's lengths.
    """

    name = "ort"

    def __init__(
        self,
        bundle: Bundle,
        provider: str = "auto",
        batch_size: int = 64,
        padding: str = "trained",
        precision: Precision | None = None,
        threads: int | None = None,
    ) -> None:
        vision, text = bundle.graph("vision", precision), bundle.graph("text", precision)
        chosen, arm = provider_for(provider, vision.precision), choose_padding(padding)
        check_graphs(bundle, arm)
        self.batch_size = batch_size
        self.dim = bundle.manifest.embedding_dim
        self._image_spec = bundle.manifest.image
        self._text = TextEncoder(bundle)
        self._step = chosen.length_step
        # The CPU provider is alone in its sessions: there is nothing to find out.
        profiled = chosen.key != "cpu"
        vision_session = Session(bundle.path(vision.file), chosen, None, profiled, threads)
        pins = pinned(bundle.manifest.text, text, arm)
        text_session = Session(bundle.path(text.file), chosen, pins, profiled, threads)
        self.sessions = {"vision": vision_session, "text": text_session}
        for session, graph in ((vision_session, vision), (text_session, text)):
            if session.dim != self.dim:
                raise UsageFault(f"{bundle.path(graph.file)}: {session.dim} values an embedding, {self.dim} expected")
        self.embed_pixels = Halving(vision_session, "images")
        self.embed_ids = Halving(text_session, "texts")
        self.stamp = EngineStamp(
            engine=self.name,
            model=bundle.manifest.model,
            weights=dataclasses.asdict(bundle.manifest.weights),
            artifact=bundle.sha256,
            provider={"asked": provider, "active": chosen.key, "options": vision_session.options()},
            precision={"asked": vision.precision, "executed": executed(chosen, vision.precision)},
            padding=arm,
            versions={n: importlib.metadata.version(n) for n in ("numpy", "pillow", "tokenizers", "ftfy")}
            | {"onnxruntime": onnxruntime.__version__},
            placement=self._placed() if profiled else {},
            size=sum(file.stat().st_size for graph in (vision, text) for file in bundle.parts(graph)),
        )

    @classmethod
    def open(cls, folder: Path, *options: Any, **named: Any) -> OrtEngine:
        """The engine of the bundle in `folder`, with the constructor's other arguments: what another process builds."""
        return cls(open_bundle(folder), *options, **named)

    def pixels(self, image: Image) -> Pixels:
        """A decoded image, in any colour mode -> float32 (3, size, size)."""
        return pixels_of(image, self._image_spec)

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[Rows, TokenIds]]:
        """`texts` by length, as many tokens a batch as `batch_size` texts of the full length have."""
        budget = self.batch_size * self._text.spec.context_length
        return self._text.batches(texts, budget, pad_to, self._step)

    def _placed(self) -> dict[str, Any]:
        """Where the nodes of both graphs run, by the profile of a batch. Raises UsageFault where it is elsewhere."""
        size, length = self._image_spec.size, self._text.spec.context_length
        batches: dict[str, NDArray[Any]] = {
            "vision": np.zeros((self.batch_size, 3, size, size), np.float32),
            "text": self._text.pad(self._text.ids(["a"] * self.batch_size), length),
        }
        for tower, session in self.sessions.items():
            session(batches[tower])
        found = {tower: session.placement() for tower, session in self.sessions.items()}
        for tower, placed in found.items():
            if placed.time < LEAST_PLACED:
                name = self.sessions[tower].provider.name
                raise UsageFault(
                    f"{name} computes {placed.time:.0%} of the {tower} tower's time, {LEAST_PLACED:.0%} expected; "
                    "the rest falls to the CPU provider"
                )
        return {tower: dataclasses.asdict(placed) for tower, placed in found.items()}


def provider_for(asked: str, precision: Precision) -> Provider:
    """The provider for graphs in `precision`; `auto` is the CPU for int8. Raises UsageFault as `provider.choose` does.

    CUDA's integer product takes signed activations, quantising as they come makes unsigned ones: ONNX Runtime would put
    every product of an int8 graph on the CPU, copies to and fro included, and call CUDA active. That is an error, too.
    """
    if precision == "int8" and asked in ("cuda", "tensorrt"):
        name = PROVIDERS[asked].name
        raise UsageFault(f"{name} has no kernel for the products of an int8 graph; --provider cpu runs them")
    return choose("cpu" if precision == "int8" and asked == "auto" else asked)


def executed(provider: Provider, precision: Precision) -> str:
    """What the arithmetic of graphs in `precision` runs in on `provider`.

    In an int8 graph what is multiplied by weights is quantised batch by batch; the rest is fp32. A provider without
    fp16 kernels casts; what it casts to is measured.
    """
    if precision == "int8":
        return "int8 (dynamic)"
    if precision == "fp16" and provider.computes_fp16:
        return "fp16"
    measured = arithmetic(provider)
    return f"{measured} (cast)" if (measured, precision) == ("fp32", "fp16") else measured
