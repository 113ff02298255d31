"""The tokenizer, the preprocessing and the configuration that somebody else's export brings along, in our terms.

What its files say is taken from them. What such files can't say (cleaning before tokenization, whether colours are
converted before or after resizing, whose rounding) is the original's where there is one; so is a file that is missing.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from exporter.foreign import Family
from exporter.inputs import OriginalImages, OriginalText, pil_processor
from exporter.layouts import inside
from exporter.preprocess import image_spec, write_preprocessor_config
from exporter.tokenizer import write_tokenizer
from lgip_ort.bundle import TOKENIZER, ImageSpec, TextSpec
from lgip_ort.dataset.records import read_json
from lgip_ort.errors import RunFault, UsageFault
from models.zoo import ModelSpec

PREPROCESSOR = "preprocessor_config.json"
CONFIG = "config.json"

LEFT_OUT = ("_name_or_path", "transformers_version")
"""Of a configuration: where it was read from, and by what."""


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of an export, empty where it has none. Raises UsageFault where it is damaged."""
    return {k: v for k, v in _read(folder, CONFIG).items() if k not in LEFT_OUT}


def family_of(spec: ModelSpec, config: Mapping[str, Any]) -> Family:
    """Which embedding the model has: CLIP's is projected, SigLIP's in transformers is the pooled output itself.

    Raises UsageFault where neither the export's configuration nor the zoo says it, or where they contradict each other.
    """
    if spec.library == "open_clip":
        return "siglip" if config.get("model_type") == "siglip" else "clip"
    ours = dict(spec.config) if spec.folder is None else _read(spec.folder, CONFIG)
    expected = ours.get("model_type")
    found = config.get("model_type", expected)
    if found == "clip" and expected in ("clip", None):
        return "clip"
    if found == "siglip" and expected in ("siglip", None):
        return "siglip"
    raise UsageFault(f"{CONFIG}: model_type {found!r} found, {expected or 'clip or siglip'!r} expected of {spec.key}")


def write_text(
    folder: Path, beside: Path, spec: ModelSpec, original: OriginalText | None, any_length: bool, work: Path
) -> TextSpec:
    """Write `work/tokenizer.json`: the one in `folder` or in `beside`, byte for byte, else the original's.

    Raises UsageFault where neither is there, RunFault where the tokenizer marks no end of a text.
    """
    target = work / TOKENIZER
    ours = write_tokenizer(original, spec.context_length, any_length, target) if original else None
    file = _first(folder, TOKENIZER, folder, beside)
    if file is None:
        if ours is None:
            raise UsageFault(f"{folder / TOKENIZER} is missing, and there is no original to take it from")
        return ours
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise UsageFault(f"{file}: not a tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    shutil.copyfile(file, target)
    end = _end(file, tokenizer)
    pad = _pad(file, tokenizer)
    if ours is not None:
        # To a tower that takes any length all padding is the same, and the libraries pad with different ids.
        pad = ours.pad_id if any_length or pad is None else pad
        return dataclasses.replace(ours, eot_id=end, pad_id=pad)
    if pad is None:
        if not any_length:
            raise UsageFault(f"{file}: no pad_token beside it, in tokenizer_config.json or special_tokens_map.json")
        pad = end
    name = _read(file.parent, "tokenizer_config.json").get("tokenizer_class", "PreTrainedTokenizerFast")
    lengths: Literal["any", "trained"] = "any" if any_length else "trained"
    return TextSpec(spec.context_length, pad, end, lengths, reference=f"transformers.{name}")


def write_images(folder: Path, beside: Path, spec: ModelSpec, original: OriginalImages | None, work: Path) -> ImageSpec:
    """Write `work/preprocessor_config.json`: the one in `folder` or in `beside`, else the original's.

    Raises UsageFault where neither is there, or where the runtime can't repeat it.
    """
    ours = image_spec(original.config, original.reference) if original else None
    file = _first(folder, PREPROCESSOR, folder, beside)
    if file is not None:
        found = image_spec(*_processor(file))
        if ours is not None:
            found = dataclasses.replace(
                found, convert=ours.convert, arithmetic=ours.arithmetic, reference=ours.reference
            )
        ours = found
    if ours is None:
        raise UsageFault(f"{folder / PREPROCESSOR} is missing, and there is no original to take it from")
    if ours.size != spec.image_size:
        raise RunFault(f"{file or folder}: {ours.size} px found, {spec.image_size} px expected of {spec.key}")
    write_preprocessor_config(ours, work / PREPROCESSOR)
    return ours


def activations(config: Mapping[str, Any]) -> dict[str, str]:
    """The names of the towers' activations, as a configuration calls them."""
    parts = {"vision": config.get("vision_config"), "text": config.get("text_config")}
    return {tower: str((part or {}).get("hidden_act", "unknown")) for tower, part in parts.items()}


def _processor(file: Path) -> tuple[Any, str]:
    """transformers' processor that a configuration describes, and the name of its class."""
    config = _read(file.parent, file.name)
    name = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
    family = next((f for f in ("CLIP", "Siglip") if name.startswith(f)), None)
    if family is None:
        raise UsageFault(f"{file}: image_processor_type {name!r} found, CLIP's or SigLIP's expected")
    try:
        processor = pil_processor(family).from_dict(config)
    except (TypeError, ValueError, KeyError) as error:
        raise UsageFault(f"{file}: {error}") from error

    return processor, f"transformers.{name}"


def _end(file: Path, tokenizer: Tokenizer) -> int:
    ends = [tokenizer.encode(text).ids[-1:] for text in ("a", "two dogs", "")]
    if not ends[0] or ends != ends[:1] * len(ends):
        raise RunFault(f"{file}: texts that end with tokens {ends} found, one end-of-text token expected")
    return int(ends[0][0])


def _pad(file: Path, tokenizer: Tokenizer) -> int | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _read(file.parent, name).get("pad_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None and (number := tokenizer.token_to_id(token)) is not None:
            return int(number)
    saved = _read(file.parent, file.name).get("padding") or {}
    return saved.get("pad_id")


def _first(folder: Path, name: str, *places: Path) -> Path | None:
    return next((inside(folder, place / name) for place in places if (place / name).exists()), None)


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.exists():
        return {}
    data = read_json(inside(folder, path))
    if not isinstance(data, dict):
        raise UsageFault(f"{path}: not a JSON object")
    return data
