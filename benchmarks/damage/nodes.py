"""Finding one's way in an exported graph: weights by the name of their bias, layers, activations, masks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.damage.kinds import Absent


def array(model: onnx.ModelProto, name: str) -> np.ndarray:
    """An initializer, writable. Raises Absent where there is none."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            return np.array(numpy_helper.to_array(tensor))
    raise Absent(f"no tensor {name}")


def put(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    """Replace an initializer, in the type that it had."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            kept = numpy_helper.to_array(tensor).dtype
            tensor.CopyFrom(numpy_helper.from_array(np.array(value, kept, order="C"), name))
            return
    raise Absent(f"no tensor {name}")


def names(model: onnx.ModelProto, pattern: str) -> list[str]:
    """Initializers whose name matches, in order. Raises Absent where there is none."""
    found = [tensor.name for tensor in model.graph.initializer if re.search(pattern, tensor.name)]
    if not found:
        raise Absent(f"no tensor like {pattern}")
    return found


def weight_of(model: onnx.ModelProto, bias: str) -> str:
    """The weight of the linear layer with this bias: of the product that is added to it."""
    made = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type == "Add" and bias in node.input:
            (other,) = [name for name in node.input if name != bias]
            if other in made and made[other].op_type == "MatMul":
                return str(made[other].input[1])
        if node.op_type == "Gemm" and len(node.input) > 2 and node.input[2] == bias:
            return str(node.input[1])
    raise Absent(f"no product is added to {bias}")


def of_type(model: onnx.ModelProto, kind: str) -> list[onnx.NodeProto]:
    """Nodes of an operator, in order. Raises Absent where there is none."""
    found = [node for node in model.graph.node if node.op_type == kind]
    if not found:
        raise Absent(f"no {kind} in the graph")
    return found


def maker(model: onnx.ModelProto, name: str) -> onnx.NodeProto | None:
    """The node that makes a value."""
    return next((node for node in model.graph.node if name in node.output), None)


def redirect(model: onnx.ModelProto, old: str, new: str) -> None:
    """Let whatever reads `old` read `new`."""
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


def layer_inputs(model: onnx.ModelProto) -> list[str]:
    """What enters each layer of the encoder: what its first LayerNormalization reads."""
    scales = names(model, r"layers\.\d+\.layer_norm1\.weight$")
    reads = {node.input[1]: node.input[0] for node in of_type(model, "LayerNormalization")}
    return [reads[scale] for scale in scales]


def insert(model: onnx.ModelProto, value: str, nodes: Iterator[onnx.NodeProto], result: str) -> None:
    """Put `nodes` behind the maker of `value`; what read it reads `result`."""
    redirect(model, value, result)
    place = next((n for n, node in enumerate(model.graph.node) if value in node.output), -1) + 1
    for offset, node in enumerate(nodes):
        model.graph.node.insert(place + offset, node)


def constant(model: onnx.ModelProto, name: str, value: np.ndarray) -> str:
    """A new initializer."""
    model.graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def float_type(model: onnx.ModelProto) -> type[np.generic]:
    """What the graph computes in: that of its largest tensors."""
    largest = max(model.graph.initializer, key=lambda tensor: int(np.prod(tensor.dims)))
    return np.float16 if largest.data_type == onnx.TensorProto.FLOAT16 else np.float32


def node(kind: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
    """A node with one result."""
    return helper.make_node(kind, inputs, [output], **attributes)
