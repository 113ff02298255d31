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
    """A product of matrices of `shape` (rows, inner, columns) in `precision`, on a `device`, computed by `engine`."""

    engine: str
    device: str
    precision: str
    shape: tuple[int, int, int]
    call: Callable[[], object]

    @property
    def name(self) -> str:
        """What it is called in a table."""
        return f"{self.engine} {self.precision} {'x'.join(map(str, self.shape))}"

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
        path, dtype = GRAPHS[stored]
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = provider.session(path, options)
        precision = "fp16" if stored == "fp16" else arithmetic(provider)
        for shape in SHAPES[provider.device]:
            binding = session.io_binding()
            for name, array in zip(("a", "b"), operands(shape), strict=True):
                value = ort.OrtValue.ortvalue_from_numpy(array.astype(dtype), provider.device)
                binding.bind_ortvalue_input(name, value)
            rows, _, columns = shape
            result = ort.OrtValue.ortvalue_from_shape_and_type([rows, columns], dtype, provider.device)
            binding.bind_ortvalue_output("y", result)
            call = partial(session.run_with_iobinding, binding)
            made.append(Product(f"ort/{provider.key}", provider.device, precision, shape, call))
    return made


def operands(shape: tuple[int, int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """float32 (rows, inner) and (inner, columns), normal, scaled so that their product is, too."""
    rows, inner, columns = shape
    random = np.random.default_rng(0)
    scale = np.float32(inner**-0.5)
    return random.standard_normal((rows, inner), np.float32) * scale, random.standard_normal(
        (inner, columns), np.float32
    )


def flops(graph: Path, inputs: Iterable[NDArray[Any]]) -> int | None:
    """Floating point operations of all matrix products and convolutions that `inputs`, one after the other, go through.

    Counted in a profile of ONNX Runtime's CPU provider, which has the shapes that occurred: 2 × elements of the result ×
    length of the sum. None where the graph multiplies in an operator whose shapes do not tell (Attention, integers).
    """
    with tempfile.TemporaryDirectory(prefix="lgip-ort-") as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        options.add_session_config_entry("session.disable_prepacking", "1")  # a packed weight has no shape in a profile
        session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        for array in inputs:
            session.run(None, {name: array})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    total = 0
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            counted = _counted(event["args"])
            if counted is None:
                return None
            total += counted
    return total


def _counted(node: dict[str, Any]) -> int | None:
    """The operations of a node of a profile: 0 where it multiplies no matrices, None where it does and how is unknown."""
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
