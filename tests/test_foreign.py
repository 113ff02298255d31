"""Reading other people's graphs: where weights may lie, and which output and input are meant."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from toy import save_graph

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from exporter import foreign
from lgip_ort.errors import RunFault, UsageFault

F, F16, I64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


def _graph(path, inputs=(("x", F, ["n", 4]),), outputs=(("y", F, ["n", 3]),), nodes=None, **tensors):
    nodes = nodes or [helper.make_node("MatMul", [inputs[0][0], "weight"], [outputs[0][0]])]
    nodes += [helper.make_node("Identity", [outputs[0][0]], [name]) for name, *_ in outputs[1:]]
    save_graph(path, nodes, list(inputs), list(outputs), **(tensors or {"weight": np.ones((4, 3), np.float32)}))
    return path


def _external(path, location, data=True):
    """The graph at `path` with its weight in a file, which is called `location` in the graph."""
    model = onnx.load(_graph(path))
    (tensor,) = model.graph.initializer
    external_data_helper.set_external_data(tensor, location, offset=0, length=48)
    if data:
        (path.parent / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_in_a_file_beside_the_graph(tmp_path):
    path = _external(tmp_path / "a.onnx", "weights.bin")
    (value,) = foreign.load(path, tmp_path).graph.initializers.values()
    np.testing.assert_array_equal(value.const_value.numpy(), np.ones((4, 3)))


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "sub/../../weights.bin"])
def test_weights_outside_the_folder_are_refused(location, tmp_path):
    (tmp_path / "export").mkdir()
    path = _external(tmp_path / "export/a.onnx", location, data=False)
    (tmp_path / "weights.bin").write_bytes(bytes(48))
    with pytest.raises(UsageFault, match=f"tensor weight lies in '{location}', a file beside the graph expected"):
        foreign.load(path, tmp_path / "export")


def test_weights_behind_a_link_out_of_the_folder_are_refused(tmp_path):
    (tmp_path / "export").mkdir()
    path = _external(tmp_path / "export/a.onnx", "weights.bin")
    (tmp_path / "export/weights.bin").rename(tmp_path / "weights.bin")
    (tmp_path / "export/weights.bin").symlink_to("../weights.bin")
    with pytest.raises(UsageFault, match="out of the folder"):
        foreign.load(path, tmp_path / "export")


def test_missing_and_cut_weights(tmp_path):
    path = _external(tmp_path / "a.onnx", "weights.bin")
    (tmp_path / "weights.bin").write_bytes(bytes(47))
    with pytest.raises(UsageFault, match=r"a\.onnx: tensor weight .* has 47 bytes, at least 48 expected"):
        foreign.load(path, tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UsageFault, match=r"tensor weight lies in 'weights\.bin', which is missing"):
        foreign.load(path, tmp_path)


def test_constants_stored_outside_are_checked_and_read(tmp_path):
    tensor = numpy_helper.from_array(np.ones((4, 3), np.float32), "constant")
    (tmp_path / "c.bin").write_bytes(tensor.raw_data)
    external_data_helper.set_external_data(tensor, "c.bin", offset=0, length=48)
    tensor.ClearField("raw_data")
    nodes = [
        helper.make_node("Constant", [], ["weight"], value=tensor),
        helper.make_node("MatMul", ["x", "weight"], ["y"]),
    ]
    path = _graph(tmp_path / "a.onnx", nodes=nodes, unused=np.zeros(1, np.float32))
    model = foreign.load(path, tmp_path)
    (tmp_path / "c.bin").unlink()
    (constant,) = (node for node in model.graph if node.op_type == "Constant")
    np.testing.assert_array_equal(constant.attributes["value"].as_tensor().numpy(), np.ones((4, 3)))
    with pytest.raises(UsageFault, match=r"tensor constant lies in 'c\.bin', which is missing"):
        foreign.load(path, tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"not a graph", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"]
)
def test_what_is_no_graph(content, tmp_path):
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(UsageFault, match=r"a\.onnx: not an ONNX graph"):
        foreign.load(tmp_path / "a.onnx", tmp_path)


def _embedding(tmp_path, tower, family, *outputs):
    model = foreign.load(_graph(tmp_path / "a.onnx", outputs=outputs), tmp_path)
    return foreign.embedding("a.onnx", tower, family, list(model.graph.outputs)).name


ROWS, POOLED = ("last_hidden_state", F, ["n", "t", 3]), ("pooler_output", F, ["n", 3])


def test_which_output_is_the_embedding(tmp_path):
    embeds = ("text_embeds", F, ["n", 3])
    assert _embedding(tmp_path, "text", "clip", ROWS, POOLED, embeds) == "text_embeds"
    assert _embedding(tmp_path, "vision", "siglip", ROWS, POOLED) == "pooler_output"
    assert _embedding(tmp_path, "vision", "clip", ("output", F, ["n", 3])) == "output"
    assert (
        _embedding(tmp_path, "vision", "clip", ("hidden_states.0", F, ["n", "t", 3]), ("features", F, ["n", 3]))
        == "features"
    )


@pytest.mark.parametrize(
    ("family", "outputs", "message"),
    [
        (
            "clip",
            [ROWS, POOLED],
            "last_hidden_state, pooler_output found, image_embeds expected: the projection is missing",
        ),
        (
            "clip",
            [ROWS],
            "last_hidden_state found, image_embeds expected: the graph does not say how its rows are pooled",
        ),
        ("siglip", [ROWS], "the graph does not say how its rows are pooled"),
        ("clip", [("y", F, ["n", 3]), ("z", F, ["n", 3])], r"y, z found, image_embeds or one \(batch, dim\) expected"),
        ("clip", [("y", F, ["n", "t", 3])], r"y found, image_embeds or one \(batch, dim\) expected"),
    ],
)
def test_outputs_without_an_embedding(family, outputs, message, tmp_path):
    with pytest.raises(RunFault, match=message):
        _embedding(tmp_path, "vision", family, *outputs)


def _source(tmp_path, tower, *inputs):
    model = foreign.load(_graph(tmp_path / "a.onnx", inputs=inputs), tmp_path)
    return foreign.source("a.onnx", tower, list(model.graph.inputs)).name


PIXELS, IDS, MASK = ("image", F, ["n", 3, 8, 8]), ("tokens", I64, ["n", "t"]), ("attention_mask", I64, ["n", "t"])


def test_which_input_it_is_of(tmp_path):
    assert _source(tmp_path, "vision", PIXELS) == "image"
    assert _source(tmp_path, "text", MASK, IDS) == "tokens"
    assert _source(tmp_path, "text", IDS, ("input_ids", I64, ["n", "t"])) == "input_ids"
    assert _source(tmp_path, "vision", ("pixel_values", F16, ["n", "c", "h", "w"]), IDS) == "pixel_values"


@pytest.mark.parametrize(
    ("tower", "inputs", "found"),
    [
        ("vision", [IDS], "tokens"),
        ("text", [PIXELS], "image"),
        ("text", [MASK], "attention_mask"),
        ("text", [IDS, ("other", I64, ["n", "t"])], "tokens .*, other"),
        ("text", [("input_ids", F, ["n", "t"])], "input_ids FLOAT"),
        ("text", [("input_ids", I64, ["n", 4, "t"])], "input_ids INT64"),
        ("vision", [("x", F, ["n", 4])], "x"),
        ("vision", [("pixel_values", TensorProto.UINT8, ["n", 3, 8, 8])], "pixel_values UINT8"),
    ],
)
def test_inputs_that_are_none_of_a_tower(tower, inputs, found, tmp_path):
    with pytest.raises(RunFault, match=f"{foreign.OUTPUT[tower]}: {found}.* found, one {foreign.INPUT[tower]} of "):
        _source(tmp_path, tower, *inputs)


@pytest.mark.parametrize(
    ("precision", "tensors"),
    [
        ("fp32", {"weight": np.ones((4, 3), np.float32)}),
        ("fp16", {"weight": np.ones((4, 3), np.float16), "bias": np.ones(3, np.float32)}),
        (
            "fp32",
            {"weight": np.ones((4, 3), np.float32), "bias": np.ones(3, np.float16), "shape": np.ones(90, np.int64)},
        ),
    ],
)
def test_precision_is_what_most_weights_are_in(precision, tensors, tmp_path):
    model = foreign.load(_graph(tmp_path / "a.onnx", **tensors), tmp_path)
    assert foreign.precision_of("a.onnx", model) == precision


def test_precision_of_quantised_graphs(tmp_path):
    nodes = [
        helper.make_node("DequantizeLinear", ["weight", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    tensors = {"weight": np.ones((4, 3), np.int8), "scale": np.float32(0.1), "other": np.ones((40, 3), np.float32)}
    model = foreign.load(_graph(tmp_path / "a.onnx", nodes=nodes, **tensors), tmp_path)
    assert foreign.precision_of("a.onnx", model) == "int8"
    nodes = [helper.make_node("MatMulNBits", ["x", "weight", "scale"], ["y"], domain="com.microsoft")]
    model = foreign.load(_graph(tmp_path / "a.onnx", nodes=nodes, **tensors), tmp_path)
    with pytest.raises(RunFault, match=r"a\.onnx: 4-bit weights \(MatMulNBits\) found, fp32, fp16 or int8 expected"):
        foreign.precision_of("a.onnx", model)
