"""The weights in a graph file against the tower's own, to the bit: no cosine notices one that is off by a little."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx

from lgip_ort.errors import RunFault

STRANGE = 0.01
"""Largest share of floating-point bytes in a graph that are no tensor of the tower, but computed tables and masks."""

STEP = 0.51
"""Largest error of a quantised weight, in steps of its scale: rounding gives a half."""


def used_tensors(traced: fx.GraphModule) -> dict[str, Tensor]:
    """The floating-point tensors that a traced encoder uses, by the name of its library."""
    named = dict([*traced.named_parameters(remove_duplicate=False), *traced.named_buffers(remove_duplicate=False)])
    used = {str(node.target) for node in traced.graph.nodes if node.op == "get_attr" and node.users}
    return {name: t.detach() for name, t in named.items() if name in used and t.is_floating_point() and t.numel()}


def check_weights(path: Path, label: str, expected: Mapping[str, Tensor]) -> dict[str, Any]:
    """Find every tensor of `expected` (as it is stored: in its precision) in the graph at `path`, bit for bit.

    A tensor may lie there transposed, as exporters write the right operand of a product, or as a part of a longer one.
    Returns what was measured. Raises RunFault naming the tensor that is missing, or what the graph has besides.
    """
    found = {_digest(array): (name, array) for name, array in _floats(path)}
    rest = dict(found)
    missing = {}
    for name, tensor in expected.items():
        forms = {_digest(form) for form in _forms(tensor)}
        if forms & found.keys():
            for digest in forms:
                rest.pop(digest, None)
        elif bool(tensor.any()):  # a bias of zeros is left out by the exporter's optimiser
            missing[name] = tensor
    joined = b"".join(array.tobytes() for _, array in rest.values() if array.size > 1) if missing else b""
    for name, tensor in missing.items():
        if tensor.numel() == 1 or not any(form.tobytes() in joined for form in _forms(tensor)):
            raise RunFault(
                f"{label}: tensor {name} {tuple(tensor.shape)} of the PyTorch tower is not in the graph as it is"
                + _nearest(tensor, [array for _, array in rest.values()])
            )
    total = sum(array.nbytes for _, array in found.values())
    strange = sum(array.nbytes for _, array in rest.values()) - sum(t.nbytes for t in missing.values())
    if strange > STRANGE * total:
        largest = max(rest.values(), key=lambda item: item[1].nbytes)
        raise RunFault(
            f"{label}: {strange / total:.1%} of the graph's floating-point weights are no tensor of the PyTorch tower, "
            f"at most {STRANGE:.0%} expected; the largest is {largest[0]} {largest[1].shape}"
        )
    return {"tensors": len(expected), "in_pieces": len(missing), "differences": 0}


def check_quantised(path: Path, label: str, exact: Path) -> dict[str, Any]:
    """Compare the int8 weights of the graph at `path` with those of the fp32 graph `exact` that it was made from.

    Every weight must lie within half a step of its scale. Raises RunFault naming the tensor where one does not.
    """
    originals = dict(_floats(exact))
    stored = dict(_arrays(path))
    worst = count = 0.0
    for name, integers in stored.items():
        source = name.removesuffix("_quantized")
        if source == name or source not in originals:
            continue
        scale, zero = stored[source + "_scale"], stored[source + "_zero_point"]
        whole = originals[source]
        forms = [form for form in (whole, whole.T) if form.shape == integers.shape]  # a Gemm's operand is turned
        off = min((_steps_off(form, integers, scale, zero) for form in forms), default=np.inf)
        if not off <= STEP:
            raise RunFault(
                f"{label}: {name} {integers.shape} is up to {off:.3g} steps away from the fp32 weights, "
                f"at most {STEP} expected"
            )
        worst, count = max(worst, off), count + 1
    if not count:
        raise RunFault(f"{label}: no quantised weight found")
    return {"tensors": int(count), "largest_step": round(worst, 4)}


def _forms(tensor: Tensor) -> list[NDArray[Any]]:
    array = tensor.detach().cpu().contiguous().numpy()
    return [array, np.ascontiguousarray(array.T)] if array.ndim == 2 else [array]


def _digest(array: NDArray[Any]) -> bytes:
    """Of dtype and bytes: a reshaped tensor is the same tensor."""
    return hashlib.blake2b(array.tobytes(), digest_size=16, key=array.dtype.str.encode()).digest()


def _floats(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    return ((name, array) for name, array in _arrays(path) if array.dtype.kind == "f")


def _arrays(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    import onnx_ir

    model = onnx_ir.load(path)
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            yield name, value.const_value.numpy()
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and "value" in node.attributes:
            yield node.outputs[0].name or node.name or "", node.attributes["value"].as_tensor().numpy()


def _steps_off(whole: NDArray[Any], integers: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any]) -> float:
    """Largest distance of `whole` from the quantised weights in steps, what lies outside their range included."""
    steps = whole / np.where(scale == 0, 1, scale) + zero.astype(np.float32)
    return float(np.abs(steps - integers.astype(np.float32)).max())


def _nearest(tensor: Tensor, arrays: list[NDArray[Any]]) -> str:
    """How far the likeliest candidate of the same size is away."""
    best = None
    for form in _forms(tensor.float()):
        for array in arrays:
            if array.size == form.size:
                difference = float(np.abs(array.astype(np.float32).reshape(-1) - form.reshape(-1)).max())
                best = difference if best is None else min(best, difference)
    return f"; the nearest of its size differs by up to {best:.3g}" if best is not None else ""
