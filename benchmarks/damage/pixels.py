"""Damage to what becomes of an image before it reaches the graph, and to what comes out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from benchmarks.damage.kinds import Variant, Wrapped, manifest


def image(**values: Any) -> Any:
    """Entries of the manifest's image section replaced."""
    return manifest(lambda content: content["image"].update(values))


def crop_or_squash(content: dict[str, Any]) -> None:
    """The other of the two."""
    content["image"]["resize"] = "squash" if content["image"]["resize"] == "shortest" else "shortest"


def exchanged(content: dict[str, Any]) -> None:
    """Mean for standard deviation: of ImageNet, which do not differ by chance alone as those of the demo models do."""
    content["image"]["mean"], content["image"]["std"] = [0.229, 0.224, 0.225], [0.485, 0.456, 0.406]


class Bgr(Wrapped):
    """cv2.imread."""

    def pixels(self, image: Any) -> np.ndarray:
        """Blue first."""
        return np.ascontiguousarray(super().pixels(image)[::-1])


class NoAntialias(Wrapped):
    """Resized as cv2 and torch do by default: the filter does not widen with the scale."""

    def pixels(self, image: Any) -> np.ndarray:
        """The image sampled at the points of the target, then preprocessed, which resizes no more."""
        spec = self.inner._image_spec
        w, h = image.size
        scale = min(w, h) / spec.size if spec.resize == "shortest" else None
        width, height = (round(w / scale), round(h / scale)) if scale else (spec.size, spec.size)
        step = (w / width, 0, 0, 0, h / height, 0)
        small = image.convert("RGB").transform((width, height), Image.Transform.AFFINE, step, Image.Resampling.BICUBIC)
        return super().pixels(small)


class NotDivided(Wrapped):
    """0 .. 255 for 0 .. 1."""

    def pixels(self, image: Any) -> np.ndarray:
        """Normalised as if it had been divided."""
        spec = self.inner._image_spec
        mean, std = (np.array(v, np.float32)[:, None, None] for v in (spec.mean, spec.std))
        return ((super().pixels(image) * std + mean) * 255 - mean) / std


class ChannelsLast(Wrapped):
    """reshape for transpose."""

    def pixels(self, image: Any) -> np.ndarray:
        """The bytes of height, width, channel read as channel, height, width."""
        found = super().pixels(image)
        return np.ascontiguousarray(found.transpose(1, 2, 0)).reshape(found.shape)


class Stale(Wrapped):
    """An output buffer read before it is filled: every image has the embedding of the one before it."""

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """float32 (n, dim), a row late."""
        return np.roll(super().embed_pixels(pixels), 1, axis=0)


class Temperature(Wrapped):
    """The logit scale multiplied in: scores are no cosines any more."""

    def embed_ids(self, ids: np.ndarray) -> np.ndarray:
        """A hundred times as long, as CLIP's scale is at its end."""
        return super().embed_ids(ids) * np.float32(100)


VARIANTS = (
    Variant("bilinear for bicubic", "pixels", "the default of a library", image(interpolation="bilinear")),
    Variant("nearest for bicubic", "pixels", "the default of another library", image(interpolation="nearest")),
    Variant("no antialias", "pixels", "resizing as cv2 and torch do by default", wrap=NoAntialias),
    Variant(
        "squash for crop, or crop for squash", "pixels", "the resizing of another family", manifest(crop_or_squash)
    ),
    Variant("BGR", "pixels", "cv2.imread", wrap=Bgr),
    Variant("mean and std swapped", "pixels", "arguments in the wrong order", manifest(exchanged)),
    Variant("mean and std missing", "pixels", "ToTensor alone", image(mean=[0.0, 0.0, 0.0], std=[1.0, 1.0, 1.0])),
    Variant(
        "mean and std of ImageNet",
        "pixels",
        "the constants that everybody knows",
        image(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ),
    Variant("not divided by 255", "pixels", "rescaling forgotten", wrap=NotDivided),
    Variant("channels last", "pixels", "reshape for transpose", wrap=ChannelsLast),
    Variant("stale embeddings", "calls", "an output buffer read too early", wrap=Stale),
    Variant("temperature left in", "calls", "logits for cosines", wrap=Temperature),
)
