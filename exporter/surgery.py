"""A tower of somebody else's ONNX graph, brought to this project's inputs and outputs; the weights stay as they are.

vision   pixel_values float32 (batch, 3, size, size) -> image_embeds float32 (batch, dim)
text     input_ids int64 (batch, sequence)           -> text_embeds float32 (batch, dim)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from exporter import foreign
from exporter import graph as graph_file
from exporter.foreign import INPUT, OUTPUT, RANK, Family, dtype_name
from lgip_ort.bundle import Precision, Tower
from lgip_ort.errors import RunFault


@dataclass
class TowerGraph:
    """One tower, cut out of the graph in `file`, with one input and one output.

    `batch`: the batch that the graph is fixed to, None where it is not. `shape`: of the input, batch first. `edits`:
    what was done, in the order of doing. `made_by`: the exporter as the file names it.
    """

    file: str
    tower: Tower
    model: Any
    precision: Precision
    batch: int | None
    shape: list[int | str]
    edits: list[str] = field(default_factory=list)
    made_by: str = ""

    @property
    def opset(self) -> int:
        """The version of the standard's operators."""
        return int(self.model.opset_imports[""])


def open_tower(path: Path, folder: Path, tower: Tower, family: Family) -> TowerGraph:
    """The tower in the graph at `path`, which lies in `folder`, from its input to its embedding, and nothing else.

    Raises UsageFault where the file is no graph, or where its weights are missing or lie outside `folder`; RunFault
    where the graph has no pooled embedding or needs an input that can't be derived.
    """
    model = foreign.load(path, folder)
    graph = model.graph
    label = path.relative_to(folder).as_posix()
    made_by = " ".join(filter(None, [model.producer_name, model.producer_version]))
    common.InlinePass()(model)
    common.TopologicalSortPass()(model)  # converters to fp16 leave nodes unsorted: runtimes take it, ONNX forbids it
    common.RemoveInitializersFromInputsPass()(model)
    output = foreign.embedding(label, tower, family, list(graph.outputs))
    inputs, outputs = [v.name for v in graph.inputs], [v.name for v in graph.outputs]
    graph.outputs[:] = [output]
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    graph.inputs[:] = [value for value in graph.inputs if value.uses()]
    source = foreign.source(label, tower, list(graph.inputs))
    cut = TowerGraph(label, tower, model, foreign.precision_of(label, model), None, [], made_by=made_by)
    if len(inputs) > len(graph.inputs) or len(outputs) > 1:
        cut.edits.append(f"cut from {', '.join(inputs)} -> {', '.join(outputs)}")
    for value in list(graph.inputs):
        if value is not source:
            _derive(cut, value, source)
    _rename_input(cut, source)
    _rename_output(cut)
    return cut


def fix_shape(cut: TowerGraph, size: int, context_length: int) -> None:
    """Make the batch symbolic and every other dimension what the model has.

    Raises RunFault where the graph is fixed to another size or length.
    """
    source = cut.model.graph.inputs[0]
    found = [d if isinstance(d, int) else None for d in source.shape or [None] * RANK[cut.tower]]
    wanted: list[int | str] = [3, size, size] if cut.tower == "vision" else [context_length]
    for dim, expected in zip(found[1:], wanted, strict=True):
        if dim not in (None, expected):
            raise RunFault(f"{cut.file}: input {source.name!r}: {found[1:]} found, {wanted} expected after the batch")
    if cut.tower == "text" and found[1] is None:
        wanted = ["sequence"]
    cut.batch = found[0]
    cut.shape = ["batch", *wanted]
    if cut.batch is not None:
        cut.edits.append(f"batch, fixed at {cut.batch}, made symbolic")
    source.shape = ir.Shape(cut.shape)
    (target,) = cut.model.graph.outputs
    dim = target.shape[-1] if target.shape is not None and len(target.shape) == 2 else None
    target.shape = ir.Shape(["batch", dim if isinstance(dim, int) else None])
    for node in cut.model.graph:
        for value in node.outputs:
            if value is not target:
                value.shape = value.type = None  # as the exporter found them, for other dimensions


def normalise(cut: TowerGraph) -> None:
    """Divide the embedding by its L2 norm, in fp32."""
    graph = cut.model.graph
    (raw,) = graph.outputs
    attributes: dict[str, Any] = {"keepdims": 1}
    if cut.opset < 18:  # from then on the axes are an input
        attributes["axes"] = [1]
        norm = ir.node("ReduceL2", [raw], attributes)
    else:
        axes = ir.node("Constant", [], {"value": ir.tensor(np.array([1], np.int64))})
        graph.append(axes)
        norm = ir.node("ReduceL2", [raw, axes.outputs[0]], attributes)
    unit = ir.node("Div", [raw, norm.outputs[0]])
    graph.extend([norm, unit])
    _new_output(cut, unit.outputs[0])
    cut.edits.append("normalised")


def set_dim(cut: TowerGraph, dim: int) -> bool:
    """Say that embeddings have `dim` values, as a run of the graph has shown. Returns whether that is new."""
    (target,) = cut.model.graph.outputs
    told = target.shape[-1] == dim
    target.shape = ir.Shape(["batch", dim])
    return not told


def weights_sha256(cuts: Sequence[TowerGraph]) -> str:
    """sha256 over name, dtype, shape and bytes of every tensor of the graphs, sorted by name within each."""
    digest = hashlib.sha256()
    for cut in cuts:
        for name, value in sorted(cut.model.graph.initializers.items()):
            tensor = value.const_value
            digest.update(f"{name}\0{tensor.dtype.name}\0{tuple(tensor.shape.numpy())}\0".encode())
            digest.update(tensor.tobytes())
    return digest.hexdigest()


def save(cut: TowerGraph, path: Path) -> None:
    """Write the graph, without what says where it was made; weights go beside it where they are large."""
    common.NameFixPass()(cut.model)
    graph_file.save(cut.model, path)


def _derive(cut: TowerGraph, value: Any, source: Any) -> None:
    """Compute a second input inside the graph: a mask that hides nothing, in the shape of the ids."""
    if cut.tower != "text" or value.name != "attention_mask":
        raise RunFault(f"{cut.file}: input {value.name!r} can't be derived from {INPUT[cut.tower]}")
    one = ir.tensor(np.ones(1, value.dtype.numpy()))
    shape = ir.node("Shape", [source])
    ones = ir.node("ConstantOfShape", shape.outputs, {"value": one})
    value.replace_all_uses_with(ones.outputs[0])
    graph = cut.model.graph
    graph.inputs.remove(value)
    _prepend(graph, [shape, ones])
    cut.edits.append("attention_mask: ones")


def _rename_input(cut: TowerGraph, source: Any) -> None:
    """One input, called and typed as every graph here, cast to what the graph works on."""
    name = INPUT[cut.tower]
    wanted = ir.DataType.FLOAT if cut.tower == "vision" else ir.DataType.INT64
    if source.name != name:
        cut.edits.append(f"input {source.name} -> {name}")
    if source.dtype == wanted:
        source.name = name
        return
    new = ir.val(name, wanted, source.shape)
    cast = ir.node("Cast", [new], {"to": source.dtype})
    source.replace_all_uses_with(cast.outputs[0])
    cut.model.graph.inputs[:] = [new]
    _prepend(cut.model.graph, [cast])
    cut.edits.append(f"{name} {dtype_name(wanted)} -> {dtype_name(source.dtype)}")


def _rename_output(cut: TowerGraph) -> None:
    graph = cut.model.graph
    (value,) = graph.outputs
    name = OUTPUT[cut.tower]
    if value.name != name:
        cut.edits.append(f"output {value.name} -> {name}")
    if value.dtype == ir.DataType.FLOAT:
        value.name = name
        return
    cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT})
    graph.append(cast)
    cut.edits.append(f"{name} {dtype_name(value.dtype)} -> float32")
    _new_output(cut, cast.outputs[0])


def _new_output(cut: TowerGraph, value: Any) -> None:
    (old,) = cut.model.graph.outputs
    old.name = None  # the pass that fixes names finds it one
    value.name = OUTPUT[cut.tower]
    value.dtype, value.shape = ir.DataType.FLOAT, old.shape
    cut.model.graph.outputs[:] = [value]


def _prepend(graph: Any, nodes: list[Any]) -> None:
    graph.insert_before(next(iter(graph)), nodes)
