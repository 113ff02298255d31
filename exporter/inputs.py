"""The library's own tokenizer and preprocessing of an original: what every other implementation is measured against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from exporter.load import Original
from lgip_ort.errors import UsageFault


@dataclass(frozen=True)
class OriginalText:
    """A tokenizer as its library makes it.

    `encode`: texts -> int64 (n, context_length), padded and cut as the library does. `stand_in`: True where random
    weights have no tokenizer within reach and one with the right special ids takes its place.
    """

    tokenizer: Any
    encode: Callable[[Sequence[str]], NDArray[np.int64]]
    reference: str
    stand_in: bool = False


@dataclass(frozen=True)
class OriginalImages:
    """Preprocessing as its library does it. `pixels`: images in any mode -> float32 (n, 3, size, size).

    `config`: open_clip's preprocessing configuration, or transformers' processor object.
    """

    config: Any
    pixels: Callable[[Sequence[Image]], NDArray[np.float32]]
    reference: str


def original_text(original: Original) -> OriginalText:
    """The tokenizer of `original`. Raises UsageFault where the library needs one that is not at hand."""
    if original.spec.library == "open_clip":
        return _open_clip_text(original)
    if original.folder is not None:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(original.folder, local_files_only=True)
        except (OSError, ValueError, TypeError) as error:
            raise UsageFault(f"{original.folder}: no tokenizer can be loaded from it: {error}") from error
        return _transformers_text(tokenizer, original, stand_in=False)
    from exporter.standin import stand_in_tokenizer

    return _transformers_text(stand_in_tokenizer(original), original, stand_in=True)


def original_images(original: Original) -> OriginalImages:
    """The preprocessing of `original`. Raises UsageFault where a folder has no preprocessor_config.json."""
    return _open_clip_images(original) if original.spec.library == "open_clip" else _transformers_images(original)


def _open_clip_text(original: Original) -> OriginalText:
    import open_clip
    from open_clip.tokenizer import SimpleTokenizer

    tokenizer = open_clip.get_tokenizer(original.spec.name)
    if not isinstance(tokenizer, SimpleTokenizer):
        raise UsageFault(f"{original.spec.key}: tokenizer {type(tokenizer).__name__} found, SimpleTokenizer expected")

    def encode(texts: Sequence[str]) -> NDArray[np.int64]:
        return tokenizer(list(texts), context_length=original.spec.context_length).numpy()

    return OriginalText(tokenizer, encode, "open_clip.tokenizer.SimpleTokenizer")


def _transformers_text(tokenizer: Any, original: Original, stand_in: bool) -> OriginalText:
    length = original.spec.context_length

    def encode(texts: Sequence[str]) -> NDArray[np.int64]:
        ids = tokenizer(list(texts), padding="max_length", max_length=length, truncation=True)["input_ids"]
        return np.asarray(ids, np.int64)

    return OriginalText(tokenizer, encode, f"transformers.{type(tokenizer).__name__}", stand_in)


def _open_clip_images(original: Original) -> OriginalImages:
    import torch
    from open_clip.transform import PreprocessCfg, image_transform_v2

    config = PreprocessCfg(**original.preprocess)
    transform = image_transform_v2(config, is_train=False)

    def pixels(images: Sequence[Image]) -> NDArray[np.float32]:
        return torch.stack([transform(image) for image in images]).numpy()

    return OriginalImages(config, pixels, "open_clip.transform.image_transform_v2")


def _transformers_images(original: Original) -> OriginalImages:
    kind = pil_processor("CLIP" if original.model.config.model_type == "clip" else "Siglip")
    size = original.spec.image_size
    if original.folder is None:
        processor = kind(size={"height": size, "width": size})
    else:
        try:
            processor = kind.from_pretrained(original.folder, local_files_only=True)
        except OSError as error:
            raise UsageFault(f"{original.folder}: preprocessor_config.json: {error}") from error

    def pixels(images: Sequence[Image]) -> NDArray[np.float32]:
        # Not every configuration converts, and the processor fails on an array that has no three channels.
        # It also takes a picture of 1 or 3 rows for one with its channels first, unless it is told.
        rgb = [image.convert("RGB") for image in images]
        return np.asarray(
            processor(images=rgb, return_tensors="np", input_data_format="channels_last")["pixel_values"], np.float32
        )

    return OriginalImages(processor, pixels, f"transformers.{kind.__name__}")


def pil_processor(family: str) -> Any:
    """transformers' image processor of `family` that resizes with Pillow; its other one resizes tensors, differently.

    Version 5 gave the plain name to the tensor processor and calls this one `...Pil`.
    """
    import transformers

    pinned = getattr(transformers, f"{family}ImageProcessorPil", None)
    return pinned or getattr(transformers, f"{family}ImageProcessor")
