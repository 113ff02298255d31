"""The roof: how fast this machine multiplies matrices at all, and how many multiplications a tower is made of.

A tower that reaches 80 % of the roof can't become faster by more than a quarter, whatever runs it, without other
arithmetic or less work.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from lgip_ort.provider import Provider, arithmetic

GRAPHS = {
    "fp32": (Path(__file__).with_name("roof.onnx"), np.float32),
    "fp16": (Path(__file__).with_name("roof_fp16.onnx"), np.float16),
}
"""y = MatMul(a, b) in a graph of its own, by what its tensors are stored in."""

TOWERS = ((3152, 768, 3072), (3152, 3072, 768))  # the two products of an MLP of ViT-B/16, 16 images
SHAPES = {"cpu": (*TOWERS, (2048, 2048, 2048)), "cuda": (*TOWERS, (8192, 8192, 8192))}
"""Rows, inner dimension and columns of the products that are tried, by device: small enough for a cache or large."""

PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", "FusedGemm")
CONVOLUTIONS = ("Conv", "FusedConv")
OTHERS = ("MatMul", "Gemm", "Conv", "Attention", "Einsum")
"""Parts of the names of operators that multiply matrices, too."""


@dataclass(frozen=True)
class Product:
    """A product of matrices of `shape` (rows, inner, columns) in `precision`, computed by `engine` on `provider`, which
    is a device where the engine has no providers."""

    engine: str
    provider: str
    precision: str
    shape: tuple[int, int, int]
    call: Callable[[], object]

    @property
    def flops(self) -> int:
        """Floating point operations: a multiplication and an addition for each of rows × inner × columns."""
        return 2 * math.prod(self.shape)


def numpy_products() -> list[Product]:
    """NumPy's, in fp32."""
    made = []
    for shape in SHAPES["cpu"]:
        a, b = operands(shape)
        made.append(
            Product("numpy", "cpu", "fp32", shape, partial(np.matmul, a, b, np.empty((len(a), b.shape[1]), a.dtype)))
        )
    return made


def ort_products(provider: Provider) -> list[Product]:
    """ONNX Runtime's on `provider`, in what it executes fp32 graphs in, and in fp16 where it computes that."""
    made = []
    for stored in ("fp32", "fp16") if provider.computes_fp16 else ("fp32",):
        precision = "fp16" if stored == "fp16" else arithmetic(provider)
        for shape in SHAPES[provider.device]:
            call = _bound(provider, stored, shape)
            made.append(Product("ort", provider.key, precision, shape, call))
    return made


def _bound(provider: Provider, stored: str, shape: tuple[int, int, int]) -> Callable[[], object]:
    """A product in a session of its own, made for the one shape, with its matrices in the provider's memory."""
    graph, dtype = GRAPHS[stored]
    options = ort.SessionOptions()
    options.log_severity_level = 3
    for name, size in zip(("rows", "inner", "columns"), shape, strict=True):
        options.add_free_dimension_override_by_name(name, size)
    session = provider.session(graph, options)
    binding = session.io_binding()
    values = [ort.OrtValue.ortvalue_from_numpy(array.astype(dtype), provider.device) for array in operands(shape)]
    values.append(ort.OrtValue.ortvalue_from_shape_and_type([shape[0], shape[2]], dtype, provider.device))
    for name, value in zip(("a", "b"), values, strict=False):
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("y", values[-1])
    return partial(_run, session, binding, values)


def _run(session: ort.InferenceSession, binding: Any, values: list[ort.OrtValue]) -> None:
    """Run once. On a CPU a value is the memory of an array that a binding does not keep alive: hence `values`."""
    session.run_with_iobinding(binding)


def operands(shape: tuple[int, int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """float32 (rows, inner) and (inner, columns), normal, scaled so that their product is, too."""
    rows, inner, columns = shape
    random = np.random.default_rng(0)
    scale = np.float32(inner**-0.5)
    return random.standard_normal((rows, inner), np.float32) * scale, random.standard_normal(
        (inner, columns), np.float32
    )


def flops(graph: Path, inputs: Iterable[NDArray[Any]]) -> list[int | None]:
    """Floating point operations of all matrix products and convolutions that each of `inputs` goes through.

    Counted in a profile of ONNX Runtime's CPU provider, which has the shapes that occurred: 2 × elements of the result
    × length of the sum. None where the graph multiplies in an operator whose shapes do not tell (Attention, integers).
    """
    with tempfile.TemporaryDirectory(prefix="lgip-ort-") as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        # Beyond it channels are filled up to whole blocks, which would count; and a packed weight has no shape.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.disable_prepacking", "1")
        session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        for array in inputs:
            session.run(None, {name: array})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    totals: list[int | None] = []
    nodes: list[int | None] = []
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            nodes.append(_counted(event["args"]))
        elif event["name"] == "model_run":  # stands behind the nodes of its run
            known = [count for count in nodes if count is not None]
            totals.append(sum(known) if len(known) == len(nodes) else None)
            nodes = []
    return totals


def _counted(node: dict[str, Any]) -> int | None:
    """The operations of a node of a profile: 0 where it multiplies no matrices, None where they can not be told."""
    kind = node["op_name"]
    if kind not in (*PRODUCTS, *CONVOLUTIONS):
        return None if any(part in kind for part in OTHERS) else 0
    first, second = (_shape(entry) for entry in node["input_type_shape"][:2])
    result = _shape(node["output_type_shape"][0])
    if kind in CONVOLUTIONS:
        return 2 * math.prod(result) * math.prod(second[1:])
    # Either factor may be transposed: the inner dimension is the one of the first that is not the rows of the result.
    inner = first[-1] if len(result) < 2 or first[-2] == result[-2] else first[-2]
    return 2 * math.prod(result) * inner


def _shape(entry: dict[str, list[int]]) -> list[int]:
    """The shape in an entry such as {"float": [2, 3]}."""
    (shape,) = entry.values()
    return shape
