"""Products that are timed, and products that are counted, against counts by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from toy import DIM, SIZE, TEXT, VISION, save_graph

from lgip_ort.provider import PROVIDERS
from lgip_ort.speed import roof
from lgip_ort.speed.roof import GRAPHS, flops, numpy_products, operands, ort_products
from models import zoo

FLOAT = TensorProto.FLOAT
TINY = (6, 8, 10)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_graphs_are_made_of_one_product(precision):
    """Byte for byte: this is how they were made."""
    path, dtype = GRAPHS[precision]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shapes = {"a": ["rows", "inner"], "b": ["inner", "columns"], "y": ["rows", "columns"]}
    a, b, y = (helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items())
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "roof", [a, b], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    assert path.read_bytes() == model.SerializeToString()


def test_products_multiply(monkeypatch):
    monkeypatch.setitem(roof.SHAPES, "cpu", (TINY,))
    (ours,), (theirs,) = ort_products(PROVIDERS["cpu"]), numpy_products()
    assert (ours.engine, ours.provider, ours.precision, ours.shape) == ("ort", "cpu", "fp32", TINY)
    assert (theirs.engine, theirs.provider, theirs.precision) == ("numpy", "cpu", "fp32")
    assert ours.flops == theirs.flops == 2 * 6 * 8 * 10
    a, b = operands(TINY)
    assert a.shape == (6, 8) and b.shape == (8, 10) and a.dtype == b.dtype == np.float32
    np.testing.assert_allclose(theirs.call(), a @ b, rtol=1e-5)
    session, binding, values = ours.call.args
    for _ in range(3):
        ours.call()
    np.testing.assert_allclose(values[-1].numpy(), a @ b, rtol=1e-5)
    assert session.get_providers() == ["CPUExecutionProvider"] and binding is not None


def test_operands_are_of_unit_size():
    """Neither too large for fp16 nor so small that a product is zero."""
    a, b = operands((64, 512, 64))
    assert 0.9 < (a @ b).std() < 1.1


def count(path, *shapes):
    return flops(path, [np.ones(shape, np.float32) for shape in shapes])


def graph(path, nodes, shape, **tensors):
    """From x to y, of which the shape does not matter."""
    rank = [f"d{i}" for i in range(4)]
    save_graph(path, nodes, [("x", FLOAT, shape)], [("y", FLOAT, rank[: len(shape)])], **tensors)
    return path


def weight(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_product_with_a_weight(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = graph(tmp_path / "g.onnx", nodes, ["n", "s", 12], w=weight(12, 20))
    assert count(path, (3, 5, 12), (1, 5, 12)) == [2 * 3 * 5 * 12 * 20, 2 * 5 * 12 * 20]


def test_product_of_what_the_graph_computes(tmp_path):
    """As in attention: of sequences with themselves."""
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    path = graph(tmp_path / "g.onnx", nodes, ["n", "s", 12])
    assert count(path, (3, 5, 12), (2, 7, 12)) == [2 * 3 * 5 * 5 * 12, 2 * 2 * 7 * 7 * 12]


@pytest.mark.parametrize("side", ["transA", "transB"])
def test_fused_product(tmp_path, side):
    """Of two transposed operands, either way: the inner dimension is the other one of x."""
    attributes = {"domain": "com.microsoft", side: 1}
    nodes = [helper.make_node("FusedMatMul", ["x", "x"], ["y"], **attributes)]
    path = graph(tmp_path / "g.onnx", nodes, ["n", 5, 12])
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    assert count(path, (3, 5, 12)) == [2 * 3 * (12 * 5 * 12 if side == "transA" else 5 * 12 * 5)]


@pytest.mark.parametrize("side", ["transA", "transB", None])
def test_gemm(tmp_path, side):
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], **({side: 1} if side else {}))]
    w = weight(20, 12) if side == "transB" else weight(12, 20)
    shape = (12, 3) if side == "transA" else (3, 12)
    path = graph(tmp_path / "g.onnx", nodes, ["n", "k"], w=w, b=weight(20))
    assert count(path, shape) == [2 * 3 * 12 * 20]


@pytest.mark.parametrize("channels", [5, 32])
def test_convolution(tmp_path, channels):
    """Patches of 4 × 4; the optimiser would fill 5 channels up to a block."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], strides=[4, 4], kernel_shape=[4, 4])]
    path = graph(tmp_path / "g.onnx", nodes, ["n", 3, 16, 16], w=weight(channels, 3, 4, 4))
    assert count(path, (2, 3, 16, 16)) == [2 * 2 * channels * 4 * 4 * 3 * 4 * 4]


def test_what_can_not_be_told_is_not_a_number(tmp_path):
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["i"]),
        helper.make_node("Cast", ["i"], ["y"], to=FLOAT),
    ]
    path = graph(tmp_path / "g.onnx", nodes, ["n", 12], w=np.ones((12, 20), np.int8))
    assert count(path, (3, 12), (4, 12)) == [None, None]


def test_toy_towers(toy):
    assert count(toy / VISION, (1, 3, SIZE, SIZE), (5, 3, SIZE, SIZE)) == [2 * 192 * DIM, 5 * 2 * 192 * DIM]
    assert flops(toy / TEXT, [np.ones((2, 5), np.int64)]) == [0], "it only looks up and adds"


def test_a_real_tower():
    """tiny_clip: a patch embedding, four layers of 128 over 64 patches and a class token, and a projection."""
    path = Path(zoo.get("tiny_clip").committed_bundle) / "onnx/vision_model_fp16.onnx"
    s, w = 65, 128
    layer = 2 * s * w * (3 * w + w + 4 * w + 4 * w) + 2 * 2 * s * s * w
    assert count(path, (1, 3, 64, 64)) == [2 * 64 * w * 3 * 8 * 8 + 4 * layer + 2 * w * w]


def test_nothing_is_left_behind(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    count(toy / VISION, (1, 3, SIZE, SIZE))
    assert list(tmp_path.iterdir()) == []
