"""The int8 graph: what is in integers and what is not, the same bytes again, and what a wrong one is told by."""

from __future__ import annotations

import dataclasses
import re
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from checkpoints import exported  # noqa: E402
from onnx import numpy_helper  # noqa: E402
from onnxruntime import quantization  # noqa: E402

from exporter import graph as graph_module  # noqa: E402
from exporter.graph import graph_files  # noqa: E402
from exporter.int8 import check_products, quantise  # noqa: E402
from exporter.structure import check_structure  # noqa: E402
from exporter.weights import check_quantised  # noqa: E402
from lgip_ort.bundle import PRECISIONS, open_bundle  # noqa: E402
from lgip_ort.errors import RunFault  # noqa: E402

KINDS = ("tiny_clip", "tiny_siglip", "open_clip")
TOWERS = ("vision", "text")
EACH = pytest.mark.parametrize(("kind", "tower"), [(kind, tower) for kind in KINDS for tower in TOWERS])


@pytest.fixture
def full(request, tmp_path):
    """Copies a tower's fp32 graph to tmp_path, where it may be changed; returns its entry in the manifest."""

    def copy(kind="tiny_siglip", tower="text"):
        bundle = open_bundle(exported(kind, *PRECISIONS)[0])
        shutil.copytree(bundle.path("onnx"), tmp_path / "onnx", dirs_exist_ok=True)
        return bundle.graph(tower, "fp32")

    return copy


def _pair(kind, tower):
    """The int8 graph, its entry in the manifest, its model, and that of the fp32 graph."""
    bundle = open_bundle(exported(kind, *PRECISIONS)[0])
    graph, whole = (bundle.graph(tower, precision) for precision in ("int8", "fp32"))
    return bundle.path(graph.file), graph, *(onnx.load(bundle.path(g.file)) for g in (graph, whole))


def _tensors(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _products(model):
    """Multiplications by weights, in order: the node and the name of the weight."""
    tensors, kinds = _tensors(model), ("MatMul", "Gemm", "MatMulInteger")
    return [(n, n.input[1]) for n in model.graph.node if n.op_type in kinds and n.input[1] in tensors]


@EACH
def test_every_product_but_the_last_is_in_integers(kind, tower):
    path, graph, made, whole = _pair(kind, tower)
    *inner, (last, weight) = _products(made)
    assert len(inner) == len(_products(whole)) - 1 > 5
    assert {node.op_type for node, _ in inner} == {"MatMulInteger"} and last.op_type == "MatMul"
    before = {array.tobytes() for array in _tensors(whole).values()}
    stored = _tensors(made)
    assert stored[weight].tobytes() in before or stored[weight].T.tobytes() in before
    measured = check_products(path, graph)
    stored_as = {True: 0, False: 0}
    for array in stored.values():
        stored_as[array.dtype == np.int8 and array.ndim == 2] += array.size
    assert measured == {"products": len(inner), "int8_share": round(stored_as[True] / sum(stored_as.values()), 4)}
    assert check_structure(path, graph)["operators"]  # of the standard alone


@EACH
def test_a_scale_for_every_output_and_weights_that_never_saturate(kind, tower):
    """Two products of an unsigned and a signed byte fit into 16 bits: every processor gives the same numbers."""
    _, _, made, _ = _pair(kind, tower)
    stored = _tensors(made)
    for node, name in _products(made)[:-1]:
        weight, base = stored[name].astype(np.int32), name.removesuffix("_quantized")
        assert stored[name].dtype == np.int8 and np.abs(weight).max() == 64
        assert stored[f"{base}_scale"].shape == (weight.shape[1],) and not stored[f"{base}_zero_point"].any()
        assert 255 * (np.abs(weight[:-1]) + np.abs(weight[1:])).max() <= np.iinfo(np.int16).max, node.name


@EACH
def test_embeddings_convolutions_and_normalisations_are_as_they_were(kind, tower):
    _, graph, made, whole = _pair(kind, tower)
    before, after = _tensors(whole), _tensors(made)
    for operator, operand in (("Gather", 0), ("Conv", 1), ("LayerNormalization", 1)):
        names = [{n.input[operand] for n in m.graph.node if n.op_type == operator} for m in (whole, made)]
        held = names[0] & set(before)
        assert held == names[1] & set(after)
        for name in held:
            np.testing.assert_array_equal(before[name], after[name])
            if operator == "Gather" and before[name].dtype.kind == "f":
                assert f"{name}: looked up, not multiplied" in graph.fp32
    assert "joint space" in graph.fp32[0] and any("convolution" in line for line in graph.fp32) == (tower == "vision")


@EACH
def test_it_is_close_to_the_original_and_smaller(kind, tower):
    bundle = open_bundle(exported(kind, *PRECISIONS)[0])
    check = bundle.manifest.check[bundle.graph(tower, "int8").file]
    assert 0.99 < check["cosine_min"] < 0.99999
    assert check["weights"] == {"tensors": check["products"], "largest_step": pytest.approx(0.5, abs=0.01)}
    sizes = [bundle.path(bundle.graph(tower, p).file).stat().st_size for p in ("int8", "fp32")]
    assert sizes[0] < sizes[1]


def test_equal_graphs_give_equal_bytes_without_traces(full, tmp_path):
    source = full("tiny_siglip", "vision")  # a Gemm among its products
    made = []
    for _ in range(2):
        graph = quantise(source, tmp_path)
        made.append((tmp_path / graph.file).read_bytes())
        assert graph == open_bundle(exported("tiny_siglip", *PRECISIONS)[0]).graph("vision", "int8")
    assert made[0] == made[1]
    assert not re.search(rb"site-packages|\.py\b|/home/|/tmp/|/usr/|onnx\.infer|onnx\.quant\.", made[0])
    assert [p.name for p in tmp_path.iterdir()] == ["onnx"], "no scratch folder is left"


def test_the_quantiser_is_not_heard(full, tmp_path, caplog):
    quantise(full(), tmp_path)
    assert not caplog.records


def test_large_weights_lie_beside_the_graph(full, tmp_path, monkeypatch):
    source = full("open_clip", "text")
    inline = open_bundle(exported("open_clip", *PRECISIONS)[0])
    monkeypatch.setattr(graph_module, "EXTERNAL_BYTES", 1000)
    path = tmp_path / source.file
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=path.name + "_data", size_threshold=0)
    graph = quantise(source, tmp_path)
    assert graph_files(graph, tmp_path) == ["onnx/text_model_int8.onnx", "onnx/text_model_int8.onnx_data"]
    check_structure(tmp_path / graph.file, graph)
    check_quantised(tmp_path / graph.file, graph.file, path)
    ids = np.array([[49406, 320, 2368, 49407]])
    rows = [
        ort.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(None, {"input_ids": ids})[0]
        for file in (tmp_path / graph.file, inline.path(graph.file))
    ]
    np.testing.assert_array_equal(*rows)


def _quantised_whole(source, folder, **options):
    """What the quantiser does of itself: the projection is quantised like everything else."""
    path = folder / "onnx/whole.onnx"
    options = {"op_types_to_quantize": ["MatMul"], "per_channel": True, "reduce_range": True} | options
    model = onnx.load(folder / source.file)
    del model.graph.value_info[:]
    quantization.quantize_dynamic(model, path, **options)
    return path, dataclasses.replace(source, precision="int8", file="onnx/whole.onnx")


@EACH
def test_a_quantised_projection_is_refused(kind, tower, full, tmp_path):
    path, graph = _quantised_whole(full(kind, tower), tmp_path)
    with pytest.raises(RunFault, match=r"onnx/whole\.onnx: node_\w+, the projection, in int8 found, .* fp32 expected"):
        check_products(path, graph)


def test_a_product_that_was_left_out_is_refused(full, tmp_path):
    source = full()
    products = _products(onnx.load(tmp_path / source.file))
    names = [products[3][0].name, products[-1][0].name, products[-1][0].name + "_MatMul"]
    path, graph = _quantised_whole(source, tmp_path, nodes_to_exclude=names)
    with pytest.raises(RunFault, match=rf"{names[0]} multiplies by {products[3][1]} in fp32, int8 expected"):
        check_products(path, graph)


def test_a_graph_without_products_is_refused(full, tmp_path):
    source = full()
    model = onnx.load(tmp_path / source.file)
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            node.op_type = "Add"
    onnx.save(model, tmp_path / source.file)
    with pytest.raises(RunFault, match=r"onnx/text_model\.onnx: no multiplication by weights found"):
        quantise(source, tmp_path)
    with pytest.raises(RunFault, match=r"no multiplication by weights found, a projection in fp32 expected"):
        check_products(tmp_path / source.file, source)


@pytest.mark.parametrize("factor", [1.02, 0.98, 2])
@pytest.mark.parametrize("tower", TOWERS)
def test_a_scale_that_is_off_is_refused(factor, tower, full, tmp_path):
    """A cosine notices twice the scale of one weight, and no two per cent."""
    source = full("tiny_siglip", tower)
    graph = quantise(source, tmp_path)
    model = onnx.load(tmp_path / graph.file)
    scale = next(t for t in model.graph.initializer if t.name == _products(model)[2][1].replace("quantized", "scale"))
    scale.CopyFrom(numpy_helper.from_array((numpy_helper.to_array(scale) * factor).astype(np.float32), scale.name))
    onnx.save(model, tmp_path / graph.file)
    with pytest.raises(RunFault, match=r"model_int8\.onnx: \S+_quantized .* steps away from the fp32 weights"):
        check_quantised(tmp_path / graph.file, graph.file, tmp_path / source.file)
