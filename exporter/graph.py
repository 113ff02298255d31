"""A tower as an ONNX graph: dynamic batch, dynamic text length, and no traces."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from exporter.towers import TextTower, VisionTower
from lgip_ort.bundle import Graph, Precision, TensorSpec

OPSET = 20
"""From 20 on GELU is one operator, as LayerNormalization is from 17 on: runtimes have a kernel for each, and need not
find them again among their parts. docs/performance.md has what it gave."""

EXTERNAL_BYTES = 1 << 30
"""Weights above this go to one file beside the graph; a graph file itself can't exceed 2 GiB."""

EXAMPLE_BATCH = 2
"""A batch of one would be baked into the graph as a constant."""

EXAMPLE_LENGTH = 12

STEMS = {
    ("vision", "fp16"): "vision_model_fp16",
    ("vision", "fp32"): "vision_model",
    ("vision", "int8"): "vision_model_int8",
    ("text", "fp16"): "text_model_fp16",
    ("text", "fp32"): "text_model",
    ("text", "int8"): "text_model_int8",
}
"""File names of transformers.js and of the onnx-community exports."""


def export_graph(
    tower: VisionTower | TextTower, size: int, precision: Precision, fp32: list[str], folder: Path
) -> Graph:
    """Write `tower`, as it is, to `folder/onnx/`. `size`: side of the image in pixels, not used for text.

    Equal weights give equal bytes: names of files, classes and source lines are taken out.
    """
    kind = "vision" if isinstance(tower, VisionTower) else "text"
    example, dynamic, shape = example_of(tower, size)
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            tower.eval(),
            (example,),
            dynamo=True,
            opset_version=OPSET,
            input_names=[tower.input_name],
            output_names=[tower.output_name],
            dynamic_shapes=(dynamic,),
            verbose=False,
        )
    if program is None:  # only where it is told to write a file itself
        raise RuntimeError("torch.onnx.export returned no program")
    model = program.model
    name = f"onnx/{STEMS[kind, precision]}.onnx"
    save(model, folder / name)
    dim = model.graph.outputs[0].shape[1]
    return Graph(
        tower="vision" if kind == "vision" else "text",
        precision=precision,
        file=name,
        opset=OPSET,
        inputs=[TensorSpec(tower.input_name, "float32" if kind == "vision" else "int64", shape)],
        outputs=[TensorSpec(tower.output_name, "float32", ["batch", int(dim)])],
        fp32=fp32,
    )


def graph_files(graph: Graph, folder: Path) -> list[str]:
    """The files of a graph: the graph itself, and the file with its weights where they are apart."""
    data = graph.file + "_data"
    return [graph.file, data] if (folder / data).is_file() else [graph.file]


def example_of(tower: VisionTower | TextTower, size: int) -> tuple[torch.Tensor, dict[int, Any], list[int | str]]:
    """An input of `tower` to trace it on, its dynamic dimensions, and its shape as the graph has it."""
    if isinstance(tower, VisionTower):
        return torch.zeros(EXAMPLE_BATCH, 3, size, size), {0: torch.export.Dim("batch")}, ["batch", 3, size, size]
    length = min(EXAMPLE_LENGTH, tower.context_length - 1)
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=tower.context_length)}
    return torch.ones(EXAMPLE_BATCH, length, dtype=torch.int64), dynamic, ["batch", "sequence"]


def strip(model: Any) -> None:
    """Take out whatever says where and by which source lines the graph was made."""
    import onnx_ir

    model.metadata_props.clear()
    model.doc_string = None
    graphs = [model.graph, *model.functions.values()]
    for graph in graphs:
        graph.metadata_props.clear()
        graph.doc_string = None
        for value in [*graph.inputs, *graph.outputs, *getattr(graph, "initializers", {}).values()]:
            value.metadata_props.clear()
            value.doc_string = None
        for node in onnx_ir.traversal.RecursiveGraphIterator(graph):
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
                value.doc_string = None


def save(model: Any, path: Path) -> None:
    """Write `model`, stripped; its weights go into the file, or beside it where they are large."""
    import onnx_ir

    strip(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if weights > EXTERNAL_BYTES:
        onnx_ir.save(model, path, external_data=path.name + "_data")
    else:
        onnx_ir.external_data.load_to_model(model)
        onnx_ir.save(model, path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Export without the fused attention of eval mode, which has no ONNX form, and without the exporter's chatter."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    onnxscript = logging.getLogger("onnxscript")
    level = onnxscript.level
    onnxscript.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            # Deprecations inside torch and onnxscript; whatever they do to the graph is found by its verification.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        onnxscript.setLevel(level)
        torch.backends.mha.set_fastpath_enabled(fast)
