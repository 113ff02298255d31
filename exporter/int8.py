"""From a tower's fp32 graph to int8: ONNX Runtime's dynamic quantisation of the multiplications by weights.

The weights become 8-bit integers with a scale for every output. What is multiplied by them is quantised when it comes,
with one scale for all of a batch, so that nothing has to be calibrated, and a row depends a little on its neighbours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.graph import STEMS, save
from lgip_ort.bundle import Graph
from lgip_ort.errors import RunFault

PRODUCTS = ("MatMul", "Gemm", "MatMulInteger")

SEVEN_BITS = True
"""Weights of -64 to 64. Processors without VNNI add two products of an unsigned and a signed byte in 16 bits; with
weights up to 127 that sum can saturate, and the same file gives other embeddings there than elsewhere. Emulated on
seven pictures, it took the least cosine of tiny_siglip from 0.99995 to 0.9973 and that of clip_vit_b16 with random
weights from 0.9999 to 0.979. Seven bits can't saturate; they cost 0.0001 of cosine on the same pictures, and no bytes.
"""


def quantise(source: Graph, folder: Path) -> Graph:
    """Write the int8 graph that is made of the fp32 graph `source` to `folder/onnx/`, where `source` lies, too.

    Equal graphs give equal bytes. The last product before the embedding stays fp32; RunFault where there is none.
    """
    import onnx_ir
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = folder / source.file
    last, fp32 = _stays_fp32(onnx_ir.load(path).graph, source.file)
    name = f"onnx/{STEMS[source.tower, 'int8']}.onnx"
    with tempfile.TemporaryDirectory(dir=folder) as scratch, _without_shapes(path) as bare, _quiet():
        quantised = Path(scratch) / "quantised.onnx"
        quantize_dynamic(
            bare,
            quantised,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=SEVEN_BITS,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[last, f"{last}_MatMul"],  # every Gemm is made a MatMul of that name before
            use_external_data_format=True,
        )
        model = onnx_ir.load(quantised)
        save(model, folder / name)
    return dataclasses.replace(source, precision="int8", file=name, fp32=fp32)


def check_products(path: Path, graph: Graph) -> dict[str, Any]:
    """Check which multiplications by weights of the int8 graph at `path` are in integers: all but the last.

    Returns what was measured. Raises RunFault naming the file, the node, what was found and expected.
    """
    import onnx_ir

    found = onnx_ir.load(path).graph
    *inner, (last, _) = _products(found) or [(None, None)]
    if last is None or last.op_type == "MatMulInteger":
        what = f"{last.name}, the projection, in int8" if last is not None else "no multiplication by weights"
        raise RunFault(f"{graph.file}: {what} found, a projection in fp32 expected")
    for node, weight in inner:
        if node.op_type != "MatMulInteger":
            raise RunFault(f"{graph.file}: {node.name} multiplies by {weight.name} in fp32, int8 expected")
    eight = sum(weight.const_value.size for _, weight in inner)
    total = sum(value.const_value.size for value in found.initializers.values())
    return {"products": len(inner), "int8_share": round(eight / total, 4)}


def _stays_fp32(graph: Any, label: str) -> tuple[str, list[str]]:
    """The name of the last product before the embedding, and what else stays in fp32, each with its reason."""
    products = _products(graph)
    if not products:
        raise RunFault(f"{label}: no multiplication by weights found, nothing to quantise")
    last = products[-1][0]
    stays = [f"{last.name}, the projection into the joint space: nothing after it evens out its rounding"]
    for node in _ancestors(graph):
        data = node.inputs[0] if node.op_type == "Gather" else None
        if data is not None and data.is_initializer() and data.dtype.is_floating_point():
            stays.append(f"{data.name}: looked up, not multiplied")
        elif node.op_type == "Conv":
            stays.append(f"{node.name}, the convolution of the patches: few weights, and the first to see the pixels")
    stays.append("products of two activations, softmax, normalisations and biases: no weights to make small")
    return last.name, stays


def _ancestors(graph: Any) -> list[Any]:
    """The nodes that the graph's output is computed by, in the graph's order."""
    todo, seen = [value.producer() for value in graph.outputs], set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo.extend(value.producer() for value in node.inputs if value is not None)
    return [node for node in graph if node in seen]


def _products(graph: Any) -> list[tuple[Any, Any]]:
    """The multiplications by weights that the output is computed by, each with its weight, in the graph's order."""
    nodes = [node for node in _ancestors(graph) if node.op_type in PRODUCTS]
    return [(node, node.inputs[1]) for node in nodes if node.inputs[1].is_initializer()]


@contextlib.contextmanager
def _without_shapes(path: Path) -> Iterator[Path]:
    """The graph at `path` without the shapes that it notes of its tensors, beside it, where its weights may be.

    The quantiser transposes the operand of a Gemm and leaves the old shape noted, which is an error where it is not
    square; it finds every shape by itself.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    del model.graph.value_info[:]
    bare = path.with_name(f"{path.stem}_bare.onnx")
    onnx.save(model, bare)
    try:
        yield bare
    finally:
        bare.unlink()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice to optimise the graph first: that brings in operators which only ONNX Runtime knows."""
    root = logging.getLogger()
    advice = lambda record: "pre-processing before quantization" not in record.getMessage()  # noqa: E731
    root.addFilter(advice)
    try:
        yield
    finally:
        root.removeFilter(advice)
