"""Exports that are not what they should be: each ends with what was found and what was expected, and leaves nothing."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

import exports
from toy import edit_graph

from lgip_ort.errors import RunFault, UsageFault


def _refused(folder, out, match, fault=RunFault, **options):
    with pytest.raises(fault, match=match):
        exports.adopt_demo(folder, out, **options)
    assert not list(out.iterdir()) if out.exists() else True


def test_other_weights_are_refused(tmp_path):
    """A graph in good order, of the same architecture and tokenizer, of weights that are a little off."""
    folder = exports.transformers_js("tiny_clip", noise=0.05)
    _refused(
        folder,
        tmp_path,
        r"vision_model\.onnx: cosine of row \d with the PyTorch original: .* at least 0\.99999 expected",
    )


def _outputs(folder, tower, *names, **renamed):
    """Keep only the outputs `names` of a graph, some of them under another name."""

    def edit(graph):
        kept = [value for value in graph.output if value.name in names]
        del graph.output[:]
        graph.output.extend(kept)
        for value in graph.output:
            if value.name in renamed:
                graph.node.append(helper.make_node("Identity", [value.name], [renamed[value.name]]))
                value.name = renamed[value.name]

    edit_graph(folder / f"onnx/{tower}_model.onnx", edit)


def test_a_missing_projection_is_named(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path / "export")
    _outputs(folder, "text", "text_embeds", "last_hidden_state", text_embeds="pooler_output")
    _refused(
        folder,
        tmp_path / "out",
        r"text_model\.onnx: outputs .*pooler_output.*text_embeds expected: the projection is missing",
    )


def test_rows_alone_are_no_embedding(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_siglip"), tmp_path / "export")
    _outputs(folder, "vision", "last_hidden_state")
    message = r"vision_model\.onnx: outputs last_hidden_state found.*does not say how its rows are pooled"
    _refused(folder, tmp_path / "out", message, kind="tiny_siglip")


def test_a_batch_that_is_built_in_is_named(tmp_path):
    folder = exports.transformers_js("tiny_clip", batch=1)
    _refused(folder, tmp_path / "out", r"(vision|text)_model\.onnx: batch fixed at 1 found, any batch expected")


def test_weights_outside_the_folder_are_not_read(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path / "export")
    path = folder / "onnx/text_model.onnx"
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="text.data", size_threshold=100)
    assert exports.adopt_demo(folder, tmp_path / "inside")[1].check["onnx/text_model.onnx"]["cosine_min"] > 0.99999
    (folder / "onnx/text.data").rename(folder / "x")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../x" if entry.key == "location" else entry.value
    path.write_bytes(model.SerializeToString())
    _refused(
        folder, tmp_path / "out", r"text_model\.onnx: tensor .* lies in '\.\./x', a file beside the graph", UsageFault
    )


def test_ids_as_floats_are_refused(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path / "export")

    def through_floats(graph):
        (argmax,) = (node for node in graph.node if node.op_type == "ArgMax")
        at = list(graph.node).index(argmax)
        graph.node.insert(
            at, helper.make_node("Cast", [argmax.input[0]], ["as_float"], "to_float", to=TensorProto.FLOAT16)
        )
        argmax.input[0] = "as_float"

    edit_graph(folder / "onnx/text_model.onnx", through_floats)
    _refused(folder, tmp_path / "out", "to_float, above .*ArgMax.*casts token ids to a float")


def test_another_tokenizer_is_found(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path / "export")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None  # capitals stay
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    _refused(
        folder,
        tmp_path / "out",
        r"(?s)tokenizer: .*found .*expected .*a folder without a tokenizer\.json gets the original's",
    )
    (folder / "tokenizer.json").unlink()
    assert exports.adopt_demo(folder, tmp_path / "out")[1].check["tokenizer"]["differences"] == 0


def test_other_preprocessing_is_found(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path / "export")
    config = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**config, "image_mean": [0.4, 0.5, 0.5]}))
    _refused(
        folder,
        tmp_path / "out",
        r"(?s)preprocessing: .* pixels differ .*a folder without a preprocessor_config\.json gets",
    )
    (folder / "preprocessor_config.json").write_text(
        json.dumps({**config, "crop_size": 32, "size": {"shortest_edge": 32}})
    )
    _refused(folder, tmp_path / "out", r"preprocessor_config\.json: 32 px found, 64 px expected of tiny_clip")


def test_without_an_original_a_tokenizer_is_needed(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_siglip"), tmp_path / "export")
    (folder / "tokenizer.json").unlink()
    message = r"tokenizer\.json is missing, and there is no original to take it from"
    _refused(folder, tmp_path / "out", message, UsageFault, kind="tiny_siglip", known=None)


def test_towers_of_two_precisions(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path / "export")

    def halve(graph):
        for tensor in graph.initializer:
            if tensor.data_type == TensorProto.FLOAT:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))

    edit_graph(folder / "onnx/text_model.onnx", halve)
    _refused(
        folder, tmp_path / "out", r"vision_model\.onnx in fp32 and onnx/text_model\.onnx in fp16 found, one expected"
    )


def test_a_name_that_promises_another_precision(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path / "export")
    for tower in ("vision", "text"):
        (folder / f"onnx/{tower}_model.onnx").rename(folder / f"onnx/{tower}_model_fp16.onnx")
    _refused(folder, tmp_path / "out", r"vision_model_fp16\.onnx: fp32 weights found, fp16 expected of its name")


def test_only_the_precisions_that_are_asked_for(tmp_path):
    folder = exports.transformers_js("tiny_clip")
    _refused(folder, tmp_path / "out", "no graphs in fp16 found", UsageFault, precisions=["fp16"])
    assert exports.adopt_demo(folder, tmp_path / "out", precisions=["fp32"])[1].graphs[0].precision == "fp32"


def test_a_model_of_another_family(tmp_path):
    folder = exports.transformers_js("tiny_siglip")
    _refused(
        folder, tmp_path / "out", r"config\.json: model_type 'siglip' found, 'clip' expected of tiny_clip", UsageFault
    )
