from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from toy import TEXT, VISION, save_graph, weights

from lgip_ort import session as session_module
from lgip_ort.errors import UsageFault
from lgip_ort.provider import PROVIDERS, arithmetic, cuda_problem
from lgip_ort.session import Placement, Session, _placement

CPU = PROVIDERS["cpu"]


@pytest.mark.skipif(cuda_problem() is None, reason="CUDA works here")
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_fallback_to_another_provider_is_refused(toy):
    with pytest.raises(UsageFault, match=rf"{TEXT}: .*CUDAExecutionProvider"):
        Session(toy / TEXT, PROVIDERS["cuda"])


def test_another_active_provider_is_refused(monkeypatch, toy):
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda self: ["OtherExecutionProvider"])
    with pytest.raises(UsageFault, match="CPUExecutionProvider was asked for, OtherExecutionProvider is active"):
        Session(toy / TEXT, CPU)


@pytest.mark.parametrize("key", ["cpu", "openvino"])
def test_batches_of_other_sizes(toy, key):
    """An output that stays bound with the shape of the first batch fails, or repeats rows; an input that was copied when
    it was bound stays what it was then."""
    if problem := PROVIDERS[key].problem():
        pytest.skip(problem)
    tolerance = {"fp32": 1e-6, "bf16": 2e-2}[arithmetic(PROVIDERS[key])]
    session = Session(toy / TEXT, PROVIDERS[key])
    ids = np.random.default_rng(0).integers(3, 40, (5, 6))
    expected = weights(toy / TEXT)["table"][ids].sum(1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    first = session(ids[:2])
    kept = first.copy()
    for rows in (slice(2, 4), slice(4, 5), slice(0, 5), slice(0, 2)):
        found = session(ids[rows])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[rows], atol=tolerance)
    assert (first == kept).all()  # a later batch does not write into an earlier result


def test_buffers_are_kept_for_so_many_shapes(toy, monkeypatch):
    """The one that was used longest ago is made again, and gives what it gave."""
    monkeypatch.setattr(session_module, "SHAPES", 2)
    session = Session(toy / TEXT, CPU)
    ids = np.random.default_rng(0).integers(3, 40, (3, 6))
    found = [session(ids[:, :n]) for n in (2, 4)]
    kept = session._buffers[3, 2]
    found += [session(ids[:, :n]) for n in (2, 6)]
    assert list(session._buffers) == [(3, 2), (3, 6)] and session._buffers[3, 2] is kept
    again = [session(ids[:, :n]) for n in (2, 4, 2, 6)]
    for one, other in zip(found, again, strict=True):
        assert (one == other).all()


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


def event(provider, spent, size="4096", name="/MatMul_kernel_time", cat="Node"):
    return {"cat": cat, "name": name, "dur": spent, "args": {"provider": provider, "output_size": size}}


def test_placement_counts_what_computes():
    """Not the arithmetic on shapes, whose results are a few bytes, nor the fences around a node, nor the session."""
    events = [
        event("CUDA", 60),
        event("CUDA", 20),
        event("CPU", 20),
        event("CPU", 999, size="64"),
        event("CPU", 999, name="/MatMul_fence_before"),
        event("CPU", 999, cat="Session"),
        {"cat": "Node", "name": "x_kernel_time", "dur": 5, "args": {}},
    ]
    assert _placement(events, "CUDA") == Placement(nodes=0.6667, time=0.8)
    assert _placement(events, "CPU") == Placement(nodes=0.3333, time=0.2)
    assert _placement([], "CPU") == Placement(0.0, 0.0)


def test_placement_of_a_session(tmp_path, monkeypatch):
    """Two sessions of one second have a profile each, and leave none behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "x.onnx"
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    ends = [("x", TensorProto.FLOAT, ["n", 64])], [("y", TensorProto.FLOAT, ["n", 64])]
    save_graph(path, [node], *ends, w=np.eye(64, dtype=np.float32))
    sessions = [Session(path, CPU, profiled=True) for _ in range(2)]
    for session in sessions:
        session(np.ones((8, 64), np.float32))
        assert session.placement() == Placement(1.0, 1.0)
        assert session(np.ones((2, 64), np.float32)).shape == (2, 64)
    assert [file.name for file in tmp_path.iterdir()] == ["x.onnx"]


def test_number_of_threads(toy):
    ids = np.random.default_rng(0).integers(3, 40, (5, 6))
    assert (Session(toy / TEXT, CPU, threads=1)(ids) == Session(toy / TEXT, CPU)(ids)).all()
