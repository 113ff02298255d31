"""What a tower computes in: fp16 wherever that is safe on a device, fp32 where it is not, and the proof.

A CPU runs fp16 graphs in fp32 and hides whatever a device would get wrong. So the traced tower is looked at operation
by operation in fp32, over real rows, and then run in PyTorch's own fp16 kernels, which round after every operation.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from exporter.audit import largest_values, local_errors
from exporter.mixed import Mixed
from exporter.trace import LARGEST, where
from exporter.verify import cosine
from lgip_ort.errors import RunFault

HEADROOM = LARGEST / 2
"""Largest |value| that an operation in fp16 may take or give on the audited rows: others may be twice as large."""

COSINE = 0.999
"""Least cosine, in true fp16, of a row with the fp32 original's; the same after the mean of the rows is taken off."""

ROUNDING = 1e-3
"""|fp16 - fp32| / |fp32| of a weight tensor, L2 norms, above which it is lossy: rounding alone gives half of it."""

FLUSHED = 0.01
"""Largest share of a tower's weights that fp16 may turn into zeros."""


@dataclass(frozen=True)
class Half:
    """A tower's encoder in fp16. `fp32`: what stayed in fp32, each with its reason. `measured`: for the manifest.

    `activations`: operation -> largest |value| of its result in the fp32 tower.
    """

    encoder: nn.Module
    fp32: list[str]
    measured: dict[str, Any]
    activations: dict[str, float]


STAYS_FP32 = "normalisation of the embedding: the sum of squares of a long vector overflows fp16"
"""Part of every tower. Token ids are integers from end to end, in no floating-point type at all."""


def halve(traced: fx.GraphModule, rows: Tensor, reference: Tensor) -> Half:
    """Turn a traced encoder into fp16, with as few fp32 islands as its numbers allow.

    `rows`: its inputs (n, ...); `reference`: float32 (n, dim), the fp32 original's embeddings of them. What gets too
    large for fp16 becomes an island at once; where the embeddings in true fp16 are still too far from the reference,
    those operations follow that fp16 harms most. Raises RunFault where no islands help, or where the weights themselves
    do not survive.
    """
    weights = _Weights(_tensors(traced))
    largest = largest_values(traced, rows)
    nodes = {node.name: node for node in traced.graph.nodes}
    kept = weights.too_large
    islands = _overflowing(traced, largest, set(kept))
    encoder = Mixed(traced, torch.float16, islands, kept)
    cosines = _true_fp16(encoder, rows, reference)
    if not min(cosines) >= COSINE:
        islands, kept = _harmed(traced, rows, reference, islands, weights)
        encoder = Mixed(traced, torch.float16, islands, kept)
        cosines = _true_fp16(encoder, rows, reference)
    counts = weights.counts(kept)
    if counts["flushed"] > FLUSHED * counts["values"]:
        raise RunFault(
            f"{counts['flushed']:,} of {counts['values']:,} weights become zero in fp16, at most {FLUSHED:.0%} "
            "expected; use --precision fp32"
        )
    activations = {f"{where(nodes[name])} ({name})": _digits(value) for name, value in largest.items()}
    top = sorted(activations.items(), key=lambda item: -item[1])[:5]
    measured = {
        "true_fp16": {
            "rows": len(rows),
            "cosine_min": round(cosines[0], 7),
            "centred_cosine_min": round(cosines[1], 7),
        },
        "activations": {"operations": len(activations), "largest": dict(top)},
        "weights": counts,
        "islands": len(islands),
    }
    fp32 = [STAYS_FP32]
    fp32 += [f"tensor {name}: {reason}" for name, reason in kept.items()]
    fp32 += [f"{where(nodes[name])} ({name}): {reason}" for name, reason in islands.items()]
    return Half(encoder, fp32, measured, activations)


class _Weights:
    """What fp16 does to the weights of a tower.

    `too_large`: tensors that it can't hold, and why; `lossy`: those whose values lie below its range, and why. A lossy
    tensor does no harm where it is small beside what it is added to: it stays in fp32 only with an operation that does.
    """

    def __init__(self, tensors: list[tuple[str, Tensor]]) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self.too_large: dict[str, str] = {}
        self.lossy: dict[str, str] = {}
        for name, tensor in tensors:
            self._add(name, tensor)

    def _add(self, name: str, tensor: Tensor) -> None:
        low, high = (float(value) for value in tensor.aminmax())
        if not max(-low, high) <= LARGEST:
            self.too_large[name] = f"largest |value| {max(-low, high):.4g}, at most {LARGEST:g} fits fp16"
            return
        half = tensor.half().float()
        norm = float(tensor.norm())
        lost = float((half - tensor).norm()) / norm if norm else 0.0
        if lost > ROUNDING:
            self.lossy[name] = f"fp16 changes it by {lost:.2g} of its norm"
        self._counts[name] = {
            "values": tensor.numel(),
            "flushed": int(((half == 0) & (tensor != 0)).sum()),
            "subnormal": int(((half != 0) & (half.abs() < torch.finfo(torch.float16).tiny)).sum()),
        }

    def counts(self, kept: Collection[str]) -> dict[str, int]:
        """How many weights are stored in fp16, how many of them became zero, and how many lost digits for being small.

        None is clamped: a tensor that fp16 can't hold is not stored in it.
        """
        stored = [counts for name, counts in self._counts.items() if name not in kept]
        return {field: sum(counts[field] for counts in stored) for field in ("values", "flushed", "subnormal")}


def _tensors(traced: fx.GraphModule) -> list[tuple[str, Tensor]]:
    found = [*traced.named_parameters(), *traced.named_buffers()]
    return [(name, t.detach()) for name, t in found if t.is_floating_point() and t.numel()]


def _overflowing(traced: fx.GraphModule, largest: dict[str, float], kept: set[str]) -> dict[str, str]:
    """Node name -> reason, of the operations that take or give what fp16 has no room for."""
    islands = {}
    for node in traced.graph.nodes:
        if node.op != "call_function" or node.name not in largest:
            continue
        value = largest[node.name]
        taken = max((largest.get(n.name, 0.0) for n in node.all_input_nodes), default=0.0)
        if not max(value, taken) <= HEADROOM:
            what = f"gives |value| {value:.4g}" if not value <= HEADROOM else f"takes |value| {taken:.4g}"
            islands[node.name] = f"{what}, more than half of what fp16 holds"
        elif any(n.op == "get_attr" and str(n.target) in kept for n in node.all_input_nodes):
            islands[node.name] = "takes a tensor that stayed in fp32"
    return islands


def _harmed(
    traced: fx.GraphModule, rows: Tensor, reference: Tensor, islands: dict[str, str], weights: _Weights
) -> tuple[dict[str, str], dict[str, str]]:
    """`islands`, and as many of the operations that fp16 harms most as bring the embeddings back; and their tensors."""
    errors = {name: error for name, error in local_errors(traced, rows).items() if name not in islands and error > 0}
    worst = sorted(errors, key=lambda name: -errors[name])
    best, count = 0.0, 1
    while count < 2 * len(worst):
        chosen = worst[:count]
        found = islands | {name: f"fp16 changes its result by {errors[name]:.2g} of its norm" for name in chosen}
        used = {str(n.target) for node in traced.graph.nodes if node.name in found for n in node.all_input_nodes}
        kept = weights.too_large | {name: reason for name, reason in weights.lossy.items() if name in used}
        least = min(_true_fp16(Mixed(traced, torch.float16, found, kept), rows, reference))
        if least >= COSINE:
            return found, kept
        best, count = max(best, least), 2 * count
    raise RunFault(
        f"true fp16: least cosine with the fp32 original {best:.6g} found, at least {COSINE} expected, even with all "
        f"{len(worst)} operations that fp16 changes in fp32; use --precision fp32"
    )


def _true_fp16(mixed: Mixed, rows: Tensor, reference: Tensor) -> tuple[float, float]:
    """Least cosine of a row with the reference's, plain and after the reference's mean is off; nan if there is one."""
    with torch.inference_mode():
        found = nn.functional.normalize(mixed(rows).double(), dim=-1).numpy()
    exact = reference.numpy()
    if not np.isfinite(found).all():
        return math.nan, math.nan
    return float(cosine(found, exact).min()), float(cosine(found - exact.mean(0), exact - exact.mean(0)).min())


def _digits(value: float) -> float:
    """Four digits: what the arithmetic of another machine repeats."""
    return float(f"{value:.4g}")
