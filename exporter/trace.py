"""A tower's encoder as a flat list of operations, so that each can be looked at and each has a precision of its own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from exporter.towers import MASKED
from lgip_ort.errors import UsageFault

LARGEST = 65_504.0
"""Largest finite fp16 number."""


def trace(encoder: nn.Module, example: Tensor, dynamic: dict[int, Any]) -> fx.GraphModule:
    """The operations of `encoder` on an input like `example`, with the dimensions of `dynamic` symbolic.

    The graph module holds the very tensors of `encoder`. Attention is written as its products and its softmax, and what
    masks a score is finite in fp16: both are what a device computes, and what has to be looked at.
    """
    with plain_attention(), torch.no_grad():
        program = torch.export.export(
            encoder.eval(),
            (example,),
            dynamic_shapes=(dynamic,),
            strict=False,
            # A slice of the whole context would make the whole context a case of its own.
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    module: fx.GraphModule = program.module()
    for node in reversed(module.graph.nodes):
        if node.op == "call_module" or "assert" in str(node.target):  # about dtypes and shapes of the example
            module.graph.erase_node(node)
        else:
            node.args = fx.node.map_aggregate(node.args, _finite)
            node.kwargs = fx.node.map_aggregate(node.kwargs, _finite)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_floating_point() and _is_mask(tensor):
                tensor.clamp_(min=MASKED)
            elif tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise ValueError(f"tensor {name} is not finite")
    module.recompile()
    return module


def where(node: fx.Node) -> str:
    """The operation of `node` and the module that it belongs to, by its name in the library's model."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    operation = str(node.target).removeprefix("aten.").split(".")[0]
    return f"{path.removeprefix('tower.') or 'encoder'}: {operation}"


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """While it lasts, torch's fused attention is the plain one: there is no single ONNX operator for it at our opset,
    and what it does inside can't be looked at."""
    fused = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = _attention
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = fused


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q k' / sqrt(d) + mask) v over (..., length, d), as torch documents it."""
    if dropout_p or is_causal or enable_gqa:
        raise UsageFault("attention with dropout, an implied mask or grouped heads found, plain attention expected")
    scores = (query * (scale or query.shape[-1] ** -0.5)) @ key.transpose(-2, -1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, MASKED)
        scores = scores + attn_mask
    return scores.softmax(dim=-1) @ value


def _finite(argument: Any) -> Any:
    """A number below what fp16 holds can only be a mask: exp() of it is 0, as it is of MASKED."""
    if isinstance(argument, float) and (argument < -LARGEST or math.isnan(argument)):
        return MASKED
    return argument


def _is_mask(tensor: Tensor) -> bool:
    """Whether a tensor holds nothing but zeros and numbers that mask."""
    return tensor.numel() > 0 and bool(((tensor == 0) | (tensor < -LARGEST)).all()) and bool((tensor < 0).any())
