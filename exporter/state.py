"""The tensors of a checkpoint file into a model: none missing, none left over, none resized, none of another kind."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from lgip_ort.errors import UsageFault

OPENAI_NUMBERS = {"input_resolution", "context_length", "vocab_size"}
"""Sizes that OpenAI's own checkpoints hold among their tensors; the architecture has them."""


def fill(model: torch.nn.Module, file: Path) -> None:
    """Put the tensors of an open_clip checkpoint `file` into `model`.

    Takes safetensors, and pickles of plain tensors, wrapped as open_clip's training writes them or not, in any
    floating-point precision. Raises UsageFault where the file holds anything else, or where a tensor does not fit.
    """
    from open_clip.convert import convert_state_dict
    from open_clip.model import convert_to_custom_text_state_dict

    tensors = convert_state_dict(model, _read(file))
    if "positional_embedding" in tensors and not hasattr(model, "positional_embedding"):
        tensors = convert_to_custom_text_state_dict(tensors)
    expected = model.state_dict()
    for name in ("logit_scale", "logit_bias"):  # a scalar in some checkpoints, one element in others
        if name in tensors and name in expected and tensors[name].numel() == expected[name].numel():
            tensors[name] = tensors[name].reshape(expected[name].shape)
    check_names(str(file), expected.keys() - tensors.keys(), tensors.keys() - expected.keys() - OPENAI_NUMBERS)
    for name, tensor in expected.items():
        found = tensors[name]
        if tensor.shape != found.shape:
            raise UsageFault(f"{file}: tensor {name} has shape {tuple(found.shape)}, {tuple(tensor.shape)} expected")
        if tensor.is_floating_point() != found.is_floating_point():
            raise UsageFault(f"{file}: tensor {name} holds {found.dtype}, {tensor.dtype} expected")
    model.load_state_dict({name: tensors[name] for name in expected}, strict=True)


def check_names(where: str, missing: Collection[str], unexpected: Collection[str]) -> None:
    """Raises UsageFault, beginning with `where`, naming the first of the tensors that are missing or unexpected."""
    faults = []
    for label, names in (("missing", missing), ("unexpected", unexpected)):
        if names:
            first = ", ".join(sorted(names)[:3])
            faults.append(f"{len(names)} {label} tensors: {first}{', ...' if len(names) > 3 else ''}")
    if faults:
        raise UsageFault(f"{where}: {'; '.join(faults)}")


def _read(file: Path) -> dict[str, torch.Tensor]:
    from open_clip.factory import load_state_dict

    if _is_torchscript(file):
        raise UsageFault(
            f"{file}: a TorchScript program, as OpenAI's downloads are; only plain tensors are read. Once, for a file "
            f'that you trust: python -c "import torch; torch.save(torch.jit.load({file.name!r}, '
            "map_location='cpu').state_dict(), 'tensors.pt')\""
        )
    try:
        tensors: Any = load_state_dict(str(file), device="cpu", weights_only=True)
    except (RuntimeError, OSError, ValueError, KeyError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageFault(f"{file}: can't be read as plain tensors ({reason})") from error
    except (AttributeError, StopIteration) as error:  # a list, one tensor, nothing at all
        raise UsageFault(f"{file}: no tensors by name are in it") from error
    odd = [name for name, value in tensors.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise UsageFault(f"{file}: tensors by name expected, {odd[0]!r} is a {type(tensors[odd[0]]).__name__}")
    return tensors


def _is_torchscript(file: Path) -> bool:
    """Whether a zip archive holds a program: TorchScript puts `constants.pkl` beside the tensors."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(Path(name).name == "constants.pkl" for name in archive.namelist())
