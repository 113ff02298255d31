"""What a graph file must be, whatever it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lgip_ort.bundle import Graph
from lgip_ort.errors import RunFault

DOMAINS = {"", "ai.onnx"}
"""Operators of the standard alone: no provider knows the others all."""

FOREIGN_DOMAINS = DOMAINS | {"com.microsoft"}
"""Whose operators a graph of others may have: ONNX Runtime's own are what optimised and quantised graphs consist of."""

FP16_SHARE = 0.95
"""Least share of fp16 among the bytes of floating-point weights in a graph that is called fp16."""


def check_structure(path: Path, graph: Graph, foreign: bool = False) -> dict[str, Any]:
    """Check the graph at `path` against its entry in the manifest and against what breaks on devices.

    `foreign`: whether somebody else exported it. It may then have ONNX Runtime's own operators, and masks of -inf,
    which are harmless as long as no row is masked whole. Returns what was measured. Raises RunFault naming the file,
    the tensor or node, what was found and expected.
    """
    import onnx
    import onnx_ir

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except onnx.checker.ValidationError as error:
        raise RunFault(f"{graph.file}: not valid ONNX: {error}") from error
    model = onnx_ir.load(path)
    _check_io(graph, model.graph)
    domains = set(model.opset_imports) | {node.domain for node in model.graph.all_nodes()}
    if unknown := sorted(domains - (FOREIGN_DOMAINS if foreign else DOMAINS)):
        expected = "only the standard's and com.microsoft" if foreign else "only the standard's"
        raise RunFault(f"{graph.file}: operators of domain {unknown[0]!r} found, {expected} expected")
    if model.opset_imports[""] != graph.opset:
        raise RunFault(f"{graph.file}: opset {model.opset_imports['']} found, {graph.opset} expected")
    for node in model.graph.all_nodes():
        if node.op_type == "ArgMax":
            _check_integers(graph, node)
    share = _check_tensors(graph, model.graph, foreign)
    operators = sorted({f"{node.domain}::{node.op_type}".lstrip(":") for node in model.graph.all_nodes()})
    return {"operators": operators, "fp16_share": round(share, 4)}


def _check_io(graph: Graph, found: Any) -> None:
    for expected, values in ((graph.inputs, found.inputs), (graph.outputs, found.outputs)):
        names = [(v.name, [d if isinstance(d, int) else d.value for d in v.shape]) for v in values]
        wanted = [(spec.name, spec.shape) for spec in expected]
        if names != wanted:
            raise RunFault(f"{graph.file}: inputs or outputs {names} found, {wanted} expected")


def _check_integers(graph: Graph, argmax: Any) -> None:
    """fp16 can't tell token 49406 from 49407: nothing above an ArgMax over ids may be a floating-point number."""
    import onnx_ir

    todo, seen = [argmax.inputs[0]], set()
    while todo:
        value = todo.pop()
        node = value.producer() if value is not None else None
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.op_type == "Cast" and onnx_ir.DataType(node.attributes["to"].as_int()).is_floating_point():
            raise RunFault(f"{graph.file}: {node.name}, above {argmax.name}, casts token ids to a float")
        todo.extend(node.inputs)


def _check_tensors(graph: Graph, found: Any, masks: bool) -> float:
    """Refuse infinite and NaN tensors, -inf apart where `masks` may have it; returns the share of fp16 among the bytes
    of floating-point tensors."""
    total = half = 0
    for name, tensor in _tensors(found):
        array = tensor.numpy()
        if array.dtype.kind != "f":
            continue
        if not (np.isfinite(array) | (masks & np.isneginf(array))).all():
            raise RunFault(f"{graph.file}: tensor {name} is not finite")
        total += array.nbytes
        half += array.nbytes if array.dtype == np.float16 else 0
    share = half / total if total else 0.0
    if graph.precision == "fp16" and share < FP16_SHARE:
        raise RunFault(f"{graph.file}: {share:.1%} of the weights are fp16, at least {FP16_SHARE:.0%} expected")
    return share


def _tensors(found: Any) -> list[tuple[str, Any]]:
    tensors = [(name, v.const_value) for name, v in found.initializers.items()]
    for node in found.all_nodes():
        if node.op_type == "Constant" and "value" in node.attributes:
            tensors.append((node.name, node.attributes["value"].as_tensor()))
    return tensors
