from __future__ import annotations

import ctypes

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from toy import TEXT, VISION, save_graph, weights

from lgip_ort.errors import UsageFault
from lgip_ort.provider import PROVIDERS, choose, cuda_problem
from lgip_ort.session import Session

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
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(ctypes, "CDLL", without(missing))
    with pytest.raises(UsageFault, match=f"CUDAExecutionProvider is not available: .*{message}"):
        choose("cuda")
    assert choose("auto") is CPU


def test_auto_takes_cuda_where_it_works(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
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


@pytest.mark.skipif(cuda_problem() is None, reason="CUDA works here")
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_fallback_to_another_provider_is_refused(toy):
    with pytest.raises(UsageFault, match=rf"{TEXT}: .*CUDAExecutionProvider"):
        Session(toy / TEXT, PROVIDERS["cuda"])


def test_another_active_provider_is_refused(monkeypatch, toy):
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda self: ["OtherExecutionProvider"])
    with pytest.raises(UsageFault, match="CPUExecutionProvider was asked for, OtherExecutionProvider is active"):
        Session(toy / TEXT, CPU)


def test_batches_of_other_sizes(toy):
    """An output that stays bound with the shape of the first batch fails, or repeats rows."""
    session = Session(toy / TEXT, CPU)
    ids = np.random.default_rng(0).integers(3, 40, (5, 6))
    expected = weights(toy / TEXT)["table"][ids].sum(1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    first = session(ids[:2])
    kept = first.copy()
    for rows in (slice(2, 4), slice(4, 5), slice(0, 5), slice(0, 2)):
        found = session(ids[rows])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[rows], atol=1e-6)
    assert (first == kept).all()  # a later batch does not write into an earlier result


def test_sequences_of_other_lengths(toy):
    session = Session(toy / TEXT, CPU)
    short, long = (session(np.array([[5, 6, *[0] * n]])) for n in (1, 9))
    np.testing.assert_allclose(short, long, atol=1e-6)


def test_pinned_dimension(toy):
    """One length is taken and gives the same vectors; any other is an error that says so."""
    free, session = Session(toy / TEXT, CPU), Session(toy / TEXT, CPU, {"sequence": 6})
    assert (free.shape, session.shape) == (["batch", "sequence"], ["batch", 6])
    for n in (1, 4):
        ids = np.random.default_rng(n).integers(3, 40, (n, 6))
        np.testing.assert_allclose(session(ids), free(ids), atol=1e-6)
    with pytest.raises(ValueError, match=r"input 'input_ids': \[2, 5\] found, \['batch', 6\] expected"):
        session(np.ones((2, 5), np.int64))


def test_pinned_dimension_that_is_not_there(toy):
    with pytest.raises(UsageFault, match=rf"{TEXT}: input 'input_ids': .*'sequence'\] found, a dimension 'length' exp"):
        Session(toy / TEXT, CPU, {"length": 6})


@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (2, 192), (2, 3, 8, 8, 1)])
def test_shape_of_the_input(toy, shape):
    message = rf"input 'pixel_values': \{list(shape)} found, \['batch', 3, 8, 8\] expected"
    with pytest.raises(ValueError, match=message):
        Session(toy / VISION, CPU)(np.zeros(shape, np.float32))


def test_input_that_is_not_contiguous(toy):
    session = Session(toy / VISION, CPU)
    pixels = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32).transpose(0, 3, 1, 2)
    assert (session(pixels) == session(pixels.copy())).all()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.FLOAT, np.float32),
        (TensorProto.INT32, np.int32),
        (TensorProto.INT64, np.int64),
    ],
)
def test_dtype_of_the_input(tmp_path, kind, dtype):
    path = tmp_path / "x.onnx"
    cast = helper.make_node("Cast", ["pixels"], ["out"], to=TensorProto.FLOAT)
    save_graph(path, [cast], [("pixels", kind, ["n", 4])], [("out", TensorProto.FLOAT, ["n", 4])])
    session = Session(path, CPU)
    values = np.array([[1, 2, 3, 4]])
    assert session(values.astype(dtype)).tolist() == [[1, 2, 3, 4]]
    other = np.float32 if dtype != np.float32 else np.float64
    with pytest.raises(TypeError, match=f"input 'pixels': {np.dtype(other)} found, {np.dtype(dtype)} expected"):
        session(values.astype(other))


IDS = ("ids", TensorProto.INT64, ["n", 4])
OUT = ("out", TensorProto.FLOAT, ["n", 4])
CAST = helper.make_node("Cast", ["ids"], ["out"], to=TensorProto.FLOAT)


@pytest.mark.parametrize(
    ("node", "inputs", "outputs", "message"),
    [
        (CAST, [IDS, ("mask", TensorProto.INT64, ["n", 4])], [OUT], "inputs ids, mask found, one expected"),
        (CAST, [("ids", TensorProto.DOUBLE, ["n", 4])], [OUT], r"input 'ids': tensor\(double\) found"),
        (CAST, [("ids", TensorProto.INT64, ["n", "d"])], [("out", TensorProto.FLOAT, ["n", "d"])], r"output 'out': tensor\(float\) \['n', 'd'\] found"),
        (
            helper.make_node("Cast", ["ids"], ["out"], to=TensorProto.FLOAT16),
            [IDS],
            [("out", TensorProto.FLOAT16, ["n", 4])],
            r"output 'out': tensor\(float16\)",
        ),
        (helper.make_node("Split", ["ids"], ["a", "b"], axis=1, num_outputs=2), [IDS],
         [("a", TensorProto.INT64, ["n", 2]), ("b", TensorProto.INT64, ["n", 2])], "outputs a, b found, one expected"),
    ],
)  # fmt: skip
def test_graph_of_another_form(tmp_path, node, inputs, outputs, message):
    path = tmp_path / "x.onnx"
    save_graph(path, [node], inputs, outputs)
    with pytest.raises(UsageFault, match=message) as fault:
        Session(path, CPU)
    assert str(path) in str(fault.value)


def test_file_that_is_no_graph(tmp_path):
    (tmp_path / "x.onnx").write_bytes(b"not a graph")
    with pytest.raises(UsageFault, match=rf"{tmp_path}/x\.onnx: ONNX Runtime can't load it on CPUExecutionProvider"):
        Session(tmp_path / "x.onnx", CPU)
