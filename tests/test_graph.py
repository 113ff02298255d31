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
from exporter.graph import OPSET, example_of, export_graph, graph_files  # noqa: E402
from exporter.load import embed_ids, load_original  # noqa: E402
from exporter.mixed import Mixed  # noqa: E402
from exporter.structure import check_structure  # noqa: E402
from exporter.towers import towers_of  # noqa: E402
from exporter.trace import trace  # noqa: E402
from lgip_ort.bundle import PRECISIONS, TensorSpec, open_bundle  # noqa: E402
from lgip_ort.errors import RunFault  # noqa: E402
from models import zoo  # noqa: E402

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
        assert graph.inputs[0].shape[1] == "sequence"
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shape = [6 if d == "sequence" else d for d in graph.inputs[0].shape]
    for batch in (1, 5):
        inputs = np.ones([batch, *shape[1:]], {"float32": np.float32, "int64": np.int64}[graph.inputs[0].dtype])
        assert session.run(None, {graph.inputs[0].name: inputs})[0].shape == (batch, graph.outputs[0].shape[1])


def test_siglip_text_graph_is_the_original_at_every_length(tmp_path):
    """The tower attends to padding: another length is another input, and the graph has to compute just that."""
    original = load_original(zoo.get("tiny_siglip"), exported("tiny_siglip")[1])
    ids = np.random.default_rng(0).integers(2, original.model.config.text_config.vocab_size, (3, 24))
    parts = {n: ids[:, :n].copy() for n in (1, 2, 3, 9, 17, 23, 24)}
    expected = {n: embed_ids(original, torch.from_numpy(part)).numpy() for n, part in parts.items()}
    graph = export_graph(towers_of(original).text, 64, "fp32", [], tmp_path)
    session = ort.InferenceSession(str(tmp_path / graph.file), providers=["CPUExecutionProvider"])
    for n, part in parts.items():
        np.testing.assert_allclose(session.run(None, {"input_ids": part})[0], expected[n], atol=2e-6)
    assert np.abs(expected[17] - expected[23]).max() > 0.01
    with pytest.raises(Exception, match=r"Attempting to broadcast .* 24 by 25"):
        session.run(None, {"input_ids": np.ones((1, 25), np.int64)})


def test_inputs_and_outputs_are_fp32_around_an_fp16_graph():
    for tower, name, kind in (("vision", "pixel_values", TensorProto.FLOAT), ("text", "input_ids", TensorProto.INT64)):
        _, _, model = _graph("tiny_clip", tower)
        assert [(v.name, v.type.tensor_type.elem_type) for v in model.graph.input] == [(name, kind)]
        assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
        weights = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT16]
        assert sum(np.prod(t.dims) for t in weights) > 10_000
        last = {out: node for node in model.graph.node for out in node.output}[model.graph.output[0].name]
        assert last.op_type == "Div" and any(n.op_type == "ReduceL2" for n in model.graph.node)


def _above(model, operator):
    """The nodes that the inputs of nodes of type `operator` are computed by."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    todo = [name for node in model.graph.node if node.op_type == operator for name in node.input]
    found = {}
    while todo:
        name = todo.pop()
        if name in made_by and name not in found:
            found[name] = made_by[name]
            todo.extend(made_by[name].input)
    return list(found.values())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tower", ["vision", "text"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_every_graph_must_be(kind, tower, precision):
    bundle = open_bundle(exported(kind, *PRECISIONS)[0])
    graph = bundle.graph(tower, precision)
    model = onnx.load(bundle.path(graph.file))
    arrays = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    floats = [array for array in arrays if array.dtype.kind == "f"]
    assert floats and all(np.isfinite(array).all() for array in floats)
    share = sum(a.nbytes for a in floats if a.dtype == np.float16) / sum(a.nbytes for a in floats)
    assert share > 0.95 if precision == "fp16" else share == 0
    casts = [node for node in _above(model, "ArgMax") if node.op_type == "Cast"]
    assert {node.attribute[0].i for node in casts} <= {TensorProto.INT32, TensorProto.INT64}
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert {opset.domain for opset in model.opset_import} | {node.domain for node in model.graph.node} == {""}

    random = np.random.default_rng(0)
    shape = [3, *(6 if size == "sequence" else size for size in graph.inputs[0].shape[1:])]
    inputs = random.normal(size=shape).astype(np.float32) if tower == "vision" else random.integers(0, 30, shape)
    rows = []
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"):
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        session = ort.InferenceSession(str(bundle.path(graph.file)), options, providers=["CPUExecutionProvider"])
        rows.append(session.run(None, {graph.inputs[0].name: inputs})[0])
    tolerance = {"fp32": 1e-5, "fp16": 2e-3, "int8": 2e-2}[precision]
    for other in rows[:2]:
        np.testing.assert_allclose(other, rows[2], atol=tolerance)


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
        example, dynamic, _ = example_of(pair.text, spec.image_size)
        pair.text.encoder = Mixed(trace(pair.text.encoder, example, dynamic))
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


def _toy(tmp_path, nodes, initializers=(), opset=OPSET, out=("y", TensorProto.FLOAT, ["batch", 4])):
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
    with pytest.raises(RunFault, match=f"opset {OPSET} found, 17 expected"):
        check_structure(path, dataclasses.replace(graph, opset=17))
    fixed = dataclasses.replace(graph, inputs=[TensorSpec("x", "int64", [2, 3])])
    with pytest.raises(RunFault, match="inputs or outputs"):
        check_structure(path, fixed)
    foreign = [*nodes[:2], helper.make_node("Gather", ["table", "i"], ["z"])]
    foreign.append(helper.make_node("FastGelu", ["z"], ["y"], domain="com.microsoft"))
    path, graph = _toy(tmp_path, foreign, tensors)
    with pytest.raises(RunFault, match=r"domain 'com\.microsoft'"):
        check_structure(path, graph)
