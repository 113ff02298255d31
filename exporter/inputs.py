"""The library's own tokenizer and preprocessing of an original: what every other implementation is measured against."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from exporter import hub
from exporter.golden import GOLDEN
from exporter.load import Original
from lgip_ort.dataset.records import read_json
from lgip_ort.errors import UsageFault


@dataclass(frozen=True)
class OriginalText:
    """A tokenizer as its library makes it.

    `encode`: texts -> int64 (n, context_length), padded and cut as the library does. `stand_in`: True where random
    weights have no tokenizer within reach and one with the right special ids takes its place.
    """

    tokenizer: Any
    encode: Callable[[Sequence[str]], NDArray[np.int64]]
    pad_id: int
    eot_id: int
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
    """The tokenizer of `original`.

    Raises UsageFault where the library needs one that is not at hand, and for one that is not the model's: it has ids
    that the model has no embedding of, or ends texts with another token than the one the model looks for.
    """
    text = _open_clip_text(original) if original.spec.library == "open_clip" else _transformers_text(original)
    _check_ids(original, text)
    return text


def original_images(original: Original) -> OriginalImages:
    """The preprocessing of `original`. Raises UsageFault where it is not at hand or of a kind that is not known."""
    return _open_clip_images(original) if original.spec.library == "open_clip" else _transformers_images(original)


def _open_clip_text(original: Original) -> OriginalText:
    import open_clip

    length = original.spec.context_length
    config = (open_clip.get_model_config(original.spec.name) or {}).get("text_cfg", {})
    stand_in = False
    if source := config.get("hf_tokenizer_name"):
        folder = _tokenizer_folder(original, source)
        stand_in = folder is None
        tokenizer = _hf_tokenizer(original, config, folder)
        inner = tokenizer.tokenizer
        pad_id, eot_id = inner.pad_token_id, inner.eos_token_id
        reference = f"open_clip.tokenizer.HFTokenizer of transformers.{type(inner).__name__}"
    else:
        tokenizer = open_clip.get_tokenizer(original.spec.name)
        pad_id, eot_id = 0, tokenizer.eot_token_id  # open_clip fills up a tensor of zeros
        reference = f"open_clip.tokenizer.{type(tokenizer).__name__}"

    def encode(texts: Sequence[str]) -> NDArray[np.int64]:
        return tokenizer(list(texts), context_length=length).numpy()

    return OriginalText(tokenizer, encode, *_special(reference, pad_id, eot_id), reference, stand_in)


def _tokenizer_folder(original: Original, source: str) -> Path | None:
    """Where the files of the transformers tokenizer `source` of an open_clip model lie; None where none are needed."""
    if original.folder is None:
        return None
    if (original.folder / "tokenizer_config.json").is_file():
        return original.folder
    folder, _ = hub.snapshot(source, hub.TOKENIZER_FILES)
    return folder


def _hf_tokenizer(original: Original, config: dict[str, Any], folder: Path | None) -> Any:
    from open_clip.tokenizer import HFTokenizer

    if folder is None:
        from exporter.standin import stand_in_tokenizer

        pad_id = 0 if "siglip2" in config["hf_tokenizer_name"].lower() else 1
        stand_in = stand_in_tokenizer(original.spec, config["vocab_size"], pad_id)
        with tempfile.TemporaryDirectory() as temporary:
            stand_in.save_pretrained(temporary)
            return _hf_tokenizer(original, config, Path(temporary))
    options = {"tokenizer_mode": config.get("tokenizer_mode"), **config.get("tokenizer_kwargs", {})}
    try:
        return HFTokenizer(str(folder), original.spec.context_length, local_files_only=True, **options)
    except (OSError, ValueError, TypeError) as error:
        raise UsageFault(f"{folder}: no tokenizer can be loaded from it: {error}") from error


def _transformers_text(original: Original) -> OriginalText:
    length = original.spec.context_length
    if original.folder is None:
        from exporter.standin import stand_in_tokenizer

        config: Any = original.model.config.text_config
        tokenizer = stand_in_tokenizer(original.spec, config.vocab_size, config.pad_token_id)
    else:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(original.folder, local_files_only=True)
        except (OSError, ValueError, TypeError) as error:
            raise UsageFault(f"{original.folder}: no tokenizer can be loaded from it: {error}") from error

    def encode(texts: Sequence[str]) -> NDArray[np.int64]:
        ids = tokenizer(list(texts), padding="max_length", max_length=length, truncation=True)["input_ids"]
        return np.asarray(ids, np.int64)

    reference = f"transformers.{type(tokenizer).__name__}"
    special = _special(reference, tokenizer.pad_token_id, tokenizer.eos_token_id)
    return OriginalText(tokenizer, encode, *special, reference, stand_in=original.folder is None)


def _special(reference: str, pad_id: int | None, eot_id: int | None) -> tuple[int, int]:
    if pad_id is None or eot_id is None:
        raise UsageFault(f"{reference}: padding token {pad_id}, end-of-text token {eot_id} found, both are needed")
    return pad_id, eot_id


def _check_ids(original: Original, text: OriginalText) -> None:
    model: Any = original.model
    if original.spec.library == "open_clip":
        vocabulary = getattr(getattr(model, "text", model), "vocab_size", None)
    else:
        config = model.config.text_config
        vocabulary = config.vocab_size
        # 2 is what old configurations say; the library then pools at the highest id, which is right for CLIP's own.
        if model.config.model_type == "clip" and config.eos_token_id not in (2, text.eot_id):
            raise UsageFault(
                f"{text.reference}: ends texts with {text.eot_id}, the model pools at {config.eos_token_id}: "
                "another model's tokenizer"
            )
    highest = int(text.encode(GOLDEN).max())
    if vocabulary is not None and max(highest, text.pad_id, text.eot_id) >= vocabulary:
        raise UsageFault(
            f"{text.reference}: id {max(highest, text.pad_id, text.eot_id)} found, the model has {vocabulary:,} "
            "token embeddings: another model's tokenizer"
        )


def _open_clip_images(original: Original) -> OriginalImages:
    import torch
    from open_clip.transform import PreprocessCfg, image_transform_v2

    config = PreprocessCfg(**original.preprocess)
    try:
        transform = image_transform_v2(config, is_train=False)
    except AssertionError as error:
        raise UsageFault(f"open_clip knows no preprocessing {config}") from error

    def pixels(images: Sequence[Image]) -> NDArray[np.float32]:
        return torch.stack([transform(image) for image in images]).numpy()

    return OriginalImages(config, pixels, "open_clip.transform.image_transform_v2")


def _transformers_images(original: Original) -> OriginalImages:
    family = "CLIP" if original.model.config.model_type == "clip" else "Siglip"
    kind = pil_processor(family)
    size = original.spec.image_size
    if original.folder is None:
        processor = kind(size={"height": size, "width": size})
    else:
        _check_processor(original.folder / "preprocessor_config.json", family)
        try:
            processor = kind.from_pretrained(original.folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise UsageFault(f"{original.folder}: preprocessor_config.json: {error}") from error

    def pixels(images: Sequence[Image]) -> NDArray[np.float32]:
        # Not every configuration converts, and the processor fails on an array that has no three channels.
        # It also takes a picture of 1 or 3 rows for one with its channels first, unless it is told.
        rgb = [image.convert("RGB") for image in images]
        return np.asarray(
            processor(images=rgb, return_tensors="np", input_data_format="channels_last")["pixel_values"], np.float32
        )

    return OriginalImages(processor, pixels, f"transformers.{kind.__name__}")


def _check_processor(path: Path, family: str) -> None:
    """Raises UsageFault where the configuration at `path` is of another family, whose processor does other things."""
    if not path.is_file():
        return  # the library says so itself
    written = read_json(path)
    name = written.get("image_processor_type") or written.get("feature_extractor_type") or ""
    plain = name.removesuffix("Fast").removesuffix("Pil")
    if plain not in ("", f"{family}ImageProcessor", f"{family}FeatureExtractor"):
        raise UsageFault(f"{path}: {name} found, {family}ImageProcessor expected")


def pil_processor(family: str) -> Any:
    """transformers' image processor of `family` that resizes with Pillow; its other one resizes tensors, differently.

    Version 5 gave the plain name to the tensor processor and calls this one `...Pil`.
    """
    import transformers

    pinned = getattr(transformers, f"{family}ImageProcessorPil", None)
    return pinned or getattr(transformers, f"{family}ImageProcessor")
