"""The command: exit codes, what it prints where, what it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from models import zoo

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, str(ROOT / "exporter/export.py")]


def run(*arguments, **environment):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )


def test_help_and_list_come_at_once_and_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    began = time.perf_counter()
    shown, listed = (run(option, PYTHONPATH=str(tmp_path)) for option in ("--help", "--list"))
    assert time.perf_counter() - began < 10
    assert shown.returncode == listed.returncode == 0
    assert "--weights" in shown.stdout and "--precision" in shown.stdout
    for key in zoo.load():
        assert key in listed.stdout and zoo.get(key).name in listed.stdout  # nothing is cut in a pipe
    assert "\x1b[" not in listed.stdout and listed.stderr == ""


def test_list_as_json_is_the_zoo():
    listed = json.loads(run("--list", "--json").stdout)
    assert [entry["key"] for entry in listed] == list(zoo.load())
    assert {entry["library"] for entry in listed} == {"open_clip", "transformers"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "siglip_bas"], "did you mean 'siglip_base'?"),
        ([], "--model KEY expected"),
        (["--model", "tiny_clip", "--precision", "fp8"], "fp8"),
    ],
)
def test_usage_errors(arguments, message, tmp_path):
    done = run(*arguments, "--out", tmp_path)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_bundle_that_is_there_is_not_replaced(tmp_path):
    (tmp_path / "tiny_clip").mkdir()
    done = run("--model", "tiny_clip", "--out", tmp_path)
    assert done.returncode == 2 and "exists; --overwrite replaces it" in done.stderr
    assert not list((tmp_path / "tiny_clip").iterdir())


pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from checkpoints import clip_folder, exported, open_clip_spec, random_spec, siglip_folder  # noqa: E402

from exporter import convert, export, hub, publish  # noqa: E402
from lgip_ort.bundle import PRECISIONS, open_bundle  # noqa: E402
from lgip_ort.errors import RunFault, UsageFault  # noqa: E402


@pytest.mark.parametrize("key", ["siglip_base", "clip_vit_b16"])
def test_a_hub_out_of_reach_ends_soon_and_says_what_to_do(key, tmp_path):
    began = time.perf_counter()
    # Port 9 of this machine answers nobody: what a machine without a network meets, at any place.
    done = run(
        "--model", key, "--out", tmp_path / "out", HF_HOME=str(tmp_path / "hf"), HF_ENDPOINT="http://127.0.0.1:9"
    )
    assert time.perf_counter() - began < 60
    assert done.returncode == 2, done.stderr
    for hint in ("HF_HOME", "--weights PATH", "--weights random"):
        assert hint in done.stderr
    assert "Traceback" not in done.stderr and not list((tmp_path / "out").iterdir())


def test_the_cache_is_enough_and_its_commit_is_recorded(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--someone--toy"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text(commit)
    siglip_folder(repo / "snapshots" / commit)
    spec = dataclasses.replace(zoo.get("tiny_siglip"), weights="hub", name="someone/toy")
    from exporter.load import load_original

    original = load_original(spec, "hub")
    assert dataclasses.astuple(original.weights)[:3] == ("hub", "someone/toy", commit)
    (repo / "snapshots" / commit / "model.safetensors").unlink()
    with pytest.raises(UsageFault, match=r"no model\.safetensors"):
        load_original(spec, "hub")
    with pytest.raises(UsageFault, match="nobody/nothing is neither in the cache"):
        hub.snapshot("nobody/nothing", ["*.json"])


def _invoke(*arguments):
    return CliRunner().invoke(export.app, list(map(str, arguments)))


def test_export_to_a_bundle_that_opens(tmp_path):
    weights = clip_folder(tmp_path / "weights")
    done = _invoke("--model", "tiny_clip", "--weights", weights, "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["status"] == "published" and said["folder"] == str(tmp_path / "out/tiny_clip")
    bundle = open_bundle(tmp_path / "out/tiny_clip")
    manifest = bundle.manifest
    assert said["manifest"] == json.loads((bundle.folder / "manifest.json").read_text())
    assert sorted(p.relative_to(bundle.folder).as_posix() for p in bundle.folder.rglob("*") if p.is_file()) == [
        "activations.json",
        "config.json",
        "manifest.json",
        "onnx/text_model_fp16.onnx",
        "onnx/vision_model_fp16.onnx",
        "preprocessor_config.json",
        "tokenizer.json",
    ]
    assert (manifest.weights.source, manifest.weights.name) == ("path", str(weights.resolve()))
    assert manifest.check["tokenizer"]["differences"] == manifest.check["pixels_max_diff"] == 0
    assert manifest.check["onnx/vision_model_fp16.onnx"]["cosine_min"] > 0.9999 and manifest.text.lengths == "any"
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["tiny_clip"], "no temporary folder is left"
    assert " s  " in done.stderr and "published" in done.stderr


def test_the_data_that_an_export_is_checked_on(coco, tmp_path):
    weights = clip_folder(tmp_path / "weights")
    arguments = ("--model", "tiny_clip", "--weights", weights, "--out", tmp_path / "out")
    done = _invoke(*arguments, "--data", f"coco:{coco}:val")
    assert done.exit_code == 0, done.output
    check = open_bundle(tmp_path / "out/tiny_clip").manifest.check
    assert check["data"] == {"name": "coco-val", "captions": check["data"]["captions"], "images": 40}
    assert check["tokenizer"]["captions"] > check["data"]["captions"] > 0, "and the odd ones"
    assert f"to be checked on {check['data']['captions']} captions and 40 images of coco-val" in done.stderr
    missing = _invoke(*arguments, "--overwrite", "--data", f"coco:{tmp_path}")
    assert missing.exit_code == 2 and "name a split" in missing.stderr


def test_preprocessor_config_opens_in_transformers():
    from exporter.inputs import pil_processor

    for kind, family in (("tiny_clip", "CLIP"), ("tiny_siglip", "Siglip")):
        folder = exported(kind)[0]
        processor = pil_processor(family).from_pretrained(folder)
        assert dict(processor.size).get("shortest_edge" if family == "CLIP" else "height") == 64
        assert json.loads((folder / "config.json").read_text()).get("_name_or_path") is None


NAMES = ["onnx/vision_model_fp16.onnx", "onnx/vision_model.onnx", "onnx/vision_model_int8.onnx"]
NAMES += [name.replace("vision", "text") for name in NAMES]


def _named(manifest, precision):
    return [graph.file for graph in manifest.graphs if graph.precision == precision]


def test_three_precisions_in_one_bundle():
    bundle = open_bundle(exported("open_clip", *PRECISIONS)[0])
    manifest = bundle.manifest
    assert [graph.file for graph in manifest.graphs] == NAMES
    assert sorted(p.relative_to(bundle.folder).as_posix() for p in bundle.path("onnx").iterdir()) == sorted(NAMES)
    assert set(NAMES) < set(manifest.files) and bundle.precisions == list(PRECISIONS)
    assert all(manifest.check[name]["rows"] == 7 for name in NAMES)
    assert list(manifest.check["limits"]) == list(PRECISIONS)
    full = [graph for graph in manifest.graphs if graph.precision == "fp32"]
    assert [graph.fp32 for graph in full] == [[], []]
    assert manifest.check["onnx/text_model.onnx"]["max_abs_diff"] < 1e-5
    assert manifest.text.clean == ["ftfy", "html"] and manifest.image.convert == "after"


def test_a_precision_is_the_same_bytes_with_and_without_others():
    """fp16 changes the tower in place and int8 is made of another graph: neither may touch what others are made of."""
    alone = {precision: open_bundle(exported("open_clip", precision)[0]).manifest for precision in ("fp32", "int8")}
    alone["fp16"] = open_bundle(exported("open_clip")[0]).manifest
    together = open_bundle(exported("open_clip", *PRECISIONS)[0]).manifest
    for precision, manifest in alone.items():
        assert _named(manifest, precision) == _named(together, precision)
        for name in _named(manifest, precision):
            assert manifest.files[name] == together.files[name]


def test_fp32_that_int8_is_made_of_does_not_stay():
    bundle = open_bundle(exported("open_clip", "int8")[0])
    files = sorted(path.name for path in bundle.path("onnx").iterdir())
    assert files == ["text_model_int8.onnx", "vision_model_int8.onnx"]
    assert [graph.precision for graph in bundle.manifest.graphs] == ["int8", "int8"]
    assert not {"onnx/vision_model.onnx", "onnx/text_model.onnx"} & (
        set(bundle.manifest.files) | set(bundle.manifest.check)
    )


def test_precisions_of_the_command(tmp_path, monkeypatch):
    asked = []

    def fail(spec, weights, precisions, *_, **__):
        asked.append(precisions)
        raise RunFault("asked")

    monkeypatch.setattr(publish, "export_model", fail)
    for options in ([], ["int8"], ["int8", "fp16", "int8"]):
        words = [word for precision in options for word in ("--precision", precision)]
        assert _invoke("--model", "tiny_clip", "--out", tmp_path, *words).exit_code == 1
    assert asked == [["fp16"], ["int8"], ["int8", "fp16"]]


def test_random_weights_are_marked(tmp_path, monkeypatch):
    known = {**zoo.load(), "tiny_siglip": random_spec()}
    monkeypatch.setattr(zoo, "load", lambda: known)
    done = _invoke("--model", "tiny_siglip", "--weights", "random", "--seed", 7, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "tiny_siglip")
    manifest = open_bundle(tmp_path / "tiny_siglip").manifest
    assert (manifest.weights.source, manifest.weights.name) == ("random", "seed 7")
    assert (manifest.text.source, manifest.text.lengths) == ("stand-in", "trained")


@pytest.mark.parametrize("there", [False, True])
def test_a_failed_check_publishes_nothing(there, tmp_path, monkeypatch):
    spec = open_clip_spec(tmp_path)
    if there:
        (tmp_path / "out/toy_open_clip").mkdir(parents=True)
        (tmp_path / "out/toy_open_clip/manifest.json").touch()
    honest = convert.export_graph

    def disturbed(tower, *rest):
        next(tensor for tensor in tower.buffers() if tensor.ndim == 2).mul_(-1)
        return honest(tower, *rest)

    monkeypatch.setattr(convert, "export_graph", disturbed)
    with pytest.raises(RunFault, match=r"onnx/vision_model_fp16\.onnx: cosine of row . .*at least 0\.9999 expected"):
        publish.export_model(spec, "random", out=tmp_path / "out", overwrite=there)
    left = [p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*")]
    assert left == (["toy_open_clip", "toy_open_clip/manifest.json"] if there else [])


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_one_weight_off_by_one_per_cent_after_export_publishes_nothing(precision, tmp_path, monkeypatch):
    import onnx

    honest = convert.export_graph

    def disturbed(tower, size, precision, fp32, work):
        graph = honest(tower, size, precision, fp32, work)
        model = onnx.load(work / graph.file)
        weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        values = onnx.numpy_helper.to_array(weight).copy()
        values.flat[values.size // 2] *= 1.01
        weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
        onnx.save(model, work / graph.file)
        return graph

    monkeypatch.setattr(convert, "export_graph", disturbed)
    with pytest.raises(
        RunFault, match=r"vision_model.*: tensor \S+ \(.*\) of the PyTorch tower is not in the graph as it is"
    ):
        publish.export_model(open_clip_spec(tmp_path), "random", [precision], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("check", "expected"),
    [("check_products", "the projection, in int8"), ("check_quantised", "131 steps away"), ("check_tower", "cosine")],
)
def test_a_wrong_int8_graph_publishes_nothing(check, expected, tmp_path, monkeypatch):
    def refuse(path, graph, *_):
        label = graph if isinstance(graph, str) else graph.file
        assert Path(path).is_file() and (Path(path).parent / "vision_model.onnx").is_file()
        if label == "onnx/vision_model_int8.onnx":
            raise RunFault(f"{label}: {expected}")
        return {"cosine_min": 1.0}

    monkeypatch.setattr(publish if check == "check_tower" else convert, check, refuse)
    with pytest.raises(RunFault, match=rf"onnx/vision_model_int8\.onnx: {expected}"):
        publish.export_model(open_clip_spec(tmp_path), "random", ["fp32", "int8"], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_exit_code_of_a_failed_check(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RunFault("onnx/x.onnx: cosine 0.5 found, at least 0.9999 expected")

    monkeypatch.setattr(publish, "export_model", fail)
    done = _invoke("--model", "tiny_clip", "--out", tmp_path)
    assert done.exit_code == 1 and "nothing was published" in done.stderr and done.stdout == ""


def test_a_fault_of_the_program_is_no_failed_check(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(publish, "export_model", fail)
    done = _invoke("--model", "tiny_clip", "--out", tmp_path)
    assert done.exit_code == 2 and "ZeroDivisionError: by zero\nnothing was published" in done.stderr


def test_damaged_checkpoint_is_no_failed_check(tmp_path):
    """Exit code 1 says that a check failed: whatever a damaged file raises ends with 2, and leaves nothing."""
    folder = shutil.copytree(zoo.get("tiny_clip").folder, tmp_path / "damaged")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    done = run("--model", "tiny_clip", "--weights", str(folder), "--out", str(tmp_path / "out"))
    assert done.returncode == 2, done.stderr
    assert str(folder) in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
