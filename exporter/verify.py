"""A graph file, as it ships, against the PyTorch tower that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from lgip_ort.bundle import Graph, Precision, TextSpec
from lgip_ort.errors import RunFault

Rows = NDArray[np.float32]

BATCHES = (1, 2, 3, 1)
"""How the seven probes are cut up; each row must be what it is in the batch of seven."""

COSINE: dict[Precision, float] = {"fp16": 0.9999, "fp32": 0.99999, "int8": 0.98}
"""Least cosine of a row with the fp32 original's. fp16 keeps 11 bits; rounding the weights left 0.999998 and
more on every architecture of the zoo, so this leaves room for trained weights, which have outliers. int8 is a floor: it
tells a broken graph from a coarse one, and what a coarse one does to the profile is the benchmark's to say. The trained
demo models keep 0.9998, random weights 0.998; one weight twice too large takes most towers below it."""

CENTRED: dict[Precision, float] = {"fp16": 0.999, "fp32": 0.9999, "int8": 0.95}
"""The same after the mean of the probes is taken off. Without it, a graph that ignores its input passes wherever all
embeddings point nearly the same way, as they do with random weights."""

SAME_GRAPH: dict[Precision, float] = {"fp16": 0.9999, "fp32": 0.99999, "int8": 0.98}
"""Least cosine between two runs of one graph: other batch, other length, other optimisation level. In fp16 the levels
round in different places; in int8 the scale of what is multiplied is that of its batch, and padding is part of it."""

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC")
"""ONNX Runtime's optimisation levels that must give what the default, ORT_ENABLE_ALL, gives."""

UNIT = 1e-5
"""Largest error of a row's norm, which is computed in fp32."""


def check_tower(
    path: Path,
    graph: Graph,
    inputs: NDArray[Any],
    reference: Rows,
    text: TextSpec | None = None,
    shorter: Rows | None = None,
) -> dict[str, Any]:
    """Run the graph at `path` on `inputs` (7 rows) and compare with the fp32 original's `reference`, float32 (7, dim).

    `text`: how texts are padded, None for a vision tower. `shorter`: what the original makes of `half(inputs)`; for a
    tower that sees its padding another length is another input. Returns what was measured. Raises RunFault with what
    failed, what was found and what was expected.
    """
    label = graph.file
    session = _session(path, label)
    rows = _run(session, graph, inputs)
    if rows.shape != reference.shape or rows.dtype != np.float32 or not np.isfinite(rows).all():
        raise RunFault(f"{label}: {rows.dtype} {rows.shape} found, finite float32 {reference.shape} expected")
    measured: dict[str, Any] = {"rows": len(rows)}
    norm = float(np.abs(np.linalg.norm(rows.astype(np.float64), axis=1) - 1).max())
    _least(label, "error of a row's norm", norm, UNIT, largest=True)
    cosines = cosine(rows, reference)
    measured["cosine_min"] = _least(
        label,
        f"cosine of row {int(cosines.argmin())} with the PyTorch original",
        cosines.min(),
        COSINE[graph.precision],
    )
    measured["centred_cosine_min"] = _least(
        label,
        "cosine with the PyTorch original, mean taken off",
        cosine(rows - reference.mean(0), reference - reference.mean(0)).min(),
        CENTRED[graph.precision],
    )
    measured["max_abs_diff"] = _rounded(np.abs(rows - reference).max())
    limit = SAME_GRAPH[graph.precision]
    parts = np.concatenate([_run(session, graph, part) for part in _cut(inputs)])
    measured["batches_cosine_min"] = _least(
        label, f"cosine of rows in batches of {BATCHES} with a batch of {len(rows)}", cosine(parts, rows).min(), limit
    )
    if text is not None and text.lengths == "any":
        alone = np.concatenate([_run(session, graph, _own_length(row, text)) for row in inputs])
        measured["lengths_cosine_min"] = _least(
            label, "cosine of a text at its own length with the same padded", cosine(alone, rows).min(), limit
        )
    if shorter is not None:
        measured["half_cosine_min"] = _least(
            label,
            "cosine with the PyTorch original at half of the length",
            cosine(_run(session, graph, half(inputs)), shorter).min(),
            COSINE[graph.precision],
        )
    few = _run(session, graph, inputs[:2])
    del session  # one at a time: each has its own copy of the weights
    for level in LEVELS:
        rows = _run(_session(path, label, level), graph, inputs[:2])
        least = _least(label, f"cosine at {level} with the optimised graph", cosine(rows, few).min(), limit)
        measured["levels_cosine_min"] = min(least, measured.get("levels_cosine_min", least))
    return measured


def half(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first half of the tokens of every text: int64 (n, length) -> (n, length // 2)."""
    return np.ascontiguousarray(ids[:, : ids.shape[1] // 2])


def limits(precision: Precision) -> dict[str, float]:
    """The limits that `check_tower` holds a graph of `precision` to, for the record."""
    return {"cosine": COSINE[precision], "centred_cosine": CENTRED[precision], "same_graph": SAME_GRAPH[precision]}


def _session(path: Path, label: str, level: str = "ORT_ENABLE_ALL") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own exceptions have no base of their own
        raise RunFault(f"{label}: ONNX Runtime can't load it: {error}") from error


def _run(session: ort.InferenceSession, graph: Graph, inputs: NDArray[Any]) -> Rows:
    try:
        return session.run([graph.outputs[0].name], {graph.inputs[0].name: inputs})[0]
    except Exception as error:
        raise RunFault(f"{graph.file}: can't run on {inputs.dtype} {inputs.shape}: {error}") from error


def _cut(inputs: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(inputs, np.cumsum(BATCHES)[:-1])


def _own_length(row: NDArray[np.int64], text: TextSpec) -> NDArray[np.int64]:
    end = int(np.argmax(row == text.eot_id))
    return np.ascontiguousarray(row[None, : end + 1])


def cosine(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Row by row, in float64: (n, dim) x 2 -> (n,)."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))


def _least(label: str, what: str, found: float, limit: float, largest: bool = False) -> float:
    value = float(found)
    if not (value <= limit if largest else value >= limit):  # a NaN fails as well
        raise RunFault(f"{label}: {what}: {value:.7g} found, {'at most' if largest else 'at least'} {limit} expected")
    return _rounded(value)


def _rounded(value: float) -> float:
    """Seven decimals: what the arithmetic of another machine repeats."""
    return round(float(value), 7)
