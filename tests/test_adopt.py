"""Other people's exports on the same bench: the same profile, and a clear end where they are not what they should be."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

import exports
from toy import edit_graph

from exporter import export, structure
from exporter.adopt import adopt
from lgip_ort.bundle import open_bundle
from lgip_ort.errors import RunFault, UsageFault
from models import zoo

KINDS = ("tiny_clip", "tiny_siglip")
LAYOUTS = {"optimum": exports.optimum, "transformers.js": exports.transformers_js}


def _adopt(folder, out, kind="tiny_clip", original="same", **options):
    known = exports.original(kind) if original == "same" else original
    return adopt(zoo.get(kind), folder, known, out=out, **options)


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    """The bundle of a layout and kind, one for all tests."""
    made = {}

    def get(layout, kind):
        if (layout, kind) not in made:
            made[layout, kind] = _adopt(LAYOUTS[layout](kind), tmp_path_factory.mktemp("adopted"), kind)[0]
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
        outcome = bench("compare", ours, run, "--json")
        found = outcome.json()
        assert min(found["embedding_cosine"].values()) > 0.99999 and found["max_ds"] < 1e-5
        assert (outcome.code, found["verdict"], found["sign_changes"]["n"]) == (0, "equal", 0)


def _refused(folder, out, match, fault=RunFault, **options):
    with pytest.raises(fault, match=match):
        _adopt(folder, out, **options)
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


def test_a_batch_that_is_only_said_to_be_fixed_is_freed(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_siglip"), tmp_path / "export")

    def fix(graph):
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1

    for tower in ("vision", "text"):
        edit_graph(folder / f"onnx/{tower}_model.onnx", fix)
    _, manifest = _adopt(folder, tmp_path / "out", "tiny_siglip")
    for graph in manifest.graphs:
        assert graph.inputs[0].shape[0] == "batch"
        assert "batch, fixed at 1, made symbolic" in manifest.check[graph.file]["edits"]
        assert manifest.check[graph.file]["batches_cosine_min"] > 0.99999


def test_weights_outside_the_folder_are_not_read(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_clip"), tmp_path / "export")
    path = folder / "onnx/text_model.onnx"
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="text.data", size_threshold=100)
    assert _adopt(folder, tmp_path / "inside")[1].check["onnx/text_model.onnx"]["cosine_min"] > 0.99999
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
    assert _adopt(folder, tmp_path / "out")[1].check["tokenizer"]["differences"] == 0


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


def test_without_an_original(tmp_path, bench):
    lines = []
    folder = exports.transformers_js("tiny_clip")
    path, manifest = _adopt(folder, tmp_path / "out", original=None, log=lines.append)
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


def test_without_an_original_a_tokenizer_is_needed(tmp_path):
    folder = exports.copy(exports.transformers_js("tiny_siglip"), tmp_path / "export")
    (folder / "tokenizer.json").unlink()
    message = r"tokenizer\.json is missing, and there is no original to take it from"
    _refused(folder, tmp_path / "out", message, UsageFault, kind="tiny_siglip", original=None)


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
    _, manifest = _adopt(folder, tmp_path / "out")
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
    path, manifest = _adopt(precise, tmp_path, log=lines.append)
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
    assert open_bundle(path).graph("text").precision == "fp16"


def test_a_precision_that_an_adopted_bundle_lacks(adopted):
    bundle = open_bundle(adopted("optimum", "tiny_clip"))
    with pytest.raises(
        UsageFault, match=r"precision fp32 found, int8 expected; the graphs are not ours \(adopted: optimum "
    ):
        bundle.graph("text", "int8")


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
    assert _adopt(folder, tmp_path / "out", precisions=["fp32"])[1].graphs[0].precision == "fp32"


def test_a_model_of_another_family(tmp_path):
    folder = exports.transformers_js("tiny_siglip")
    _refused(
        folder, tmp_path / "out", r"config\.json: model_type 'siglip' found, 'clip' expected of tiny_clip", UsageFault
    )


def test_exported_by_is_what_is_given(tmp_path):
    _, manifest = _adopt(exports.optimum("tiny_clip"), tmp_path, exported_by="somebody 1.0")
    assert manifest.exported_by == "somebody 1.0"
    assert dataclasses.asdict(open_bundle(tmp_path / "tiny_clip").manifest) == dataclasses.asdict(manifest)


def _invoke(*arguments):
    return CliRunner().invoke(export.app, list(map(str, arguments)))


def test_command(tmp_path):
    folder = exports.transformers_js("tiny_siglip")
    done = _invoke("--from-onnx", folder, "--model", "tiny_siglip", "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["status"] == "published" and said["manifest"]["exported_by"].startswith(f"adopted: {folder.name}")
    shown = " ".join(done.stderr.split())
    assert "transformers.js" in shown and "weights " + said["manifest"]["weights"]["sha256"][:12] in shown
    assert _invoke("--from-onnx", folder, "--model", "tiny_siglip", "--out", tmp_path).exit_code == 2  # it is there


def test_command_without_an_original(tmp_path):
    arguments = ("--from-onnx", exports.optimum("tiny_clip"), "--model", "tiny_clip", "--out", tmp_path)
    done = _invoke(*arguments, "--weights", "none")
    assert done.exit_code == 0 and "NOT VERIFIED: there is no original to compare with" in done.stderr
    done = _invoke(*arguments, "--weights", tmp_path / "nowhere", "--overwrite")
    assert done.exit_code == 2 and "--weights none adopts an export without a comparison" in done.stderr


def test_exit_code_of_an_export_that_is_not_the_model(tmp_path):
    folder = exports.transformers_js("tiny_clip", noise=0.05)
    done = _invoke("--from-onnx", folder, "--model", "tiny_clip", "--out", tmp_path)
    assert done.exit_code == 1 and "with the PyTorch original" in done.stderr and "nothing was published" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-onnx", "nowhere"], "nowhere: no such folder"),
        (["--from-onnx", "x", "--via", "optimum"], "--from-onnx and --via exclude each other"),
        (["--weights", "none"], "--weights none goes with --from-onnx"),
        (["--via", "nobody"], "nobody"),
    ],
)
def test_usage_errors(arguments, message, tmp_path):
    done = _invoke("--model", "tiny_clip", "--out", tmp_path, *arguments)
    assert done.exit_code == 2 and message in done.stderr
    assert not list(tmp_path.iterdir())
