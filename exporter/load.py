"""Weights into the PyTorch original: from the hub, a folder, a file, or drawn at random; checked tensor by tensor."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exporter import hub
from lgip_ort.bundle import Weights
from lgip_ort.errors import UsageFault
from models.zoo import ModelSpec

TRANSFORMERS_FILES = ["*.json", "*.safetensors", "*.model", "merges.txt", "vocab.txt"]
OPEN_CLIP_FILES = [
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
]


@dataclass
class Original:
    """A PyTorch model as its library builds it, in fp32, and where its weights came from.

    `folder`: the transformers folder with its tokenizer and processor, None for open_clip and for random weights.
    `preprocess`: open_clip's preprocessing configuration, empty for transformers.
    """

    spec: ModelSpec
    model: torch.nn.Module
    weights: Weights
    folder: Path | None = None
    preprocess: dict[str, Any] = field(default_factory=dict)


def load_original(spec: ModelSpec, weights: str, seed: int = 0, revision: str | None = None) -> Original:
    """The model of `spec` with `weights`: `hub`, `random`, or the path of a checkpoint.

    For a demo model `hub` is its committed folder. Raises UsageFault where the weights are out of reach, or where a
    tensor is missing, unexpected, or of another shape than the architecture has.
    """
    loader = _load_open_clip if spec.library == "open_clip" else _load_transformers
    original = loader(spec, weights, seed, revision)
    original.model.eval().requires_grad_(False)
    return original


def embed_images(original: Original, pixels: torch.Tensor) -> torch.Tensor:
    """pixel_values float32 (n, 3, size, size) -> float32 (n, dim), L2-normalised, by the library's own functions."""
    model: Any = original.model
    with torch.inference_mode():
        if original.spec.library == "open_clip":
            return model.encode_image(pixels, normalize=True)
        return _unit(model.get_image_features(pixel_values=pixels))


def embed_ids(original: Original, ids: torch.Tensor) -> torch.Tensor:
    """input_ids int64 (n, context_length) -> float32 (n, dim), L2-normalised, by the library's own functions."""
    model: Any = original.model
    with torch.inference_mode():
        if original.spec.library == "open_clip":
            return model.encode_text(ids, normalize=True)
        return _unit(model.get_text_features(input_ids=ids))


def _unit(features: Any) -> torch.Tensor:
    pooled = getattr(features, "pooler_output", features)  # transformers 4 returns the tensor itself
    return torch.nn.functional.normalize(pooled, dim=-1)


def weights_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 over name, dtype, shape and bytes of every tensor, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _load_transformers(spec: ModelSpec, weights: str, seed: int, revision: str | None) -> Original:
    from transformers import AutoConfig, AutoModel

    if weights == "random":
        if not spec.config:
            raise UsageFault(f"{spec.key} has no architecture to fill with random weights; use --weights hub or a path")
        config = AutoConfig.for_model(**spec.config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModel.from_config(config, attn_implementation="eager")
        return Original(spec, model.float(), _random(seed, model))
    if weights == "hub" and spec.folder is None:
        folder, commit = hub.snapshot(spec.name, TRANSFORMERS_FILES, revision)
        hub.only(folder, spec.name, ["config.json"])
        hub.only(folder, spec.name, ["model.safetensors", "model.safetensors.index.json"])
        source = Weights("hub", spec.name, commit, "")
    elif weights == "hub" and spec.folder is not None:
        folder, source = spec.folder, Weights("demo", spec.name, None, "")
    else:
        folder = Path(weights).expanduser().resolve()
        source = Weights("path", str(folder), None, "")
    if not (folder / "config.json").is_file():
        raise UsageFault(f"{folder}: no config.json, so not a transformers checkpoint of {spec.key}")
    config = AutoConfig.from_pretrained(folder)
    _check_config(spec, config, folder)
    model, info = _from_pretrained(AutoModel, folder)
    # Older versions of the library saved the numbers 0, 1, 2, ... as a tensor.
    unexpected = [name for name in info["unexpected_keys"] if not name.endswith(".position_ids")]
    _check_names(str(folder), info["missing_keys"], unexpected)
    return Original(spec, model, _hashed(source, model), folder)


def _from_pretrained(auto: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    try:
        return auto.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
            local_files_only=True,
        )
    except (RuntimeError, OSError, ValueError) as error:  # a shape that differs is a RuntimeError
        raise UsageFault(f"{folder}: {error}") from error


def _check_config(spec: ModelSpec, config: Any, folder: Path) -> None:
    if config.model_type not in ("clip", "siglip"):
        raise UsageFault(f"{folder}: model_type {config.model_type!r} found, 'clip' or 'siglip' expected")
    found = config.vision_config.image_size, config.text_config.max_position_embeddings
    if found != (spec.image_size, spec.context_length):
        raise UsageFault(
            f"{folder}: {found[0]} px and {found[1]} tokens found, "
            f"{spec.image_size} px and {spec.context_length} tokens expected of {spec.key}"
        )


def _load_open_clip(spec: ModelSpec, weights: str, seed: int, revision: str | None) -> Original:
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg

    config = open_clip.get_model_config(spec.name)
    if config is None:
        raise UsageFault(f"open_clip has no architecture {spec.name!r}")
    tag = get_pretrained_cfg(spec.name, spec.tag) if spec.tag else {}
    quick = bool(config.get("quick_gelu", False))
    if tag:
        _check_gelu(f"{spec.name} with weights {spec.tag!r}", quick, bool(tag.get("quick_gelu", False)))
    file: Path | None = None
    source = None
    if weights == "hub":
        repo = str(tag.get("hf_hub", "")).strip("/")
        if not repo:
            raise UsageFault(f"open_clip knows no hub repository of {spec.name} {spec.tag!r}; use --weights PATH")
        folder, commit = hub.snapshot(repo, OPEN_CLIP_FILES, revision)
        file, source = hub.only(folder, repo, OPEN_CLIP_FILES), Weights("hub", repo, commit, "")
    elif weights != "random":
        file = Path(weights).expanduser().resolve()
        if not file.is_file():
            raise UsageFault(f"{file}: no such checkpoint; an open_clip .safetensors, .bin or .pt file is expected")
        source = Weights("path", str(file), None, "")
        _check_sibling(file, quick)
    with torch.random.fork_rng(devices=[]), _without("No pretrained weights loaded"):
        torch.manual_seed(seed)
        model = open_clip.create_model(spec.name, pretrained=None, precision="fp32", device="cpu")
    if file is None or source is None:
        provenance = _random(seed, model)
    else:
        _fill(model, file)
        provenance = _hashed(source, model)
    return Original(spec, model, provenance, preprocess={**open_clip.get_model_preprocess_cfg(model), **_pixels(tag)})


@contextmanager
def _without(start: str) -> Iterator[None]:
    """Drop the root logger's records that begin with `start`: open_clip can't know that the weights come later."""

    def other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(start)

    root = logging.getLogger()
    root.addFilter(other)
    try:
        yield
    finally:
        root.removeFilter(other)


def _pixels(tag: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tag[k] for k in ("mean", "std", "interpolation", "resize_mode") if tag.get(k) is not None}


def _check_gelu(what: str, found: bool, expected: bool) -> None:
    if found != expected:
        names = {True: "QuickGELU", False: "GELU"}
        raise UsageFault(
            f"{what}: the architecture computes {names[found]}, the weights were trained with {names[expected]}"
        )


def _check_sibling(file: Path, quick: bool) -> None:
    """The open_clip configuration beside a checkpoint, where there is one, says what activation it has."""
    config = file.with_name("open_clip_config.json")
    if config.is_file():
        trained = json.loads(config.read_text(encoding="utf-8")).get("model_cfg", {}).get("quick_gelu", False)
        _check_gelu(str(config), quick, bool(trained))


def _fill(model: torch.nn.Module, file: Path) -> None:
    """Put the tensors of `file` into `model`, none missing, none left over, none resized."""
    from open_clip.convert import convert_state_dict
    from open_clip.factory import load_state_dict
    from open_clip.model import convert_to_custom_text_state_dict

    try:
        tensors = load_state_dict(str(file), device="cpu", weights_only=True)
    except (RuntimeError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise UsageFault(f"{file}: can't be read as plain tensors ({str(error).splitlines()[0]})") from error
    tensors = convert_state_dict(model, tensors)
    if "positional_embedding" in tensors and not hasattr(model, "positional_embedding"):
        tensors = convert_to_custom_text_state_dict(tensors)
    expected = model.state_dict()
    for name in ("logit_scale", "logit_bias"):  # a scalar in some checkpoints, one element in others
        if name in tensors and name in expected and tensors[name].numel() == expected[name].numel():
            tensors[name] = tensors[name].reshape(expected[name].shape)
    _check_names(str(file), expected.keys() - tensors.keys(), tensors.keys() - expected.keys())
    for name, tensor in expected.items():
        if tensor.shape != tensors[name].shape:
            raise UsageFault(
                f"{file}: tensor {name} has shape {tuple(tensors[name].shape)}, {tuple(tensor.shape)} expected"
            )
    model.load_state_dict(tensors, strict=True)


def _check_names(where: str, missing: Any, unexpected: Any) -> None:
    for label, names in (("missing", missing), ("unexpected", unexpected)):
        if names:
            first = ", ".join(sorted(names)[:3])
            raise UsageFault(f"{where}: {len(names)} {label} tensors: {first}{', ...' if len(names) > 3 else ''}")


def _random(seed: int, model: torch.nn.Module) -> Weights:
    return _hashed(Weights("random", f"seed {seed}", None, ""), model)


def _hashed(weights: Weights, model: torch.nn.Module) -> Weights:
    return Weights(weights.source, weights.name, weights.revision, weights_sha256(model.state_dict()))
