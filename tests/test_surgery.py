"""Edits of other people's graphs: what comes out computes the same, under this project's names and types."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from toy import save_graph, weights

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from exporter import graph as graph_file
from exporter import surgery
from lgip_ort.errors import RunFault

F, F16, I64, I32, BOOL = (getattr(TensorProto, name) for name in ("FLOAT", "FLOAT16", "INT64", "INT32", "BOOL"))
SIZE, CONTEXT, DIM = 4, 6, 5
RNG = np.random.default_rng(0)
PIXELS = RNG.normal(size=(3, 3, SIZE, SIZE)).astype(np.float32)
IDS = RNG.integers(0, 20, (3, CONTEXT))
TABLE = RNG.normal(size=(20, DIM)).astype(np.float32)
WEIGHT = RNG.normal(size=(3 * SIZE * SIZE, DIM)).astype(np.float32)


def _text_nodes(mask=None, ids="input_ids", out="text_embeds"):
    """The sum of the rows of the ids, each times its mask."""
    nodes = [helper.make_node("Gather", ["table", ids], ["rows"])]
    if mask:
        nodes += [
            helper.make_node("Cast", [mask], ["as_float"], to=F),
            helper.make_node("Unsqueeze", ["as_float", "last"], ["column"]),
            helper.make_node("Mul", ["rows", "column"], ["masked"]),
        ]
    return [*nodes, helper.make_node("ReduceSum", ["masked" if mask else "rows", "axis"], [out], keepdims=0)]


def _vision_nodes(pixels="pixel_values", out="image_embeds"):
    return [
        helper.make_node("Flatten", [pixels], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], [out]),
    ]


TENSORS = {"table": TABLE, "axis": np.array([1]), "last": np.array([-1]), "weight": WEIGHT}
TEXT_IN, IMAGE_IN = ("input_ids", I64, ["n", "length"]), ("pixel_values", F, ["n", "c", "h", "w"])
TEXT_OUT, IMAGE_OUT = ("text_embeds", F, ["n", "d"]), ("image_embeds", F, ["n", "d"])


def _open(tmp_path, tower, nodes, inputs, outputs, family="clip", **tensors):
    path = tmp_path / "found.onnx"
    save_graph(path, nodes, inputs, outputs, **(tensors or TENSORS))
    cut = surgery.open_tower(path, tmp_path, tower, family)
    surgery.fix_shape(cut, SIZE, CONTEXT)
    surgery.set_dim(cut, DIM)
    return cut


def _run(tmp_path, cut, *arrays):
    """Outputs of the saved graph, which is valid ONNX, on each of the arrays."""
    path = tmp_path / "saved.onnx"
    surgery.save(cut, path)
    onnx.checker.check_model(str(path), full_check=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (source,), (target,) = session.get_inputs(), session.get_outputs()
    wanted = ("pixel_values", "tensor(float)") if cut.tower == "vision" else ("input_ids", "tensor(int64)")
    assert (source.name, source.type) == wanted and source.shape == cut.shape
    assert (target.name, target.type) == (surgery.OUTPUT[cut.tower], "tensor(float)")
    assert target.shape == ["batch", DIM]
    out = [session.run(None, {source.name: array})[0] for array in arrays]
    return out[0] if len(out) == 1 else out


def test_one_graph_is_cut_into_two_towers(tmp_path):
    nodes = [
        *_text_nodes("attention_mask"),
        *_vision_nodes(),
        helper.make_node("Transpose", ["text_embeds"], ["turned"]),
        helper.make_node("MatMul", ["image_embeds", "turned"], ["logits_per_image"]),
    ]
    inputs = [TEXT_IN, IMAGE_IN, ("attention_mask", I64, ["n", "length"])]
    outputs = [("logits_per_image", F, ["n", "n"]), TEXT_OUT, IMAGE_OUT]
    text = _open(tmp_path, "text", nodes, inputs, outputs)
    np.testing.assert_allclose(_run(tmp_path, text, IDS), TABLE[IDS].sum(1), rtol=1e-5)
    saved = weights(tmp_path / "saved.onnx")
    assert set(saved) == {"table", "axis", "last"} and saved["table"].tobytes() == TABLE.tobytes()
    assert text.edits == [
        "cut from input_ids, pixel_values, attention_mask -> logits_per_image, text_embeds, image_embeds",
        "attention_mask: ones",
    ]
    vision = _open(tmp_path, "vision", nodes, inputs, outputs)
    np.testing.assert_allclose(_run(tmp_path, vision, PIXELS), PIXELS.reshape(3, -1) @ WEIGHT, rtol=1e-4)
    saved = weights(tmp_path / "saved.onnx")
    assert set(saved) == {"weight"} and saved["weight"].tobytes() == WEIGHT.tobytes()
    assert vision.edits == [text.edits[0]] and vision.shape == ["batch", 3, SIZE, SIZE]


@pytest.mark.parametrize("kind", [I64, I32, F, BOOL])
def test_a_mask_hides_nothing_whatever_its_type(kind, tmp_path):
    inputs = [TEXT_IN, ("attention_mask", kind, ["n", "length"])]
    cut = _open(tmp_path, "text", _text_nodes("attention_mask"), inputs, [TEXT_OUT])
    long, short = _run(tmp_path, cut, IDS, IDS[:1, :2])
    np.testing.assert_allclose(long, TABLE[IDS].sum(1), rtol=1e-5)
    np.testing.assert_allclose(short, TABLE[IDS[:1, :2]].sum(1), rtol=1e-5)


def test_other_names_and_types(tmp_path):
    nodes = _text_nodes(ids="tokens", out="features")
    outputs = [("features", F, ["n", "d"])]
    cut = _open(tmp_path, "text", nodes, [("tokens", I32, ["n", "length"])], outputs)
    np.testing.assert_allclose(_run(tmp_path, cut, IDS), TABLE[IDS].sum(1), rtol=1e-5)
    assert cut.edits == [
        "input tokens -> input_ids",
        "input_ids int64 -> int32",
        "output features -> text_embeds",
    ]


def test_half_precision_inside_and_fp32_outside(tmp_path):
    half = {"weight": WEIGHT.astype(np.float16)}
    inputs, outputs = [("image", F16, ["n", 3, SIZE, SIZE])], [("image_embeds", F16, ["n", DIM])]
    cut = _open(tmp_path, "vision", _vision_nodes("image"), inputs, outputs, **half)
    assert cut.precision == "fp16"
    out = _run(tmp_path, cut, PIXELS)
    np.testing.assert_allclose(out, PIXELS.reshape(3, -1) @ WEIGHT, atol=0.05)
    assert weights(tmp_path / "saved.onnx")["weight"].tobytes() == half["weight"].tobytes()
    assert "pixel_values float32 -> float16" in cut.edits and "image_embeds float16 -> float32" in cut.edits
    surgery.normalise(cut)  # behind the cast, so in fp32
    unit = _run(tmp_path, cut, PIXELS)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(unit, out / np.linalg.norm(out, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("opset", [13, 17, 18, 20])
def test_normalised_in_any_opset(opset, tmp_path):
    path = tmp_path / "found.onnx"
    save_graph(path, _vision_nodes(), [IMAGE_IN], [IMAGE_OUT], weight=WEIGHT)
    model = onnx.load(path)
    model.opset_import[0].version = opset
    path.write_bytes(model.SerializeToString())
    cut = surgery.open_tower(path, tmp_path, "vision", "clip")
    surgery.fix_shape(cut, SIZE, CONTEXT)
    surgery.set_dim(cut, DIM)
    raw = _run(tmp_path, cut, PIXELS)
    surgery.normalise(cut)
    assert cut.opset == opset and cut.edits == ["normalised"]
    np.testing.assert_allclose(
        _run(tmp_path, cut, PIXELS), raw / np.linalg.norm(raw, axis=1, keepdims=True), rtol=1e-5, atol=1e-7
    )


def test_names_that_are_taken(tmp_path):
    """Another value may already be called as the new input or output."""
    nodes = [
        helper.make_node("Identity", ["image"], ["pixel_values"]),
        helper.make_node("Flatten", ["pixel_values"], ["image_embeds"]),
        helper.make_node("MatMul", ["image_embeds", "weight"], ["out"]),
    ]
    cut = _open(tmp_path, "vision", nodes, [("image", F, ["n", 3, 4, 4])], [("out", F, ["n", DIM])], weight=WEIGHT)
    np.testing.assert_allclose(_run(tmp_path, cut, PIXELS), PIXELS.reshape(3, -1) @ WEIGHT, rtol=1e-4)


def test_a_fixed_batch_is_made_symbolic_and_remembered(tmp_path):
    cut = _open(
        tmp_path, "vision", _vision_nodes(), [("pixel_values", F, [1, 3, SIZE, SIZE])], [("image_embeds", F, [1, DIM])]
    )
    assert cut.batch == 1 and "batch, fixed at 1, made symbolic" in cut.edits
    one, three = _run(tmp_path, cut, PIXELS[:1], PIXELS)
    np.testing.assert_allclose(three[:1], one, rtol=1e-5)


def test_a_fixed_length_stays(tmp_path):
    cut = _open(tmp_path, "text", _text_nodes(), [("input_ids", I64, ["n", CONTEXT])], [TEXT_OUT])
    assert cut.shape == ["batch", CONTEXT] and cut.batch is None
    _run(tmp_path, cut, IDS)


@pytest.mark.parametrize(
    ("tower", "value", "message"),
    [
        (
            "vision",
            ("pixel_values", F, ["n", 3, 8, 8]),
            r"input 'pixel_values': \[3, 8, 8\] found, \[3, 4, 4\] expected",
        ),
        ("vision", ("pixel_values", F, ["n", 1, "h", "w"]), r"\[1, None, None\] found, \[3, 4, 4\] expected"),
        ("text", ("input_ids", I64, [1, 16]), r"input 'input_ids': \[16\] found, \[6\] expected"),
    ],
)
def test_another_size_or_length_is_refused(tower, value, message, tmp_path):
    nodes, outputs = (_vision_nodes(), [IMAGE_OUT]) if tower == "vision" else (_text_nodes(), [TEXT_OUT])
    with pytest.raises(RunFault, match=r"found\.onnx: .*" + message):
        _open(tmp_path, tower, nodes, [value], outputs)


def test_inputs_that_can_t_be_derived(tmp_path):
    nodes = [*_text_nodes(), helper.make_node("Add", ["text_embeds", "position_ids"], ["out"])]
    inputs = [TEXT_IN, ("position_ids", F, ["n", "length"])]
    with pytest.raises(RunFault, match="input 'position_ids' can't be derived from input_ids"):
        _open(tmp_path, "text", nodes, inputs, [("out", F, ["n", "d"])])
    nodes = [helper.make_node("Expand", ["table", "axis"], ["text_embeds"])]
    with pytest.raises(
        RunFault, match="inputs of text_embeds: none found, one input_ids of integers in 2 dimensions expected"
    ):
        _open(tmp_path, "text", nodes, [TEXT_IN], [TEXT_OUT])


def test_weights_that_are_listed_as_inputs_too(tmp_path):
    """What exporters wrote before ONNX 1.4, and may still do."""
    cut = _open(tmp_path, "text", _text_nodes(), [TEXT_IN, ("table", F, [20, DIM])], [TEXT_OUT])
    np.testing.assert_allclose(_run(tmp_path, cut, IDS), TABLE[IDS].sum(1), rtol=1e-5)


def test_what_is_not_needed_goes(tmp_path):
    path = tmp_path / "found.onnx"
    nodes = [*_text_nodes(), helper.make_node("Gelu", ["text_embeds"], ["other"], domain="com.microsoft")]
    save_graph(path, nodes, [TEXT_IN], [TEXT_OUT, ("other", F, ["n", "d"])], **TENSORS)
    model = onnx.load(path)
    model.opset_import.extend([helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3)])
    model.doc_string, model.graph.doc_string = "made in /home/somebody", "there"
    model.graph.node[0].doc_string = "at line 3"
    helper.set_model_props(model, {"where": "/home/somebody"})
    path.write_bytes(model.SerializeToString())
    cut = surgery.open_tower(path, tmp_path, "text", "clip")
    surgery.fix_shape(cut, SIZE, CONTEXT)
    surgery.set_dim(cut, DIM)
    _run(tmp_path, cut, IDS)
    saved = onnx.load(tmp_path / "saved.onnx")
    assert {entry.domain: entry.version for entry in saved.opset_import} == {"": 18}
    assert {tensor.name for tensor in saved.graph.initializer} == {"table", "axis"}
    raw = (tmp_path / "saved.onnx").read_bytes()
    assert b"somebody" not in raw and b"line 3" not in raw and not saved.metadata_props


def test_weights_stay_outside_only_where_they_are_large(tmp_path, monkeypatch):
    path = tmp_path / "found.onnx"
    save_graph(path, _vision_nodes(), [IMAGE_IN], [IMAGE_OUT], weight=WEIGHT)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="all.data", size_threshold=0)

    def cut():
        cut = surgery.open_tower(path, tmp_path, "vision", "clip")
        surgery.fix_shape(cut, SIZE, CONTEXT)
        surgery.set_dim(cut, DIM)
        return cut

    expected = _run(tmp_path, cut(), PIXELS)
    assert not (tmp_path / "saved.onnx_data").exists()
    monkeypatch.setattr(graph_file, "EXTERNAL_BYTES", WEIGHT.nbytes - 1)
    np.testing.assert_array_equal(_run(tmp_path, cut(), PIXELS), expected)
    (tensor,) = onnx.load(tmp_path / "saved.onnx", load_external_data=False).graph.initializer
    assert {entry.key: entry.value for entry in tensor.external_data}["location"] == "saved.onnx_data"
    assert (tmp_path / "saved.onnx_data").read_bytes() == WEIGHT.tobytes()


def test_weights_have_one_hash_wherever_they_lie(tmp_path):
    cut = _open(tmp_path, "text", _text_nodes(), [TEXT_IN], [TEXT_OUT])
    first = surgery.weights_sha256([cut])
    onnx.save(onnx.load(tmp_path / "found.onnx"), tmp_path / "found.onnx", save_as_external_data=True, size_threshold=0)
    assert surgery.weights_sha256([surgery.open_tower(tmp_path / "found.onnx", tmp_path, "text", "clip")]) == first
    other = _open(tmp_path, "text", _text_nodes(), [TEXT_IN], [TEXT_OUT], **{**TENSORS, "table": TABLE + 1})
    assert surgery.weights_sha256([other]) != first


def test_functions_of_the_model_are_inlined(tmp_path):
    """What torch's older exporters write: operators of a domain that only the file itself defines."""
    path = tmp_path / "found.onnx"
    save_graph(
        path,
        [helper.make_node("Project", ["pixel_values", "weight"], ["image_embeds"], domain="own")],
        [IMAGE_IN],
        [IMAGE_OUT],
        weight=WEIGHT,
    )
    model = onnx.load(path)
    opsets = [helper.make_opsetid("", 18)]
    model.functions.append(
        helper.make_function("own", "Project", ["pixel_values", "weight"], ["image_embeds"], _vision_nodes(), opsets)
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    path.write_bytes(model.SerializeToString())
    cut = surgery.open_tower(path, tmp_path, "vision", "clip")
    surgery.fix_shape(cut, SIZE, CONTEXT)
    surgery.set_dim(cut, DIM)
    np.testing.assert_allclose(_run(tmp_path, cut, PIXELS), PIXELS.reshape(3, -1) @ WEIGHT, rtol=1e-4)
    assert [entry.domain for entry in onnx.load(tmp_path / "saved.onnx").opset_import] == [""]
    assert numpy_helper.to_array(onnx.load(tmp_path / "saved.onnx").graph.initializer[0]).tobytes() == WEIGHT.tobytes()
