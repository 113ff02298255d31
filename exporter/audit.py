"""What the operations of a traced encoder do to numbers: how large they get, and what fp16 would make of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from exporter.mixed import call
from exporter.towers import MASKED

See = Callable[[fx.Node, Any, Any, Any], None]


class _Watch(fx.Interpreter):
    """Runs in fp32 and calls `see(node, args, kwargs, result)` after every operation."""

    def __init__(self, traced: fx.GraphModule, see: See) -> None:
        super().__init__(traced, garbage_collect_values=True)
        self.see = see

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self.see(n, args, kwargs, result)
        return result


def largest_values(traced: fx.GraphModule, rows: Tensor) -> dict[str, float]:
    """Node name -> largest |value| of its result over `rows`, in fp32, in the order of the graph."""
    found: dict[str, float] = {}
    masked = masked_nodes(traced)

    def see(node: fx.Node, args: Any, kwargs: Any, result: Any) -> None:
        for tensor in floats(result):
            # What is masked is meant to vanish: how far below everything else it lies says nothing.
            seen = tensor[tensor > MASKED / 2] if node in masked else tensor
            if seen.numel():
                low, high = seen.aminmax()
                found[node.name] = max(found.get(node.name, 0.0), float(high), -float(low))

    with torch.inference_mode():
        _Watch(traced, see).run(rows)
    return found


def local_errors(traced: fx.GraphModule, rows: Tensor) -> dict[str, float]:
    """Node name -> relative error of its result when it alone is computed in fp16, from the right operands.

    |fp16 - fp32| / |fp32|, both L2 norms over the result; inf where fp16 gives something that is not finite.
    """
    found: dict[str, float] = {}

    def see(node: fx.Node, args: Any, kwargs: Any, result: Any) -> None:
        if exact := floats(result):
            rounded = floats(call(node, args, kwargs, torch.float16))
            found[node.name] = max(_distance(a, b) for a, b in zip(exact, rounded, strict=True))

    with torch.inference_mode():
        _Watch(traced, see).run(rows)
    return found


def masked_nodes(traced: fx.GraphModule) -> set[fx.Node]:
    """The nodes whose results hold MASKED: a mask, whatever it is added to, and so on as far as the softmax."""
    found: set[fx.Node] = set()
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(traced)
            source = tensor.is_floating_point() and bool((tensor == MASKED).any())
        else:
            scalars: list[Any] = []
            fx.node.map_aggregate((node.args, tuple(node.kwargs.values())), lambda a, to=scalars: to.append(a))
            source = MASKED in [value for value in scalars if isinstance(value, float)]
        if source or (found.intersection(node.all_input_nodes) and "softmax" not in str(node.target)):
            found.add(node)
    return found


def floats(result: Any) -> list[Tensor]:
    """The floating-point tensors in what an operation returned, those without elements left out."""
    found: list[Tensor] = []

    def add(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            found.append(value)
        return value

    fx.node.map_aggregate(result, add)
    return found


def _distance(exact: Tensor, rounded: Tensor) -> float:
    if not bool(rounded.isfinite().all()):
        return float("inf")
    norm = float(exact.double().norm())
    return float((exact.double() - rounded.double()).norm()) / norm if norm else 0.0
