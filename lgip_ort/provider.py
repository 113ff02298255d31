"""Execution providers: what there is, what each needs, and whether it works on this machine."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from lgip_ort.errors import UsageFault, did_you_mean

PLUGIN = "onnxruntime_ep_openvino"
"""OpenVINO as a plug-in: a package beside the plain ONNX Runtime, told by its devices instead of by its name."""

BUILT_IN = tuple(ort.get_available_providers())
"""Asked before a plug-in is registered: then ONNX Runtime may list it, too, and run on the CPU where it is named."""

PROBE = Path(__file__).with_name("probe.onnx")
"""Two products with the identity, float32 (16, 16): what comes out is what the arithmetic kept of what went in."""

MANTISSA = {7: "bf16", 10: "tf32/fp16", 23: "fp32"}
"""Bits behind the point that a product keeps -> what it was computed in."""


BATCH = {"cpu": 16, "cuda": 64}
"""Images that go through a session together where nobody says how many, by device: on a CPU more leave its cache."""


@dataclass(frozen=True)
class Provider:
    """An execution provider.

    name: ONNX Runtime's; device: where its tensors live; options: what a session is given; problem: what keeps it from
    working here, None where nothing does; computes_fp16: whether fp16 graphs run in fp16 and not in what `arithmetic`
    finds; length_step: padded lengths of texts are multiples of this, where a new shape costs more than padding does.
    """

    key: str
    name: str
    device: str
    problem: Callable[[], str | None]
    options: dict[str, str] = field(default_factory=dict)
    computes_fp16: bool = False
    length_step: int = 1

    def session(self, graph: Path, options: ort.SessionOptions) -> ort.InferenceSession:
        """A session on this provider, the CPU provider behind it for what it has no kernel for.

        Raises whatever ONNX Runtime does where the graph can't be loaded, UsageFault where another provider is active.
        """
        if self._plugged_in():
            options.add_provider_for_devices(plugin_devices(), {})
            session = ort.InferenceSession(str(graph), options)
        else:
            # Where a provider can't be made ONNX Runtime says so on stdout and goes on with another: found below.
            with contextlib.redirect_stdout(None):
                session = ort.InferenceSession(str(graph), options, providers=[(self.name, self.given())])
        active = session.get_providers()[0]
        if active != self.name:
            raise UsageFault(f"{graph}: {self.name} was asked for, {active} is active")
        return session

    def given(self) -> dict[str, str]:
        """The options that a session is made with; a plug-in has options of its own and is given none."""
        return {} if self._plugged_in() else dict(self.options)

    def _plugged_in(self) -> bool:
        return self.name not in BUILT_IN


def choose(asked: str) -> Provider:
    """The provider for `asked`: one of PROVIDERS, or `auto`, which is CUDA where it works and else the CPU.

    Raises UsageFault for an unknown name, and for a provider that was asked for by name and can't work, saying why.
    """
    if asked == "auto":
        return PROVIDERS["cuda" if cuda_problem() is None else "cpu"]
    if asked not in PROVIDERS:
        raise UsageFault(f"unknown provider {asked!r}{did_you_mean(asked, ['auto', *PROVIDERS])}")
    provider = PROVIDERS[asked]
    if problem := provider.problem():
        raise UsageFault(f"{provider.name} is not available: {problem}")
    return provider


def arithmetic(provider: Provider) -> str:
    """What `provider` multiplies fp32 matrices in, measured: fp32, bf16, tf32 or fp16, or how many bits it kept.

    The numbers 1 + 2^-k go through two products with the identity; those that come out above 1 were kept.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = provider.session(PROBE, options)
    n = session.get_inputs()[0].shape[0]
    kept = 0
    for first in (1, 1 + n):
        exponents = np.arange(first, first + n)
        numbers = np.broadcast_to((1 + 2.0**-exponents).astype(np.float32), (n, n))
        (result,) = session.run(None, {"x": np.ascontiguousarray(numbers)})
        kept += int((result[0] > 1).sum())
    return MANTISSA.get(kept, f"{kept} bits")


def cuda_problem() -> str | None:
    """What keeps the CUDA provider from working here, None where nothing does."""
    return _gpu_problem("CUDAExecutionProvider", "libonnxruntime_providers_cuda.so", "CUDA and cuDNN")


def tensorrt_problem() -> str | None:
    """What keeps the TensorRT provider from working here, None where nothing does."""
    return _gpu_problem("TensorrtExecutionProvider", "libonnxruntime_providers_tensorrt.so", "CUDA, but not TensorRT")


def openvino_problem() -> str | None:
    """What keeps the OpenVINO provider from working here, None where nothing does."""
    if PROVIDERS["openvino"].name in BUILT_IN or plugin_devices():
        return None
    if find_spec(PLUGIN) is None:
        return "pip install 'lgip-ort[openvino]' brings its plug-in"
    return (
        f"{PLUGIN} finds no device of its own here, which is an Intel CPU; "
        "the package onnxruntime-openvino, instead of onnxruntime-gpu, runs on others, too"
    )


@cache
def plugin_devices() -> list[Any]:
    """The CPU devices of the OpenVINO plug-in; empty where it is not installed or finds none."""
    if find_spec(PLUGIN) is None or not hasattr(ort, "register_execution_provider_library"):
        return []
    import onnxruntime_ep_openvino as plugin

    ort.register_execution_provider_library(PLUGIN, plugin.get_library_path())
    name = plugin.get_ep_name()
    return [d for d in ort.get_ep_devices() if d.ep_name == name and d.ep_metadata.get("ov_device") == "CPU"]


def _gpu_problem(name: str, library: str, brings: str) -> str | None:
    if name not in BUILT_IN:
        return f"this onnxruntime has no {name}; install onnxruntime-gpu and no onnxruntime beside it"
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError:
        return f"no NVIDIA driver ({driver} can't be loaded)"
    # CUDA and cuDNN lie in pip packages, which no system search path knows. What could not be found is printed by
    # ONNX Runtime; the line below says the same and names the library.
    with contextlib.redirect_stdout(None):
        ort.preload_dlls()
    if sys.platform != "win32":
        capi = Path(ort.__file__).parent / "capi"
        try:
            ctypes.CDLL(str(capi / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(capi / library))
        except OSError as error:
            return f"{error}; pip install 'lgip-ort[cuda]' brings {brings}"
    return None


CUDA = {
    "device_id": "0",
    # TF32 keeps 10 bits of an fp32 mantissa.
    "use_tf32": "0",
    # An exhaustive search for convolutions costs a second a shape.
    "cudnn_conv_algo_search": "HEURISTIC",
}

PROVIDERS = {
    provider.key: provider
    for provider in (
        Provider("cpu", "CPUExecutionProvider", "cpu", lambda: None),
        Provider(
            "openvino",
            "OpenVINOExecutionProvider",
            "cpu",
            openvino_problem,
            # The plug-in computes in bf16 where the CPU has it; the older provider does when it is told to.
            {"device_type": "CPU", "load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}'},
        ),
        Provider("cuda", "CUDAExecutionProvider", "cuda", cuda_problem, CUDA, computes_fp16=True, length_step=8),
        Provider(
            "tensorrt",
            "TensorrtExecutionProvider",
            "cuda",
            tensorrt_problem,
            {"device_id": "0"},
            computes_fp16=True,
            length_step=8,
        ),
    )
}
