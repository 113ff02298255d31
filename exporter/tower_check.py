"""An adopted tower: written, run, brought to norm 1 where a run shows that it is not, and checked like one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from exporter import surgery
from exporter.foreign import dtype_name
from exporter.graph import STEMS
from exporter.structure import check_structure
from exporter.surgery import TowerGraph
from exporter.verify import UNIT, Rows, check_tower
from lgip_ort.bundle import Graph, TensorSpec, TextSpec
from lgip_ort.errors import RunFault

AGAINST_ORIGINAL = ("cosine_min", "centred_cosine_min", "max_abs_diff")
"""What `check_tower` measures against the original."""


def write_tower(
    cut: TowerGraph,
    work: Path,
    inputs: NDArray[Any],
    text: TextSpec | None = None,
    reference: Rows | None = None,
    shorter: Rows | None = None,
) -> tuple[Graph, dict[str, Any]]:
    """Write `cut` below `work` and check it; returns its entry in the manifest and what was measured.

    `inputs`: the probes, as the bundle's own tokenizer or preprocessing makes them. `text`: how texts are padded, None
    for a vision tower. `reference`, `shorter`: the original's embeddings, as `check_tower` takes them, None where there
    is no original. Raises RunFault with what was found and what was expected.
    """
    file = f"onnx/{STEMS[cut.tower, cut.precision]}.onnx"
    path = work / file
    surgery.save(cut, path)
    rows = _first_run(cut, path, inputs)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    changed = surgery.set_dim(cut, rows.shape[1])
    if np.abs(norms - 1).max() > UNIT:
        surgery.normalise(cut)
        changed = True
    if changed:
        surgery.save(cut, path)
    (source,), (target,) = cut.model.graph.inputs, cut.model.graph.outputs
    graph = Graph(
        tower=cut.tower,
        precision=cut.precision,
        file=file,
        opset=cut.opset,
        inputs=[TensorSpec(source.name, dtype_name(source.dtype), cut.shape)],
        outputs=[TensorSpec(target.name, "float32", ["batch", rows.shape[1]])],
    )
    measured = {"from": cut.file, "edits": cut.edits, **check_structure(path, graph, foreign=True)}
    own = (rows / norms[:, None]).astype(np.float32)
    measured |= check_tower(path, graph, inputs, own if reference is None else reference, text, shorter)
    if reference is None:
        measured = {name: value for name, value in measured.items() if name not in AGAINST_ORIGINAL}
    return graph, measured


def _first_run(cut: TowerGraph, path: Path, inputs: NDArray[Any]) -> NDArray[Any]:
    """The embeddings of the probes as the graph makes them, of any norm."""
    fixed = f"batch fixed at {cut.batch} found, any batch expected: " if cut.batch is not None else ""
    try:
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        rows = np.asarray(session.run(None, {session.get_inputs()[0].name: inputs})[0])
    except Exception as error:  # ONNX Runtime's own exceptions have no base of their own
        raise RunFault(f"{cut.file}: {fixed}{inputs.dtype} {inputs.shape} can't be run: {error}") from error
    if rows.ndim != 2 or len(rows) != len(inputs):
        raise RunFault(f"{cut.file}: {fixed}embeddings {rows.shape} found, ({len(inputs)}, dim) expected")
    if not np.isfinite(rows).all() or not np.linalg.norm(rows, axis=1).all():
        raise RunFault(f"{cut.file}: embeddings that are not finite, or zero, found")
    if np.array_equal(rows, np.broadcast_to(rows[0], rows.shape)):
        raise RunFault(f"{cut.file}: {len(rows)} different inputs have the same embedding")
    return rows
