"""The check of a graph against its tower passes what is right and fails what is subtly wrong."""

from __future__ import annotations

import dataclasses
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
import onnx  # noqa: E402
from checkpoints import exported  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from exporter import verify  # noqa: E402
from exporter.inputs import original_images, original_text  # noqa: E402
from exporter.load import embed_ids, embed_images, load_original  # noqa: E402
from exporter.probes import CAPTIONS, SIZES, pictures  # noqa: E402
from exporter.verify import BATCHES, COSINE, SAME_GRAPH, check_tower, half  # noqa: E402
from lgip_ort.bundle import PRECISIONS, open_bundle  # noqa: E402
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


def _check(setups, kind, tower, path=None, reference=None, precision=None):
    bundle, rows = setups[kind]
    graph = bundle.graph(tower, precision)
    inputs, expected = rows[tower]
    text = bundle.manifest.text if tower == "text" else None
    return check_tower(path or bundle.path(graph.file), graph, inputs, reference or expected, text)


def _other(setups, kind):
    """The setups of a bundle of the same weights in every precision."""
    return {kind: (open_bundle(exported(kind, *PRECISIONS)[0]), setups[kind][1])}


def _edited(setups, kind, tower, tmp_path, edit, precision=None):
    bundle, _ = setups[kind]
    model = onnx.load(bundle.path(bundle.graph(tower, precision).file))
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
    with pytest.raises(RunFault, match=r"cosine of a text at its own length with the same padded: .* found"):
        check_tower(bundle.path(bundle.graph("text").file), bundle.graph("text"), ids, texts, claimed)


def test_siglip_is_held_to_the_original_at_another_length(setups, tmp_path):
    """A graph that pads short texts up to the trained length is right there and nowhere else."""
    bundle, rows = setups["tiny_siglip"]
    ids, texts = rows["text"]
    original = load_original(zoo.get("tiny_siglip"), exported("tiny_siglip")[1])
    shorter = embed_ids(original, torch.from_numpy(half(ids))).numpy()
    assert half(ids).shape == (7, 12)
    graph, text = bundle.graph("text"), bundle.manifest.text
    assert bundle.manifest.check["onnx/text_model_fp16.onnx"]["half_cosine_min"] >= 0.9999
    measured = check_tower(bundle.path(graph.file), graph, ids, texts, text, shorter)
    assert measured["half_cosine_min"] >= 0.9999

    def edit(model):
        tensors = {
            "length": np.array(24),
            "one": np.array(1),
            "none": np.array([0, 0, 0]),
            "pad": np.array(text.pad_id),
            "flat": np.array([1]),
        }
        model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.int64), n) for n, v in tensors.items())
        for node in model.graph.node:
            node.input[:] = ["padded_ids" if name == "input_ids" else name for name in node.input]
        make = onnx.helper.make_node
        nodes = [
            make("Shape", ["input_ids"], ["size"]),
            make("Gather", ["size", "one"], ["found"]),
            make("Sub", ["length", "found"], ["missing"]),
            make("Reshape", ["missing", "flat"], ["missing_1d"]),
            make("Concat", ["none", "missing_1d"], ["pads"], axis=0),
            make("Pad", ["input_ids", "pads", "pad"], ["padded_ids"]),
        ]
        for i, node in enumerate(nodes):
            model.graph.node.insert(i, node)

    path = _edited(setups, "tiny_siglip", "text", tmp_path, edit)
    with pytest.raises(RunFault, match=r"cosine with the PyTorch original at half of the length: .* found"):
        check_tower(path, graph, ids, texts, text, shorter)


def test_a_graph_that_does_not_load_is_named(setups, tmp_path):
    (tmp_path / "edited.onnx").write_bytes(b"no graph")
    with pytest.raises(RunFault, match=r"onnx/text_model_fp16\.onnx: ONNX Runtime can't load it"):
        _check(setups, "tiny_clip", "text", tmp_path / "edited.onnx")


@pytest.mark.parametrize("kind", ["tiny_clip", "tiny_siglip"])
@pytest.mark.parametrize("tower", ["vision", "text"])
def test_int8_is_coarse_and_passes(kind, tower, setups):
    measured = _check(_other(setups, kind), kind, tower, precision="int8")
    assert COSINE["int8"] < measured["cosine_min"] < COSINE["fp32"]
    assert measured["batches_cosine_min"] > SAME_GRAPH["int8"]


def _doubled(nth):
    """The scale of the `nth` quantised weight, twice as large."""

    def edit(model):
        scale = [t for t in model.graph.initializer if t.name.endswith("_scale")][nth]
        scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(2), scale.name))

    return edit


@pytest.mark.parametrize(("kind", "tower", "nth"), [("tiny_clip", "vision", 3), ("tiny_siglip", "text", 3)])
def test_a_scale_twice_too_large_fails(kind, tower, nth, setups, tmp_path):
    path = _edited(_other(setups, kind), kind, tower, tmp_path, _doubled(nth), "int8")
    with pytest.raises(RunFault, match=r"onnx/\w+_int8\.onnx: cosine .* found, at least 0\.9\d expected"):
        _check(_other(setups, kind), kind, tower, path, precision="int8")


def test_what_was_quantised_to_three_bits_fails(setups, tmp_path):
    def edit(model):
        for tensor in model.graph.initializer:
            if tensor.name.endswith("_quantized"):
                array = numpy_helper.to_array(tensor).astype(np.int32)
                coarse = (array / 32).round() * 32
                tensor.CopyFrom(numpy_helper.from_array(coarse.astype(np.int8), tensor.name))

    path = _edited(_other(setups, "tiny_siglip"), "tiny_siglip", "text", tmp_path, edit, "int8")
    with pytest.raises(RunFault, match=r"text_model_int8\.onnx: cosine"):
        _check(_other(setups, "tiny_siglip"), "tiny_siglip", "text", path, precision="int8")


@pytest.mark.parametrize("precision", ["fp16", "fp32", "int8"])
def test_every_level_is_run_in_turn(precision, setups, monkeypatch):
    """One session at a time: a large graph's weights are in memory once."""
    levels, alive, honest = [], weakref.WeakSet(), verify._session

    def watched(path, label, level="ORT_ENABLE_ALL"):
        assert not alive
        session = honest(path, label, level)
        alive.add(session)
        levels.append(level)
        return session

    monkeypatch.setattr(verify, "_session", watched)
    measured = _check(_other(setups, "tiny_clip"), "tiny_clip", "vision", precision=precision)
    assert levels == ["ORT_ENABLE_ALL", "ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"]
    assert measured["levels_cosine_min"] >= SAME_GRAPH[precision]


@pytest.mark.parametrize("level", verify.LEVELS)
def test_a_level_that_computes_something_else_fails(level, setups, monkeypatch):
    honest = verify._run
    wrong = weakref.WeakSet()
    opened = verify._session

    def session(path, label, asked="ORT_ENABLE_ALL"):
        made = opened(path, label, asked)
        if asked == level:
            wrong.add(made)
        return made

    monkeypatch.setattr(verify, "_session", session)
    monkeypatch.setattr(verify, "_run", lambda s, g, x: honest(s, g, x)[::-1] if s in wrong else honest(s, g, x))
    with pytest.raises(RunFault, match=rf"cosine at {level} with the optimised graph: .* at least 0\.9999 expected"):
        _check(setups, "tiny_clip", "vision")
