"""An ONNX Runtime session on one provider: proven active, run through IO binding, its buffers used again."""

from __future__ import annotations

import json
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from lgip_ort.errors import UsageFault
from lgip_ort.provider import Provider

ORT_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}

SHAPES = 128
"""Shapes whose buffers are kept: more than a text tower has lengths."""

SMALLEST = 1024
"""Bytes of a node's result from which on it counts as computing: what is smaller does arithmetic on shapes."""


@dataclass(frozen=True)
class Placement:
    """Where the nodes of a graph ran: the share of the provider that was asked for, by number and by time."""

    nodes: float
    time: float


@dataclass(frozen=True)
class _Buffers:
    """A binding with an input and an output of one shape, in the provider's memory."""

    binding: Any
    source: ort.OrtValue
    target: ort.OrtValue


class Session:
    """One graph with one input and one output, run with both bound to the provider's memory.

    `pinned`: symbolic dimensions of the input that have one value here, by name; the graph is optimised for it. `shape`
    of the input: a number where only that one is taken, a name where any is. `profiled`: record the runs until
    `placement` is called. `threads`: that it computes with on a CPU, None for all cores.

    Raises UsageFault where the graph can't be loaded, is of another form or lacks a dimension of `pinned`, and where
    another provider than `provider` is the active one.
    """

    def __init__(
        self,
        path: Path,
        provider: Provider,
        pinned: Mapping[str, int] | None = None,
        profiled: bool = False,
        threads: int | None = None,
    ) -> None:
        options = ort.SessionOptions()
        for name, value in (pinned or {}).items():
            options.add_free_dimension_override_by_name(name, value)
        options.log_severity_level = 3  # errors only: on a CPU every fp16 graph warns about the casts it gets
        if threads is not None:
            options.intra_op_num_threads = threads
        if profiled:
            options.enable_profiling = True
            # A folder of its own: the name gets the second added to it, which two sessions may share.
            self._profile = tempfile.TemporaryDirectory(prefix="lgip-ort-")
            options.profile_file_prefix = str(Path(self._profile.name) / "profile")
        try:
            self._session = provider.session(path, options)
        except UsageFault:
            raise
        except Exception as error:
            raise UsageFault(f"{path}: ONNX Runtime can't load it on {provider.name}: {error}") from error
        self.provider = provider
        source, target = _ends(path, self._session)
        self.input, self.output = source.name, target.name
        self.shape: list[int | str] = source.shape
        for name, value in (pinned or {}).items():
            if value not in self.shape:
                raise UsageFault(f"{path}: input {self.input!r}: {self.shape} found, a dimension {name!r} expected")
        self.dtype = ORT_TYPES[source.type]
        self.dim: int = target.shape[1]
        self._buffers: OrderedDict[tuple[int, ...], _Buffers] = OrderedDict()

    def options(self) -> dict[str, str]:
        """The provider's options: those that were given, and as ONNX Runtime took them."""
        return self.provider.given() | dict(self._session.get_provider_options().get(self.provider.name, {}))

    def __call__(self, array: NDArray[Any]) -> NDArray[np.float32]:
        """Run the graph on `array` (n, ...) -> float32 (n, dim), a copy of its own.

        Raises TypeError where the dtype of `array` is not the graph's, ValueError where its shape is not; both name the
        input.
        """
        if array.dtype != self.dtype:
            raise TypeError(f"input {self.input!r}: {array.dtype} found, {np.dtype(self.dtype)} expected")
        fits = [n == size or not isinstance(n, int) for n, size in zip(self.shape, array.shape, strict=False)]
        if array.ndim != len(self.shape) or not all(fits):
            raise ValueError(f"input {self.input!r}: {list(array.shape)} found, {self.shape} expected")
        buffers = self._buffers_of(array.shape)
        buffers.source.update_inplace(np.ascontiguousarray(array))
        # Bound again: a plug-in whose memory is not the CPU's is given a copy, made when the input is bound.
        buffers.binding.bind_ortvalue_input(self.input, buffers.source)
        self._session.run_with_iobinding(buffers.binding)
        return np.array(buffers.target.numpy(), np.float32, copy=True)  # the buffer is used again by the next batch

    def placement(self) -> Placement:
        """Where the nodes of all runs until now ran, by their profile; nothing is recorded from here on."""
        path = Path(self._session.end_profiling())
        with self._profile:
            return _placement(json.loads(path.read_text(encoding="utf-8")), self.provider.name)

    def _buffers_of(self, shape: tuple[int, ...]) -> _Buffers:
        """The buffers for inputs of `shape`. A bound output keeps the shape it was bound with: each has its own."""
        if (found := self._buffers.get(shape)) is not None:
            self._buffers.move_to_end(shape)
            return found
        device = self.provider.device
        source = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), self.dtype, device)
        target = ort.OrtValue.ortvalue_from_shape_and_type([shape[0], self.dim], np.float32, device)
        binding = self._session.io_binding()
        binding.bind_ortvalue_output(self.output, target)
        made = self._buffers[shape] = _Buffers(binding, source, target)
        if len(self._buffers) > SHAPES:
            self._buffers.popitem(last=False)
        return made


def _placement(events: list[dict[str, Any]], provider: str) -> Placement:
    """The share of `provider` among the nodes of a profile that compute."""
    found = [
        (event["args"]["provider"] == provider, event["dur"])
        for event in events
        if event.get("cat") == "Node"
        and event["name"].endswith("_kernel_time")
        and event["args"].get("provider")
        and int(event["args"].get("output_size") or SMALLEST) >= SMALLEST
    ]
    there = [spent for on_it, spent in found if on_it]
    total = sum(spent for _, spent in found)
    if not found:
        return Placement(0.0, 0.0)
    return Placement(round(len(there) / len(found), 4), round(sum(there) / total, 4) if total else 1.0)


def _ends(path: Path, session: ort.InferenceSession) -> tuple[Any, Any]:
    """The only input and the only output of a graph. Raises UsageFault where they are not what Session can bind."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    for what, found in (("input", inputs), ("output", outputs)):
        if len(found) != 1:
            raise UsageFault(f"{path}: {what}s {', '.join(node.name for node in found)} found, one expected")
    (source,), (target,) = inputs, outputs
    if source.type not in ORT_TYPES:
        raise UsageFault(f"{path}: input {source.name!r}: {source.type} found, one of {', '.join(ORT_TYPES)} expected")
    if target.type != "tensor(float)" or len(target.shape) != 2 or not isinstance(target.shape[1], int):
        raise UsageFault(
            f"{path}: output {target.name!r}: {target.type} {target.shape} found, tensor(float) (batch, dim) expected"
        )
    return source, target
