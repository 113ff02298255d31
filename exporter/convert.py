"""One tower to its graph files, in every precision that is asked for, and the weights in each against the tower's."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from exporter.graph import example_of, export_graph, graph_files
from exporter.int8 import check_products, quantise
from exporter.mixed import Mixed
from exporter.precision import halve
from exporter.structure import check_structure
from exporter.towers import TextTower, VisionTower
from exporter.trace import trace
from exporter.weights import check_quantised, check_weights, used_tensors
from lgip_ort.bundle import PRECISIONS, Graph, Precision


@dataclass(frozen=True)
class Converted:
    """The graphs of a tower and what was measured on the way, by precision.

    `activations`: operation -> largest |value| of its result in the fp32 tower, empty where nothing became fp16.
    """

    graphs: dict[Precision, Graph]
    measured: dict[Precision, dict[str, Any]]
    activations: dict[str, float] = field(default_factory=dict)


def convert(
    tower: VisionTower | TextTower,
    inputs: NDArray[Any],
    expected: NDArray[np.float32],
    size: int,
    precisions: Collection[Precision],
    work: Path,
    clock: Callable[[str], None],
) -> Converted:
    """Write the graphs of `tower` to `work/onnx/`, int8 by way of fp32. The tower is used up: its tensors are freed.

    `inputs`: rows that fp16 is tried on, `expected`: what the fp32 original makes of them, float32 (n, dim); `size`:
    side of an image in pixels. Raises RunFault where fp16 is not safe for it, and where a weight is not the tower's.
    """
    encoder, kind = tower.encoder, "vision" if isinstance(tower, VisionTower) else "text"
    example, dynamic, _ = example_of(tower, size)
    traced = trace(encoder, example, dynamic)
    used = set(used_tensors(traced))
    graphs: dict[Precision, Graph] = {}
    measured: dict[Precision, dict[str, Any]] = {}
    activations: dict[str, float] = {}

    def write(precision: Precision, fp32: list[str]) -> None:
        graph = export_graph(tower, size, precision, fp32, work)
        stored = {name: t for name, t in tower.encoder.named_buffers(remove_duplicate=False) if name in used}
        graphs[precision] = graph
        measured[precision] |= {"tensors": check_weights(work / graph.file, graph.file, stored)}
        _written(graph, work, clock)

    if "fp32" in precisions or "int8" in precisions:
        measured["fp32"] = {}
        tower.encoder = Mixed(traced, torch.float32)
        write("fp32", [])
    if "fp16" in precisions:
        half = halve(traced, torch.from_numpy(inputs), torch.from_numpy(expected))
        activations, measured["fp16"] = half.activations, half.measured
        true = half.measured["true_fp16"]
        clock(
            f"{kind} in true fp16: least cosine {true['cosine_min']}, {half.measured['islands']} operations stay fp32"
        )
        tower.encoder = half.encoder
        write("fp16", half.fp32)
        del half
    tower.encoder = encoder
    del traced
    encoder.to("meta")
    gc.collect()
    if "int8" in precisions:
        exact = graphs["fp32"]
        graphs["int8"] = quantised = quantise(exact, work)
        path = work / quantised.file
        measured["int8"] = check_products(path, quantised)
        measured["int8"] |= {"weights": check_quantised(path, quantised.file, work / exact.file)}
        _written(quantised, work, clock)
        if "fp32" not in precisions:
            for name in graph_files(exact, work):
                (work / name).unlink()
            del graphs["fp32"]
    for precision, graph in graphs.items():
        measured[precision] |= check_structure(work / graph.file, graph)
    ordered = [precision for precision in PRECISIONS if precision in graphs]
    return Converted({p: graphs[p] for p in ordered}, {p: measured[p] for p in ordered}, activations)


def _written(graph: Graph, work: Path, clock: Callable[[str], None]) -> None:
    size = sum((work / name).stat().st_size for name in graph_files(graph, work))
    clock(f"{graph.file}: {size / 1e6:,.1f} MB written, every weight is the tower's")
