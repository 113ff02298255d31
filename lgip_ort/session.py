"""An ONNX Runtime session on one provider: chosen, proven active, and run through IO binding."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from lgip_ort.errors import UsageFault, did_you_mean

ORT_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


@dataclass(frozen=True)
class Provider:
    """An execution provider: ONNX Runtime's name for it, its options, and where its tensors live."""

    key: str
    name: str
    device: str
    options: dict[str, str] = field(default_factory=dict)


PROVIDERS = {
    "cpu": Provider("cpu", "CPUExecutionProvider", "cpu"),
    "cuda": Provider(
        "cuda",
        "CUDAExecutionProvider",
        "cuda",
        # TF32 keeps 10 bits of an fp32 mantissa; an exhaustive search for convolutions costs a second a shape.
        {"device_id": "0", "use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"},
    ),
}


def choose(asked: str) -> Provider:
    """The provider for `asked`: one of PROVIDERS, or `auto`, which is CUDA where it works and else the CPU.

    Raises UsageFault for an unknown name, and for a provider that was asked for by name and can't work, saying why.
    """
    if asked == "auto":
        return PROVIDERS["cuda" if cuda_problem() is None else "cpu"]
    if asked not in PROVIDERS:
        raise UsageFault(f"unknown provider {asked!r}{did_you_mean(asked, ['auto', *PROVIDERS])}")
    if asked == "cuda" and (problem := cuda_problem()):
        raise UsageFault(f"CUDAExecutionProvider is not available: {problem}")
    return PROVIDERS[asked]


def cuda_problem() -> str | None:
    """What keeps the CUDA provider from working here, None where nothing does."""
    if PROVIDERS["cuda"].name not in ort.get_available_providers():
        return "this onnxruntime has no CUDA provider; install onnxruntime-gpu and no onnxruntime beside it"
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError:
        return f"no NVIDIA driver ({driver} can't be loaded)"
    _preload()
    if sys.platform != "win32":
        capi = Path(ort.__file__).parent / "capi"
        try:
            ctypes.CDLL(str(capi / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(capi / "libonnxruntime_providers_cuda.so"))
        except OSError as error:
            return f"{error}; pip install 'lgip-ort[cuda]' brings CUDA and cuDNN"
    return None


def _preload() -> None:
    """Load CUDA and cuDNN from their pip packages, which no system search path knows."""
    # It prints what it could not find; cuda_problem says the same in one line, naming the library.
    with contextlib.redirect_stdout(None):
        ort.preload_dlls()


class Session:
    """One graph with one input and one output, run with both bound to the provider's memory.

    `pinned`: symbolic dimensions of the input that have one value here, by name; the graph is optimised for it. `shape`
    of the input: a number where only that one is taken, a name where any is.

    Raises UsageFault where the graph can't be loaded, is of another form or lacks a dimension of `pinned`, and where
    another provider than `provider` is the active one.
    """

    def __init__(self, path: Path, provider: Provider, pinned: Mapping[str, int] | None = None) -> None:
        options = ort.SessionOptions()
        for name, value in (pinned or {}).items():
            options.add_free_dimension_override_by_name(name, value)
        options.log_severity_level = 3  # errors only: on a CPU every fp16 graph warns about the casts it gets
        providers: list[Any] = [(provider.name, provider.options)]
        try:
            self._session = ort.InferenceSession(str(path), options, providers=providers)
        except Exception as error:
            raise UsageFault(f"{path}: ONNX Runtime can't load it on {provider.name}: {error}") from error
        active = self._session.get_providers()[0]
        if active != provider.name:
            raise UsageFault(f"{path}: {provider.name} was asked for, {active} is active")
        self.provider = provider
        source, target = _ends(path, self._session)
        self.input, self.output = source.name, target.name
        self.shape: list[int | str] = source.shape
        for name, value in (pinned or {}).items():
            if value not in self.shape:
                raise UsageFault(f"{path}: input {self.input!r}: {self.shape} found, a dimension {name!r} expected")
        self.dtype = ORT_TYPES[source.type]
        self.dim: int = target.shape[1]
        self._binding = self._session.io_binding()
        self._target: ort.OrtValue | None = None

    def options(self) -> dict[str, str]:
        """The provider's options as ONNX Runtime took them."""
        return dict(self._session.get_provider_options().get(self.provider.name, {}))

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
        device = self.provider.device
        source = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device)
        if self._target is None or self._target.shape()[0] != len(array):
            # A bound output keeps the shape it was bound with: another batch size needs another buffer.
            self._target = ort.OrtValue.ortvalue_from_shape_and_type([len(array), self.dim], np.float32, device)
            self._binding.clear_binding_outputs()
            self._binding.bind_ortvalue_output(self.output, self._target)
        self._binding.bind_ortvalue_input(self.input, source)
        self._session.run_with_iobinding(self._binding)
        return np.array(self._target.numpy(), np.float32, copy=True)  # the buffer is used again by the next batch


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
