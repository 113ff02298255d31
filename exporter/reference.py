"""TorchEngine: the PyTorch original, with its library's own tokenizer and preprocessing, as an Engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image

from exporter.inputs import original_images, original_text
from exporter.load import Original, embed_ids, embed_images, load_original, sees_padding
from lgip_ort.bundle import MANIFEST, Bundle, Weights, open_bundle
from lgip_ort.engine import Embeddings, EngineStamp
from lgip_ort.errors import UsageFault, did_you_mean
from lgip_ort.halving import Halving
from lgip_ort.image import Pixels
from lgip_ort.padding import choose_padding
from lgip_ort.text import Rows, TokenIds
from models import zoo

DEVICES = ("auto", "cpu", "cuda")


class TorchEngine:
    """The model that a bundle was exported from, in fp32, one forward pass a batch, nothing of ours in between.

    `padding`: the arm. Raises UsageFault for an unknown arm, and for a device that is unknown or not there.
    """

    name = "torch"

    def __init__(
        self, original: Original, batch_size: int = 64, device: str = "auto", padding: str = "trained"
    ) -> None:
        self.batch_size = batch_size
        self._device = _device(device)
        self._original = original
        original.model.to(self._device)
        self._text = original_text(original)
        self._images = original_images(original)
        self._context = original.spec.context_length
        self._sees_padding = sees_padding(original)
        probe = self._text.encode(["a"])
        self.dim = self._embed_ids(probe).shape[1]
        self.embed_pixels = Halving(self._embed_pixels, "images")
        self.embed_ids = Halving(self._embed_ids, "texts")
        self.stamp = EngineStamp(
            engine=self.name,
            model=original.spec.key,
            weights=dataclasses.asdict(original.weights),
            artifact=original.weights.sha256,
            provider={"asked": device, "active": self._device, "options": {}},
            precision={"asked": "fp32", "executed": "fp32"},
            padding=choose_padding(padding),
            versions=_versions(original),
            size=sum(p.numel() * p.element_size() for p in original.model.parameters()),
        )

    @classmethod
    def from_bundle(
        cls, bundle: Bundle, batch_size: int = 64, device: str = "auto", padding: str = "trained"
    ) -> TorchEngine:
        """The original of `bundle`, loaded again from where its manifest says that its weights came from.

        Raises UsageFault where the weights are out of reach, or are not those that the bundle was exported from.
        """
        weights = bundle.manifest.weights
        asked, seed = _source(weights)
        original = load_original(zoo.get(bundle.manifest.model), asked, seed, weights.revision)
        if original.weights.sha256 != weights.sha256:
            raise UsageFault(
                f"{bundle.folder / MANIFEST}: exported from weights {weights.sha256[:12]}, but {weights.source} "
                f"{weights.name} gives {original.weights.sha256[:12]}; export again"
            )
        return cls(original, batch_size, device, padding)

    @classmethod
    def open(cls, folder: Path, batch_size: int = 64, device: str = "auto", padding: str = "trained") -> TorchEngine:
        """As `from_bundle` of the bundle in `folder`: what is sent to another process to build it there."""
        return cls.from_bundle(open_bundle(folder), batch_size, device, padding)

    def pixels(self, image: Image) -> Pixels:
        """A decoded image, in any colour mode -> float32 (3, size, size), by the library's own preprocessing."""
        return self._images.pixels([image])[0]

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[Rows, TokenIds]]:
        """`texts` in their order: which of them, and int64 (n, length), by the library's own tokenizer.

        `pad_to` None is the length that the library pads to. open_clip's causal models take no other length and need
        none: what follows the end of the text changes nothing. Raises ValueError where a text is longer than `pad_to`,
        and for another length than the trained one where the arm is `trained` and the length matters.
        """
        if self.stamp.padding == "trained" and self._sees_padding and pad_to not in (None, self._context):
            raise ValueError(
                f"padded length {pad_to} found, {self._context} expected where texts are padded as trained"
            )
        for start in range(0, len(texts), self.batch_size):
            rows = list(range(start, min(start + self.batch_size, len(texts))))
            ids = self._text.encode(texts[start : start + self.batch_size])
            if pad_to is not None and (self._sees_padding or self._original.spec.library == "transformers"):
                ids = self._cut(ids, pad_to)
            yield rows, ids

    def _embed_pixels(self, pixels: Pixels) -> Embeddings:
        found: Embeddings = embed_images(self._original, torch.from_numpy(pixels).to(self._device)).cpu().numpy()
        return found

    def _embed_ids(self, ids: TokenIds) -> Embeddings:
        found: Embeddings = embed_ids(self._original, torch.from_numpy(ids).to(self._device)).cpu().numpy()
        return found

    def _cut(self, ids: NDArray[np.int64], pad_to: int) -> NDArray[np.int64]:
        """Padding is at the end, so a shorter padded length is a cut."""
        cut = ids[:, :pad_to]
        lost = (ids[:, pad_to:] != self._text.pad_id).any(axis=1) | (cut != self._text.eot_id).all(axis=1)
        if lost.any():
            raise ValueError(f"a text does not fit the padded length {pad_to}")
        return np.ascontiguousarray(cut)


def _source(weights: Weights) -> tuple[str, int]:
    """What `load_original` is asked for, and the seed of random weights. Raises UsageFault where nothing is known."""
    if weights.source == "unknown":
        raise UsageFault(f"{weights.name}, without its weights: there is no PyTorch original to run")
    if weights.source == "random":
        return "random", int(weights.name.removeprefix("seed "))
    return (weights.name if weights.source == "path" else "hub"), 0


def _device(asked: str) -> str:
    if asked not in DEVICES:
        raise UsageFault(f"PyTorch has no provider {asked!r}{did_you_mean(asked, DEVICES)}")
    if asked == "cuda" and not torch.cuda.is_available():
        raise UsageFault("cuda: this PyTorch sees no CUDA device")
    if asked == "cpu" or not torch.cuda.is_available():
        return "cpu"
    torch.backends.cudnn.allow_tf32 = False  # TF32 keeps 10 bits: no reference for fp16, which keeps as many
    return "cuda"


def _versions(original: Original) -> dict[str, str]:
    library = {"open_clip": "open_clip_torch", "transformers": "transformers"}[original.spec.library]
    return {name: version(name) for name in ("torch", library, "tokenizers", "pillow", "numpy")}
