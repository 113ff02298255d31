"""Exported graphs: shapes, determinism, nothing in them that breaks elsewhere."""

from __future__ import annotations

import dataclasses
import re
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from checkpoints import exported, open_clip_spec  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from exporter import graph as graph_module  # noqa: E402
from exporter.graph import export_graph, graph_files  # noqa: E402
from exporter.load import load_original  # noqa: E402
from exporter.precision import to_half  # noqa: E402
from exporter.structure import check_structure  # noqa: E402
from exporter.towers import towers_of  # noqa: E402
from lgip_ort.bundle import TensorSpec, open_bundle  # noqa: E402
from lgip_ort.errors import RunFault, UsageFault  # noqa: E402

KINDS = ("tiny_clip", "tiny_siglip", "open_clip")


def _graph(kind, tower):
    bundle = open_bundle(exported(kind)[0])
    graph = bundle.graph(tower)
    return bundle.path(graph.file), graph, onnx.load(bundle.path(graph.file))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tower", ["vision", "text"])
def test_shapes_are_symbolic_where_they_may_vary(kind, tower):
    path, graph, model = _graph(kind, tower)
    dims = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
    assert dims == [spec.shape for spec in graph.inputs]
    assert graph.inputs[0].shape[0] == graph.outputs[0].shape[0] == "batch"
    if tower == "text":
        assert graph.inputs[0].shape[1] == (24 if kind == "tiny_siglip" else "sequence")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shape = [6 if d == "sequence" else d for d in graph.inputs[0].shape]
    for batch in (1, 5):
        inputs = np.ones([batch, *shape[1:]], {"float32": np.float32, "int64": np.int64}[graph.inputs[0].dtype])
        assert session.run(None, {graph.inputs[0].name: inputs})[0].shape == (batch, graph.outputs[0].shape[1])


def test_siglip_text_of_another_length_is_an_error():
    path, _, _ = _graph("tiny_siglip", "text")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="Got: 9 Expected: 24"):
        session.run(None, {"input_ids": np.ones((1, 9), np.int64)})


def test_inputs_and_outputs_are_fp32_around_an_fp16_graph():
    for tower, name, kind in (("vision", "pixel_values", TensorProto.FLOAT), ("text", "input_ids", TensorProto.INT64)):
        _, _, model = _graph("tiny_clip", tower)
        assert [(v.name, v.type.tensor_type.elem_type) for v in model.graph.input] == [(name, kind)]
        assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
        weights = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT16]
        assert sum(np.prod(t.dims) for t in weights) > 10_000
        last = {out: node for node in model.graph.node for out in node.output}[model.graph.output[0].name]
        assert last.op_type == "Div" and any(n.op_type == "ReduceL2" for n in model.graph.node)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tower", ["vision", "text"])
def test_nothing_tells_where_it_was_made(kind, tower):
    path, _, model = _graph(kind, tower)
    raw = path.read_bytes()
    assert not re.search(rb"site-packages|\.py\b|/home/|/tmp/|/usr/|nn_module_stack|stack_trace", raw)
    assert not model.metadata_props and not model.doc_string
    assert not any(n.metadata_props or n.doc_string for n in model.graph.node)


def test_equal_weights_give_equal_bytes(tmp_path):
    spec = open_clip_spec(tmp_path)
    files = []
    for name in ("a", "b"):
        pair = towers_of(load_original(spec, "random"))
        to_half(pair.text)
        graph = export_graph(pair.text, spec.image_size, "fp16", [], tmp_path / name)
        files.append((tmp_path / name / graph.file).read_bytes())
    assert files[0] == files[1]


def test_large_weights_go_to_one_file_beside_the_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_module, "EXTERNAL_BYTES", 1_000_000)
    spec = open_clip_spec(tmp_path)
    pair = towers_of(load_original(spec, "random"))
    graph = export_graph(pair.text, spec.image_size, "fp32", [], tmp_path / "made")
    assert graph_files(graph, tmp_path / "made") == ["onnx/text_model.onnx", "onnx/text_model.onnx_data"]
    shutil.move(tmp_path / "made", tmp_path / "moved")
    assert check_structure(tmp_path / "moved" / graph.file, graph)["fp16_share"] == 0
    ids = np.array([[49406, 320, 2368, 49407]])
    session = ort.InferenceSession(str(tmp_path / "moved" / graph.file), providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        expected = pair.text(torch.from_numpy(ids)).numpy()
    np.testing.assert_allclose(session.run(None, {"input_ids": ids})[0], expected, atol=1e-6)


def test_a_weight_that_fp16_can_t_hold_is_named(tmp_path):
    pair = towers_of(load_original(open_clip_spec(tmp_path), "random"))
    with torch.no_grad():
        pair.vision.encoder.ln_post.weight[0] = 70_000
    with pytest.raises(UsageFault, match=r"ln_post\.weight: largest \|value\| 70000 found, at most 65504"):
        to_half(pair.vision)


def _toy(tmp_path, nodes, initializers=(), opset=18, out=("y", TensorProto.FLOAT, ["batch", 4])):
    """A graph over x, int64 (batch, 3), and its entry in a manifest."""
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", 3])],
        [helper.make_tensor_value_info(*out)],
        list(initializers),
    )
    path = tmp_path / "toy.onnx"
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    used = {n.domain for n in nodes}
    model = helper.make_model(made, opset_imports=[i for i in imports if i.domain in used | {""}], ir_version=9)
    onnx.save(model, path)
    _, graph, _ = _graph("tiny_clip", "text")
    return path, dataclasses.replace(
        graph,
        precision="fp32",
        inputs=[TensorSpec("x", "int64", ["batch", 3])],
        outputs=[TensorSpec(out[0], "float32", out[2])],
    )


def _pooling(cast_to):
    table = numpy_helper.from_array(np.ones((9, 4), np.float32), "table")
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=cast_to),
        helper.make_node("ArgMax", ["c"], ["i"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "i"], ["y"]),
    ]
    return nodes, [table]


def test_token_ids_stay_integers(tmp_path):
    path, graph = _toy(tmp_path, *_pooling(TensorProto.INT32))
    check_structure(path, graph)
    path, graph = _toy(tmp_path, *_pooling(TensorProto.FLOAT))
    with pytest.raises(RunFault, match="casts token ids to a float"):
        check_structure(path, graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: np.where(t > 0, -np.inf, t), "tensor table is not finite"),
        (lambda t: t * np.nan, "tensor table is not finite"),
    ],
)
def test_infinite_tensors_are_refused(change, message, tmp_path):
    nodes, (table,) = _pooling(TensorProto.INT32)
    bad = numpy_helper.from_array(change(numpy_helper.to_array(table)).astype(np.float32), "table")
    path, graph = _toy(tmp_path, nodes, [bad])
    with pytest.raises(RunFault, match=message):
        check_structure(path, graph)


def test_other_structures_are_refused(tmp_path):
    nodes, tensors = _pooling(TensorProto.INT32)
    path, graph = _toy(tmp_path, nodes, tensors)
    with pytest.raises(RunFault, match=r"0\.0% of the weights are fp16"):
        check_structure(path, dataclasses.replace(graph, precision="fp16"))
    with pytest.raises(RunFault, match="opset 18 found, 17 expected"):
        check_structure(path, dataclasses.replace(graph, opset=17))
    fixed = dataclasses.replace(graph, inputs=[TensorSpec("x", "int64", [2, 3])])
    with pytest.raises(RunFault, match="inputs or outputs"):
        check_structure(path, fixed)
    foreign = [*nodes[:2], helper.make_node("Gather", ["table", "i"], ["z"])]
    foreign.append(helper.make_node("FastGelu", ["z"], ["y"], domain="com.microsoft"))
    path, graph = _toy(tmp_path, foreign, tensors)
    with pytest.raises(RunFault, match=r"domain 'com\.microsoft'"):
        check_structure(path, graph)
