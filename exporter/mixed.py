"""A traced encoder in one precision, but for the operations that are its islands: those compute in fp32."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx, nn

FLOATS = (torch.float16, torch.float32)


class Mixed(nn.Module):
    """Runs `traced` operation by operation; every operand is cast to what the operation computes in.

    `dtype`: what the others compute in, and what tensors are stored in whoever uses them; those in `kept` are stored in
    fp32. `islands`: names of nodes that compute in fp32. An island's result stays in fp32 until an
    operation that is none takes it, so that a large number passes from island to island unharmed. `traced` is left as
    it is; in fp32 its tensors are shared.
    """

    def __init__(
        self,
        traced: fx.GraphModule,
        dtype: torch.dtype = torch.float16,
        islands: Collection[str] = (),
        kept: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._graph, self._dtype, self._islands = traced.graph, dtype, frozenset(islands)
        tensors = [*traced.named_parameters(remove_duplicate=False), *traced.named_buffers(remove_duplicate=False)]
        for name, tensor in tensors:
            tensor = tensor.detach()
            _put(self, name, tensor.to(dtype) if tensor.dtype == torch.float32 and name not in kept else tensor)

    def forward(self, inputs: Tensor) -> Tensor:
        return _Cast(self, self._graph, self._dtype, self._islands).run(inputs)


class _Cast(fx.Interpreter):
    def __init__(self, module: Mixed, graph: fx.Graph, dtype: torch.dtype, islands: Collection[str]) -> None:
        super().__init__(module, garbage_collect_values=True, graph=graph)
        self.dtype, self.islands = dtype, islands

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        dtype = torch.float32 if n.name in self.islands else self.dtype
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return call(n, args, kwargs, dtype)


def call(node: fx.Node, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """The result of a node's operation computed in `dtype`: every floating-point operand and result is cast to it."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(dtype) if value.dtype in FLOATS and value.dtype != dtype else value
        return dtype if value in FLOATS else value

    args, kwargs = fx.node.map_aggregate(args, cast), fx.node.map_aggregate(kwargs, cast)
    assert callable(node.target)
    return fx.node.map_aggregate(node.target(*args, **kwargs), cast)


def _put(root: nn.Module, name: str, tensor: Tensor) -> None:
    """Set a buffer by its dotted name, making the modules on the way: names in the graph file are the model's own."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    root.register_buffer(last, tensor)
