"""Other people's exports on the same bench: what is published, and that it has the same profile."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

import exports
from made import wide_margins
from toy import edit_graph

from exporter import structure
from exporter.adopt import adopt
from lgip_ort.bundle import open_bundle
from lgip_ort.errors import RunFault, UsageFault
from models import zoo

KINDS = ("tiny_clip", "tiny_siglip")
LAYOUTS = {"optimum": exports.optimum, "transformers.js": exports.transformers_js}


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    """The bundle of a layout and kind, one for all tests."""
    made = {}

    def get(layout, kind):
        if (layout, kind) not in made:
            made[layout, kind] = exports.adopt_demo(LAYOUTS[layout](kind), tmp_path_factory.mktemp("adopted"), kind)[0]
        return made[layout, kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_manifest(layout, kind, adopted):
    manifest = open_bundle(adopted(layout, kind)).manifest
    assert [(g.tower, g.precision, g.file) for g in manifest.graphs] == [
        ("vision", "fp32", "onnx/vision_model.onnx"),
        ("text", "fp32", "onnx/text_model.onnx"),
    ]
    assert manifest.weights == exports.original(kind).weights
    assert manifest.exported_by.startswith(f"adopted: {LAYOUTS[layout](kind).name} (pytorch ")
    assert manifest.graphs[0].opset == (18 if layout == "optimum" else 17)
    assert manifest.text.lengths == ("any" if kind == "tiny_clip" else "trained")
    assert manifest.check["tokenizer"]["differences"] == manifest.check["pixels_max_diff"] == 0
    for graph in manifest.graphs:
        check = manifest.check[graph.file]
        assert check["cosine_min"] > 0.99999 and check["centred_cosine_min"] > 0.9999
        done = {edit.split(" ")[0] for edit in check["edits"]}
        renamed = {"output"} if (layout, kind) == ("transformers.js", "tiny_siglip") else set()
        mask = {"attention_mask:"} if graph.tower == "text" and (layout, kind) != ("optimum", "tiny_siglip") else set()
        assert done == {"cut", *({"normalised"} if layout == "transformers.js" else ()), *renamed, *mask}
    for file in ("config.json", "tokenizer.json", "preprocessor_config.json"):
        assert file in manifest.files


def test_files_that_come_along_are_theirs(adopted):
    bundle, folder = adopted("transformers.js", "tiny_clip"), exports.transformers_js("tiny_clip")
    assert (bundle / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    ours, theirs = (json.loads((place / "config.json").read_text()) for place in (bundle, folder))
    assert ours == {k: v for k, v in theirs.items() if k not in ("_name_or_path", "transformers_version")}
    saved = onnx.load(bundle / "onnx/text_model.onnx")
    found = {t.name: t.raw_data for t in onnx.load(folder / "onnx/text_model.onnx").graph.initializer}
    weights = [t for t in saved.graph.initializer if np.prod(t.dims) > 100]
    assert len(weights) > 10 and all(found[t.name] == t.raw_data for t in weights)


@pytest.mark.parametrize("kind", KINDS)
def test_profile_is_that_of_our_own_export(kind, adopted, bench, tmp_path):
    from exporter.publish import export_model

    own, _ = export_model(zoo.get(kind), precisions=("fp32",), out=tmp_path)
    bundles = (own, *(adopted(layout, kind) for layout in LAYOUTS))
    ours, *theirs = (bench("--bundle", path, "--limit", 100, "--json").json()["run"] for path in bundles)
    for run in theirs:
        outcome = bench("compare", ours, run, "--margins", wide_margins(tmp_path), "--json")
        found = outcome.json()
        assert min(found["embedding_cosine"].values()) > 0.99999 and found["max_ds"] < 1e-5
        assert (outcome.code, found["verdict"], found["sign_changes"]["n"]) == (0, "equal", 0)


def test_a_batch_that_is_only_said_to_be_fixed_is_freed(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_siglip"), tmp_path / "export")

    def fix(graph):
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1

    for tower in ("vision", "text"):
        edit_graph(folder / f"onnx/{tower}_model.onnx", fix)
    _, manifest = exports.adopt_demo(folder, tmp_path / "out", "tiny_siglip")
    for graph in manifest.graphs:
        assert graph.inputs[0].shape[0] == "batch"
        assert "batch, fixed at 1, made symbolic" in manifest.check[graph.file]["edits"]
        assert manifest.check[graph.file]["batches_cosine_min"] > 0.99999


def test_without_an_original(tmp_path, bench):
    lines = []
    folder = exports.transformers_js("tiny_clip")
    path, manifest = exports.adopt_demo(folder, tmp_path / "out", known=None, log=lines.append)
    assert any("NOT VERIFIED: there is no original to compare with" in line for line in lines)
    assert manifest.check["original"] == "not compared"
    assert (manifest.weights.source, manifest.weights.name) == ("unknown", f"adopted from {folder.resolve()}")
    assert len(manifest.weights.sha256) == 64
    for graph in manifest.graphs:
        assert (
            "cosine_min" not in manifest.check[graph.file]
            and manifest.check[graph.file]["batches_cosine_min"] > 0.99999
        )
    text = open_bundle(path).manifest.text
    end = exports.original("tiny_clip").model.config.text_config.eos_token_id
    assert (text.pad_id, text.eot_id, text.lengths, text.clean) == (end, end, "any", [])
    outcome = bench("--bundle", path, "--limit", 3)
    assert outcome.code == 0 and f"bundle {path}, {manifest.exported_by}" in outcome.err.replace("\n", "")
    outcome = bench("--bundle", path, "--limit", 3, "--engine", "both")
    assert outcome.code == 2 and "no PyTorch original" in outcome.err


def test_operators_of_onnx_runtime_are_accepted_and_listed(tmp_path):
    """A graph that ONNX Runtime has optimised offline, as people ship them."""
    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path / "export")
    for tower in ("vision", "text"):
        path = folder / f"onnx/{tower}_model.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        (tmp_path / "optimised.onnx").replace(path)
    _, manifest = exports.adopt_demo(folder, tmp_path / "out")
    for graph in manifest.graphs:
        assert any(name.startswith("com.microsoft::") for name in manifest.check[graph.file]["operators"])


def test_operators_of_others_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "FOREIGN_DOMAINS", structure.DOMAINS)
    with pytest.raises(RunFault, match=r"operators of domain 'com\.microsoft' found"):
        test_operators_of_onnx_runtime_are_accepted_and_listed(tmp_path)


def test_two_plain_files_of_open_clip(tmp_path):
    folder, original = exports.two_files(), exports.open_clip()
    _, manifest = adopt(original.spec, folder, original, out=tmp_path)
    assert manifest.library == "open_clip" and manifest.text.clean == ["ftfy", "html"] and manifest.text.pad_id == 0
    vision, text = (manifest.check[graph.file]["edits"] for graph in manifest.graphs)
    assert vision == ["input image -> pixel_values", "output embedding -> image_embeds", "normalised"]
    assert text == [
        "input text -> input_ids",
        "input_ids int64 -> int32",
        "output embedding -> text_embeds",
        "normalised",
    ]
    assert manifest.graphs[1].inputs[0].shape == ["batch", 77] and manifest.text.lengths == "trained"
    constants = [n.attribute[0].t for n in onnx.load(folder / "text.onnx").graph.node if n.op_type == "Constant"]
    assert any(np.isneginf(numpy_helper.to_array(t)).any() for t in constants), "the mask that no graph of ours holds"


@pytest.fixture(scope="module")
def precise(tmp_path_factory):
    """transformers.js' folder in three precisions, made by the tools that its own script uses, and one more in 4 bits."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.float16 import convert_float_to_float16

    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path_factory.mktemp("precise") / "export")
    for tower in ("vision", "text"):
        path = folder / f"onnx/{tower}_model.onnx"
        half = convert_float_to_float16(onnx.load(path), keep_io_types=True)
        onnx.save(half, folder / f"onnx/{tower}_model_fp16.onnx")
        quantize_dynamic(
            path,
            folder / f"onnx/{tower}_model_quantized.onnx",
            weight_type=QuantType.QUInt8,
            op_types_to_quantize=["MatMul"],
        )
        (folder / f"onnx/{tower}_model_q4.onnx").touch()
    return folder


def test_every_precision_of_a_folder(precise, tmp_path):
    lines = []
    path, manifest = exports.adopt_demo(precise, tmp_path, log=lines.append)
    found = {(g.tower, g.precision): g.file for g in manifest.graphs}
    assert found == {
        (tower, precision): f"onnx/{tower}_model{suffix}.onnx"
        for tower in ("vision", "text")
        for precision, suffix in (("fp32", ""), ("fp16", "_fp16"), ("int8", "_int8"))
    }
    assert manifest.check[found["text", "int8"]]["from"] == "onnx/text_model_quantized.onnx"
    assert manifest.check[found["text", "fp16"]]["fp16_share"] > 0.95
    assert set(manifest.check["limits"]) == {"fp32", "fp16", "int8"}
    size = {key: (path / file).stat().st_size for key, file in found.items()}
    assert size["vision", "fp32"] > 1.8 * size["vision", "fp16"] > 1.5 * size["vision", "int8"]
    assert sum("q4 is none of" in line for line in lines) == 2
    (precise / "onnx/vision_model_quantized.onnx").write_bytes(b"damaged")  # what is not asked for is not opened
    _, manifest = exports.adopt_demo(precise, tmp_path / "half", precisions=["fp16"], log=lines.append)
    assert [graph.precision for graph in manifest.graphs] == ["fp16", "fp16"]
    assert any("vision_model.onnx: passed over, fp32 is not asked for" in line for line in lines)
    assert open_bundle(path).graph("text").precision == "fp16"


def test_a_precision_that_an_adopted_bundle_lacks(adopted):
    bundle = open_bundle(adopted("optimum", "tiny_clip"))
    with pytest.raises(
        UsageFault, match=r"precision fp32 found, int8 expected; the graphs are not ours \(adopted: optimum "
    ):
        bundle.graph("text", "int8")


def test_exported_by_is_what_is_given(tmp_path):
    _, manifest = exports.adopt_demo(exports.optimum("tiny_clip"), tmp_path, exported_by="somebody 1.0")
    assert manifest.exported_by == "somebody 1.0"
    assert dataclasses.asdict(open_bundle(tmp_path / "tiny_clip").manifest) == dataclasses.asdict(manifest)
