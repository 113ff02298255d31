"""Weights into the PyTorch original: from the hub, a folder, a file, or drawn at random; checked tensor by tensor."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from exporter import hub
from exporter.state import check_names, fill
from lgip_ort.bundle import Weights
from lgip_ort.dataset.records import read_json
from lgip_ort.errors import UsageFault
from models.zoo import ModelSpec

TRANSFORMERS_FILES = [*hub.TOKENIZER_FILES, "*.safetensors"]
OPEN_CLIP_FILES = [
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
]
OPEN_CLIP_CONFIG = "open_clip_config.json"
"""What open_clip writes beside a checkpoint: `model_cfg` and `preprocess_cfg`."""

SIZES = (
    "image_size",
    "patch_size",
    "max_position_embeddings",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
)
"""What tells a transformers architecture from another; no tensor's shape shows the number of heads."""

ARCHITECTURE = (
    "heads",
    "head_width",
    "timm_model_name",
    "timm_pool",
    "no_causal_mask",
    "pool_type",
    "act_kwargs",
    "norm_kwargs",
)
"""The same of an open_clip architecture: what `open_clip_config.json` must agree in."""


@dataclass
class Original:
    """A PyTorch model as its library builds it, in fp32, and where its weights came from.

    `folder`: where the checkpoint's tokenizer and processor lie, None for random weights.
    `preprocess`: open_clip's preprocessing configuration, empty for transformers.
    """

    spec: ModelSpec
    model: torch.nn.Module
    weights: Weights
    folder: Path | None = None
    preprocess: dict[str, Any] = field(default_factory=dict)


def load_original(spec: ModelSpec, weights: str, seed: int = 0, revision: str | None = None) -> Original:
    """The model of `spec` with `weights`: `hub`, `random`, or the path of a checkpoint.

    For a demo model `hub` is its committed folder. Raises UsageFault where the weights are out of reach, where a
    tensor is missing, unexpected, or of another shape than the architecture has, and where what lies beside them says
    that they are of another architecture.
    """
    loader = _load_open_clip if spec.library == "open_clip" else _load_transformers
    original = loader(spec, weights, seed, revision)
    original.model.eval().requires_grad_(False)
    return original


def sees_padding(original: Original) -> bool:
    """Whether padding changes a text's embedding: it does unless the tower is causal and pools at the text's end."""
    model: Any = original.model
    if original.spec.library == "open_clip":
        return getattr(getattr(model, "text", model), "attn_mask", None) is None
    return model.config.model_type != "clip"


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
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageFault(f"{folder / 'config.json'}: {_line(error)}") from error
    _check_config(spec, config, folder)
    model, info = _from_pretrained(AutoModel, folder)
    # Older versions of the library saved the numbers 0, 1, 2, ... as a tensor.
    unexpected = [name for name in info["unexpected_keys"] if not name.endswith(".position_ids")]
    check_names(str(folder), info["missing_keys"], unexpected)
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
    except (RuntimeError, OSError, ValueError, SafetensorError) as error:  # a shape that differs is a RuntimeError
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
    for part in ("vision_config", "text_config"):
        known = spec.config.get(part, {})
        for name in (name for name in SIZES if name in known):
            if getattr(getattr(config, part), name) != known[name]:
                raise UsageFault(
                    f"{folder / 'config.json'}: {part}.{name} {getattr(getattr(config, part), name)} found, "
                    f"{known[name]} expected of {spec.key}"
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
    pixels = tag
    if weights == "hub":
        repo = str(tag.get("hf_hub", "")).strip("/")
        if not repo:
            raise UsageFault(f"open_clip knows no hub repository of {spec.name} {spec.tag!r}; use --weights PATH")
        folder, commit = hub.snapshot(repo, [*OPEN_CLIP_FILES, OPEN_CLIP_CONFIG], revision)
        file, source = hub.only(folder, repo, OPEN_CLIP_FILES), Weights("hub", repo, commit, "")
        _beside(file, config)
    elif weights != "random":
        file = _checkpoint(Path(weights).expanduser().resolve())
        source = Weights("path", str(file), None, "")
        pixels = {**tag, **_beside(file, config)}
    with torch.random.fork_rng(devices=[]), _without("No pretrained weights loaded"):
        torch.manual_seed(seed)
        model = open_clip.create_model(spec.name, pretrained=None, precision="fp32", device="cpu")
    if file is None or source is None:
        provenance = _random(seed, model)
    else:
        fill(model, file)
        provenance = _hashed(source, model)
    preprocess = {**open_clip.get_model_preprocess_cfg(model), **_pixels(pixels)}
    return Original(spec, model, provenance, file.parent if file else None, preprocess)


def _checkpoint(path: Path) -> Path:
    """The checkpoint at `path`, which is the file itself or a folder with one of open_clip's names in it."""
    for file in [path, *(path / name for name in OPEN_CLIP_FILES)]:
        if file.is_file():
            return file
    raise UsageFault(
        f"{path}: no such checkpoint; an open_clip .safetensors, .bin or .pt file, "
        f"or a folder with {' or '.join(OPEN_CLIP_FILES)}, is expected"
    )


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


def _pixels(known: Mapping[str, Any]) -> dict[str, Any]:
    return {k: known[k] for k in ("mean", "std", "interpolation", "resize_mode") if known.get(k) is not None}


def _check_gelu(what: str, found: bool, expected: bool) -> None:
    if found != expected:
        names = {True: "QuickGELU", False: "GELU"}
        raise UsageFault(
            f"{what}: the architecture computes {names[found]}, the weights were trained with {names[expected]}"
        )


def _beside(file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The `preprocess_cfg` of the configuration beside a checkpoint, empty where there is none.

    Raises UsageFault where its architecture is another one than `config` in what no tensor's shape shows.
    """
    path = file.with_name(OPEN_CLIP_CONFIG)
    if not path.is_file():
        return {}
    written = read_json(path)
    trained = written.get("model_cfg", {})
    _check_gelu(str(path), bool(config.get("quick_gelu", False)), bool(trained.get("quick_gelu", False)))
    for part in ("vision_cfg", "text_cfg"):
        for name, expected in config[part].items():
            found = trained.get(part, {}).get(name, expected)
            if name in ARCHITECTURE and found != expected:
                raise UsageFault(f"{path}: {part}.{name} {found!r} found, {expected!r} expected of the architecture")
    return written.get("preprocess_cfg", {})


def _random(seed: int, model: torch.nn.Module) -> Weights:
    return _hashed(Weights("random", f"seed {seed}", None, ""), model)


def _hashed(weights: Weights, model: torch.nn.Module) -> Weights:
    return Weights(weights.source, weights.name, weights.revision, weights_sha256(model.state_dict()))


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
