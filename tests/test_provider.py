from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from lgip_ort import engine as engine_module
from lgip_ort import provider as provider_module
from lgip_ort.engine import executed
from lgip_ort.errors import UsageFault
from lgip_ort.provider import PROBE, PROVIDERS, arithmetic, choose

CPU = PROVIDERS["cpu"]


def without(library: str):
    """ctypes.CDLL on a machine that lacks the libraries with this in their name and has all others."""

    def load(name, *args, **kwargs):
        if library in name:
            raise OSError(f"{name}: cannot open shared object file")

    return load


@pytest.mark.parametrize(
    ("providers", "missing", "message"),
    [
        (["CPUExecutionProvider"], "nothing", "no CUDAExecutionProvider; install onnxruntime-gpu"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda.", "no NVIDIA driver"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], "providers_cuda", r"providers_cuda.*lgip-ort\[cuda\]"),
    ],
)
def test_cuda_that_can_not_work(monkeypatch, providers, missing, message):
    monkeypatch.setattr(provider_module, "BUILT_IN", providers)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(ctypes, "CDLL", without(missing))
    with pytest.raises(UsageFault, match=f"CUDAExecutionProvider is not available: .*{message}"):
        choose("cuda")
    assert choose("auto") is CPU


@pytest.mark.parametrize(
    ("providers", "missing", "message"),
    [
        (["CUDAExecutionProvider"], "nothing", "this onnxruntime has no TensorrtExecutionProvider"),
        (["TensorrtExecutionProvider"], "cuda.", "no NVIDIA driver"),
        (["TensorrtExecutionProvider"], "providers_tensorrt", r"providers_tensorrt.* brings CUDA, but not TensorRT"),
    ],
)
def test_tensorrt_that_can_not_work(monkeypatch, providers, missing, message):
    monkeypatch.setattr(provider_module, "BUILT_IN", providers)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(ctypes, "CDLL", without(missing))
    with pytest.raises(UsageFault, match=f"TensorrtExecutionProvider is not available: .*{message}"):
        choose("tensorrt")


def test_auto_takes_cuda_where_it_works(monkeypatch):
    monkeypatch.setattr(provider_module, "BUILT_IN", ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(ctypes, "CDLL", without("nothing"))
    assert choose("auto") is choose("cuda") is PROVIDERS["cuda"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("cdua", "unknown provider 'cdua'; did you mean 'cuda'?"),
        ("xyz", "known: auto, cpu, openvino, cuda, tensorrt"),
        ("CPU", "'CPU'"),
    ],
)
def test_unknown_provider(asked, message):
    with pytest.raises(UsageFault) as fault:
        choose(asked)
    assert message in str(fault.value)


def test_the_probe_is_what_it_says():
    eye = numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 16])] for name in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    graph = helper.make_graph(nodes, "probe", *ends, [eye])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    assert model.SerializeToString(deterministic=True) == PROBE.read_bytes()


def test_what_a_cpu_computes_in():
    assert arithmetic(CPU) == "fp32"


@pytest.mark.parametrize(("bits", "expected"), [(7, "bf16"), (10, "tf32/fp16"), (23, "fp32"), (12, "12 bits")])
def test_arithmetic_of_a_provider_that_rounds(monkeypatch, bits, expected):
    """A session that keeps so many bits behind the point, as a tensor core does."""

    class Rounding:
        def get_inputs(self):
            return [type("Input", (), {"shape": [16, 16]})]

        def run(self, _, feeds):
            step = np.float32(2.0**-bits)
            return [np.float32(1) + np.round((feeds["x"] - 1) / step) * step]

    monkeypatch.setattr(provider_module.Provider, "session", lambda *_: Rounding())
    assert arithmetic(CPU) == expected


@pytest.mark.parametrize(
    ("key", "precision", "measured", "expected"),
    [
        ("cpu", "fp16", "fp32", "fp32 (cast)"),
        ("cpu", "fp32", "fp32", "fp32"),
        ("cpu", "int8", "fp32", "int8 (dynamic)"),
        ("openvino", "fp16", "bf16", "bf16"),
        ("openvino", "fp32", "bf16", "bf16"),
        ("openvino", "fp16", "fp32", "fp32 (cast)"),
        ("cuda", "fp16", "fp32", "fp16"),
        ("cuda", "fp32", "fp32", "fp32"),
        ("cuda", "fp32", "tf32/fp16", "tf32/fp16"),
    ],
)
def test_executed_precision(monkeypatch, key, precision, measured, expected):
    monkeypatch.setattr(engine_module, "arithmetic", lambda _: measured)
    assert executed(PROVIDERS[key], precision) == expected


def test_openvino_that_can_not_work(monkeypatch):
    monkeypatch.setattr(provider_module, "BUILT_IN", ["CPUExecutionProvider"])
    monkeypatch.setattr(provider_module, "plugin_devices", list)
    monkeypatch.setattr(provider_module, "find_spec", lambda name: None)
    with pytest.raises(
        UsageFault, match=r"OpenVINOExecutionProvider is not available: pip install 'lgip-ort\[openvino\]'"
    ):
        choose("openvino")
    monkeypatch.setattr(provider_module, "find_spec", lambda name: object())
    with pytest.raises(UsageFault, match="finds no device of its own here, which is an Intel CPU"):
        choose("openvino")


@pytest.mark.parametrize("built_in", [True, False])
def test_openvino_built_in_or_plugged_in(monkeypatch, built_in):
    """The provider of a wheel takes options by name; the plug-in takes devices, and none of these options."""
    seen = []

    class Made:
        def __init__(self, path, options, providers=None):
            seen.append(providers)

        def get_providers(self):
            return ["OpenVINOExecutionProvider", "CPUExecutionProvider"]

    class Options:
        def add_provider_for_devices(self, devices, options):
            seen.append((devices, options))

    names = ["OpenVINOExecutionProvider"] if built_in else ["CPUExecutionProvider"]
    monkeypatch.setattr(provider_module, "BUILT_IN", names)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Made)
    monkeypatch.setattr(provider_module, "plugin_devices", lambda: ["cpu 0"])
    openvino = choose("openvino")
    openvino.session(Path("x.onnx"), Options())
    if built_in:
        assert seen == [[("OpenVINOExecutionProvider", openvino.options)]]
        assert openvino.given() == openvino.options != {}
    else:
        assert seen == [(["cpu 0"], {}), None]
        assert openvino.given() == {}
