"""An adopted tower is run before it is believed: what it says of itself, its norm, its batch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from toy import save_graph

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from exporter import surgery, tower_check
from exporter.tower_check import write_tower
from lgip_ort.errors import RunFault

F = TensorProto.FLOAT
SIZE, DIM = 4, 5
RNG = np.random.default_rng(0)
PIXELS = RNG.normal(size=(7, 3, SIZE, SIZE)).astype(np.float32)
WEIGHT = RNG.normal(size=(3 * SIZE * SIZE, DIM)).astype(np.float32)
ROWS = PIXELS.reshape(7, -1) @ WEIGHT
UNIT = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)


def _cut(tmp_path, nodes, shape=("n", 3, "h", "w"), out=("n", "d"), **tensors):
    save_graph(
        tmp_path / "found.onnx",
        [helper.make_node("Flatten", ["pixel_values"], ["flat"]), *nodes],
        [("pixel_values", F, list(shape))],
        [("image_embeds", F, list(out))],
        weight=WEIGHT,
        **tensors,
    )
    cut = surgery.open_tower(tmp_path / "found.onnx", tmp_path, "vision", "clip")
    surgery.fix_shape(cut, SIZE, 8)
    return cut


LINEAR = [helper.make_node("MatMul", ["flat", "weight"], ["image_embeds"])]
NORMALISED = [
    helper.make_node("MatMul", ["flat", "weight"], ["raw"]),
    helper.make_node("LpNormalization", ["raw"], ["image_embeds"], axis=-1, p=2),
]


def test_missing_normalisation_is_measured_and_added(tmp_path):
    graph, measured = write_tower(_cut(tmp_path, LINEAR), tmp_path, PIXELS, reference=UNIT)
    assert measured["from"] == "found.onnx" and measured["edits"] == ["normalised"]
    assert measured["cosine_min"] > 0.999999 and measured["batches_cosine_min"] > 0.999999
    assert (graph.file, graph.precision, graph.opset) == ("onnx/vision_model.onnx", "fp32", 18)
    assert graph.outputs[0].shape == ["batch", DIM] and graph.inputs[0].dtype == "float32"
    assert onnx.load(tmp_path / graph.file).graph.node[-1].op_type == "Div"


def test_normalisation_that_is_there_is_left_alone(tmp_path):
    graph, measured = write_tower(_cut(tmp_path, NORMALISED), tmp_path, PIXELS, reference=UNIT)
    assert measured["edits"] == []
    assert onnx.load(tmp_path / graph.file).graph.node[-1].op_type == "LpNormalization"


def test_without_a_reference_everything_else_is_checked(tmp_path):
    _, measured = write_tower(_cut(tmp_path, LINEAR), tmp_path, PIXELS)
    assert not set(measured) & set(tower_check.AGAINST_ORIGINAL)
    assert {"batches_cosine_min", "operators"} <= set(measured)
    batch = helper.make_node("ReduceMean", ["flat", "zero"], ["mean"], keepdims=1)
    nodes = [
        batch,
        helper.make_node("Sub", ["flat", "mean"], ["centred"]),
        helper.make_node("MatMul", ["centred", "weight"], ["image_embeds"]),
    ]
    with pytest.raises(RunFault, match="cosine of rows in batches"):
        write_tower(_cut(tmp_path, nodes, zero=np.array([0])), tmp_path, PIXELS + 1)


def test_another_reference_is_a_fault(tmp_path):
    with pytest.raises(RunFault, match=r"cosine of row \d with the PyTorch original"):
        write_tower(_cut(tmp_path, LINEAR), tmp_path, PIXELS, reference=np.roll(UNIT, 1, axis=0))


def test_a_batch_that_is_built_in(tmp_path):
    nodes = [
        *LINEAR[:0],
        helper.make_node("Reshape", ["flat", "one"], ["same"]),
        helper.make_node("MatMul", ["same", "weight"], ["image_embeds"]),
    ]
    one = np.array([1, 3 * SIZE * SIZE])
    cut = _cut(tmp_path, nodes, shape=(1, 3, SIZE, SIZE), out=(1, DIM), one=one)
    with pytest.raises(
        RunFault, match=r"found\.onnx: batch fixed at 1 found, any batch expected: float32 \(7, 3, 4, 4\) can't"
    ):
        write_tower(cut, tmp_path, PIXELS)
    cut = _cut(tmp_path, nodes, one=one)  # the same, and not even said
    with pytest.raises(RunFault, match=r"found\.onnx: float32 \(7, 3, 4, 4\) can't be run: .*Reshape"):
        write_tower(cut, tmp_path, PIXELS)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [helper.make_node("MatMul", ["flat", "weight"], ["y"]), helper.make_node("Unsqueeze", ["y", "one"], ["image_embeds"])],
            r"found\.onnx: embeddings \(7, 1, 5\) found, \(7, dim\) expected",
        ),
        (
            [helper.make_node("Mul", ["flat", "zeros"], ["y"]), helper.make_node("MatMul", ["y", "weight"], ["image_embeds"])],
            r"found\.onnx: embeddings that are not finite, or zero, found",
        ),
        (
            [
                helper.make_node("Mul", ["flat", "zeros"], ["y"]),
                helper.make_node("Add", ["y", "ones"], ["z"]),
                helper.make_node("MatMul", ["z", "weight"], ["image_embeds"]),
            ],
            r"found\.onnx: 7 different inputs have the same embedding",
        ),
    ],
)  # fmt: skip
def test_what_is_no_embedding(nodes, message, tmp_path):
    zeros = np.zeros(3 * SIZE * SIZE, np.float32)
    cut = _cut(tmp_path, nodes, out=("n", "d"), one=np.array([1]), zeros=zeros, ones=zeros + 1)
    with pytest.raises(RunFault, match=message):
        write_tower(cut, tmp_path, PIXELS)
