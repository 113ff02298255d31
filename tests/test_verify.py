"""The check of a graph against its tower passes what is right and fails what is subtly wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
import onnx  # noqa: E402
from checkpoints import exported  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from exporter.inputs import original_images, original_text  # noqa: E402
from exporter.load import embed_ids, embed_images, load_original  # noqa: E402
from exporter.probes import CAPTIONS, SIZES, pictures  # noqa: E402
from exporter.verify import BATCHES, check_tower  # noqa: E402
from lgip_ort.bundle import open_bundle  # noqa: E402
from lgip_ort.errors import RunFault  # noqa: E402
from models import zoo  # noqa: E402


@pytest.fixture(scope="module")
def setups():
    """Per kind: the bundle, and per tower its inputs and the original's vectors."""
    made = {}
    for kind in ("tiny_clip", "tiny_siglip"):
        folder, weights = exported(kind)
        original = load_original(zoo.get(kind), weights)
        pixels, ids = original_images(original).pixels(pictures()), original_text(original).encode(CAPTIONS)
        images = embed_images(original, torch.from_numpy(pixels)).numpy()
        texts = embed_ids(original, torch.from_numpy(ids)).numpy()
        made[kind] = open_bundle(folder), {"vision": (pixels, images), "text": (ids, texts)}
    return made


def _check(setups, kind, tower, path=None, reference=None, **changes):
    bundle, rows = setups[kind]
    graph = dataclasses.replace(bundle.graph(tower), **changes)
    inputs, expected = rows[tower]
    text = bundle.manifest.text if tower == "text" else None
    return check_tower(path or bundle.path(graph.file), graph, inputs, reference or expected, text)


def _edited(setups, kind, tower, tmp_path, edit):
    bundle, _ = setups[kind]
    model = onnx.load(bundle.path(bundle.graph(tower).file))
    edit(model)
    onnx.save(model, tmp_path / "edited.onnx")
    return tmp_path / "edited.onnx"


def _scaled(factor, nth=0):
    def edit(model):
        matrices = [t for t in model.graph.initializer if len(t.dims) == 2 and t.data_type == onnx.TensorProto.FLOAT16]
        tensor = max(matrices, key=lambda t: np.prod(t.dims)) if nth is None else matrices[nth]
        array = numpy_helper.to_array(tensor).copy()
        array[: len(array) // 2] = array[: len(array) // 2] * factor
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    return edit


def test_there_are_as_many_probes_as_the_batches_hold():
    assert len(CAPTIONS) == len(SIZES) == sum(BATCHES)


@pytest.mark.parametrize("kind", ["tiny_clip", "tiny_siglip"])
@pytest.mark.parametrize("tower", ["vision", "text"])
def test_the_published_graph_passes(kind, tower, setups):
    measured = _check(setups, kind, tower)
    assert measured["rows"] == 7 and 0.9999 <= measured["cosine_min"] <= 1
    assert ("lengths_cosine_min" in measured) == (kind == "tiny_clip" and tower == "text")


@pytest.mark.parametrize(("kind", "tower"), [("tiny_clip", "vision"), ("tiny_siglip", "text")])
def test_a_disturbed_weight_fails(kind, tower, setups, tmp_path):
    path = _edited(setups, kind, tower, tmp_path, _scaled(1.5, nth=3))
    with pytest.raises(RunFault, match=r"onnx/.*cosine.*found, at least .* expected"):
        _check(setups, kind, tower, path)


def test_a_graph_that_ignores_its_input_fails(setups, tmp_path):
    """All rows equal to the mean of the right ones: where vectors lie close together plain cosine hardly sees it."""
    bundle, rows = setups["tiny_siglip"]
    ids, texts = rows["text"]
    close = texts * 0.01 + texts.mean(0) / np.linalg.norm(texts.mean(0))
    close = (close / np.linalg.norm(close, axis=1, keepdims=True)).astype(np.float32)
    mean = close.mean(0) / np.linalg.norm(close.mean(0))

    def edit(model):
        del model.graph.node[:]
        zero = numpy_helper.from_array(np.array([0.0], np.float32), "zero")
        vector = numpy_helper.from_array(mean[None].astype(np.float32), "vector")
        del model.graph.initializer[:]
        model.graph.initializer.extend([zero, vector])
        make = onnx.helper.make_node
        model.graph.node.extend(
            [
                make("Cast", ["input_ids"], ["f"], to=onnx.TensorProto.FLOAT),
                make("ReduceMax", ["f"], ["m"], axes=None, keepdims=1),
                make("Slice", ["f", "a", "b", "c"], ["s"]),
                make("Mul", ["s", "zero"], ["z"]),
                make("Add", ["z", "vector"], ["text_embeds"]),
            ]
        )
        for name, value in (("a", 0), ("b", 1), ("c", 1)):
            model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
        del model.graph.node[1]

    path = _edited(setups, "tiny_siglip", "text", tmp_path, edit)
    graph = bundle.graph("text")
    with pytest.raises(RunFault, match="mean taken off"):
        check_tower(path, graph, ids, close, bundle.manifest.text)


def test_vectors_of_another_length_fail(setups, tmp_path):
    def edit(model):
        divide = next(n for n in model.graph.node if n.op_type == "Div" and n.output[0] == "text_embeds")
        divide.op_type = "Mul"

    with pytest.raises(RunFault, match="error of a row's norm"):
        _check(setups, "tiny_clip", "text", _edited(setups, "tiny_clip", "text", tmp_path, edit))


def test_a_nan_fails(setups, tmp_path):
    def edit(model):
        tensor = next(
            t for t in model.graph.initializer if len(t.dims) == 1 and t.data_type == onnx.TensorProto.FLOAT16
        )
        array = numpy_helper.to_array(tensor).copy()
        array[:] = np.nan
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    with pytest.raises(RunFault, match="finite float32"):
        _check(setups, "tiny_clip", "vision", _edited(setups, "tiny_clip", "vision", tmp_path, edit))


def test_fp16_does_not_pass_for_fp32(setups):
    with pytest.raises(RunFault, match=r"at least 0\.99999"):
        bundle, rows = setups["tiny_clip"]
        ids, texts = rows["text"]
        noisy = texts + np.random.default_rng(0).normal(0, 2e-3, texts.shape).astype(np.float32)
        graph = dataclasses.replace(bundle.graph("text"), precision="fp32")
        check_tower(bundle.path(graph.file), graph, ids, noisy, bundle.manifest.text)


def test_text_that_feels_its_padding_fails_where_any_length_is_claimed(setups):
    """SigLIP's text tower, published as if it were exact at any length."""
    bundle, rows = setups["tiny_siglip"]
    ids, texts = rows["text"]
    claimed = dataclasses.replace(bundle.manifest.text, lengths="any")
    with pytest.raises(RunFault, match=r"(?s)can.t run on int64 \(1, 1\).*Expected: 24"):
        check_tower(bundle.path(bundle.graph("text").file), bundle.graph("text"), ids, texts, claimed)


def test_a_graph_that_does_not_load_is_named(setups, tmp_path):
    (tmp_path / "edited.onnx").write_bytes(b"no graph")
    with pytest.raises(RunFault, match=r"onnx/text_model_fp16\.onnx: ONNX Runtime can't load it"):
        _check(setups, "tiny_clip", "text", tmp_path / "edited.onnx")
