"""Reading somebody else's ONNX graph: where its weights lie, which output is the embedding, which input it is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from exporter.layouts import inside
from lgip_ort.bundle import Precision, Tower
from lgip_ort.errors import RunFault, UsageFault

Family = Literal["clip", "siglip"]

INPUT: dict[Tower, str] = {"vision": "pixel_values", "text": "input_ids"}
OUTPUT: dict[Tower, str] = {"vision": "image_embeds", "text": "text_embeds"}
RANK: dict[Tower, int] = {"vision": 4, "text": 2}

ARGUMENTS = {"attention_mask", "position_ids", "token_type_ids"}
"""Second inputs of a text graph, which are integers of the same shape as its ids."""

NOT_POOLED = ("last_hidden_state", "hidden_states")
"""How the names of outputs begin that have a row a token or patch."""

INT8_OPERATORS = {
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QAttention",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
}

FOUR_BIT_OPERATORS = {"GatherBlockQuantized", "MatMulBnb4", "MatMulNBits"}


def load(path: Path, folder: Path) -> Any:
    """The graph at `path` as an onnx_ir model, its weights not read yet.

    Raises UsageFault where the file is no graph, and where weights are missing or lie outside `folder`.
    """
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf's and onnx_ir's exceptions have no base in common
        raise UsageFault(f"{path}: not an ONNX graph: {error}") from error
    if not list(model.graph.outputs):
        raise UsageFault(f"{path}: not an ONNX graph: it has no outputs")
    for value in model.graph.initializers.values():
        _check_external(path, folder, value.const_value)
    for node in model.graph.all_nodes():
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                _check_external(path, folder, attribute.value)
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(attribute.value.numpy()))
    return model


def _check_external(path: Path, folder: Path, tensor: Any) -> None:
    """Weights beside the graph are read from the folder alone: a graph may name any file of the machine."""
    if not isinstance(tensor, ir.ExternalTensor):
        return
    location = Path(str(tensor.location))
    what = f"{path}: tensor {tensor.name} lies in {str(location)!r}"
    if location.is_absolute() or ".." in location.parts:
        raise UsageFault(f"{what}, a file beside the graph expected")
    file = inside(folder, path.parent / location)
    if not file.is_file():
        raise UsageFault(f"{what}, which is missing")
    end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
    if file.stat().st_size < end:
        raise UsageFault(f"{what}, which has {file.stat().st_size:,} bytes, at least {end:,} expected")


def embedding(label: str, tower: Tower, family: Family, outputs: list[Any]) -> Any:
    """The one of `outputs` that is a tower's embedding. Raises RunFault where none is, saying what is missing."""
    names = [value.name for value in outputs]
    if OUTPUT[tower] in names:
        return outputs[names.index(OUTPUT[tower])]
    if "pooler_output" in names:
        if family == "clip":
            raise RunFault(
                f"{label}: outputs {', '.join(names)} found, {OUTPUT[tower]} expected: the projection is missing, "
                "pooler_output comes before it; export the model with projection"
            )
        return outputs[names.index("pooler_output")]
    pooled = [value for value in outputs if not value.name.startswith(NOT_POOLED)]
    if len(pooled) == 1 and (pooled[0].shape is None or len(pooled[0].shape) == 2):
        return pooled[0]
    if not pooled:
        raise RunFault(
            f"{label}: outputs {', '.join(names)} found, {OUTPUT[tower]} expected: "
            "the graph does not say how its rows are pooled into one embedding"
        )
    raise RunFault(f"{label}: outputs {', '.join(names)} found, {OUTPUT[tower]} or one (batch, dim) expected")


def source(label: str, tower: Tower, inputs: list[Any]) -> Any:
    """The input that the embedding is of: by its name, else the only one of its kind. Raises RunFault for none."""
    kind = [value for value in inputs if _fits(tower, value)]
    named = [value for value in kind if value.name == INPUT[tower]]
    if len(found := named or kind) != 1:
        names = ", ".join(f"{value.name} {value.dtype} {value.shape}" for value in inputs) or "none"
        raise RunFault(
            f"{label}: inputs of {OUTPUT[tower]}: {names} found, one {INPUT[tower]} of "
            f"{'floating-point numbers' if tower == 'vision' else 'integers'} in {RANK[tower]} dimensions expected"
        )
    return found[0]


def _fits(tower: Tower, value: Any) -> bool:
    if value.dtype is None or value.name in ARGUMENTS:
        return False
    numbers = value.dtype.is_floating_point() if tower == "vision" else value.dtype.is_integer()
    return bool(numbers) and (value.shape is None or len(value.shape) == RANK[tower])


def precision_of(label: str, model: Any) -> Precision:
    """What most weights are stored in. Raises RunFault for another precision than fp32, fp16 and int8."""
    operators = {node.op_type for node in model.graph.all_nodes()}
    if four := sorted(operators & FOUR_BIT_OPERATORS):
        raise RunFault(f"{label}: 4-bit weights ({four[0]}) found, fp32, fp16 or int8 expected")
    if operators & INT8_OPERATORS:
        return "int8"
    size: dict[str, int] = {"float16": 0, "float32": 0}
    for value in model.graph.initializers.values():
        dtype = dtype_name(value.const_value.dtype)
        size[dtype] = size.get(dtype, 0) + value.const_value.nbytes
    return "fp16" if size["float16"] > size["float32"] else "fp32"


def dtype_name(dtype: Any) -> str:
    """NumPy's name of an onnx_ir data type."""
    return str(np.dtype(dtype.numpy()).name)
