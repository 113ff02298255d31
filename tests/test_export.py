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

from exporter import export, hub, publish  # noqa: E402
from lgip_ort.bundle import open_bundle  # noqa: E402
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
        "config.json",
        "manifest.json",
        "onnx/text_model_fp16.onnx",
        "onnx/vision_model_fp16.onnx",
        "preprocessor_config.json",
        "tokenizer.json",
    ]
    assert (manifest.weights.source, manifest.weights.name) == ("path", str(weights.resolve()))
    assert manifest.check["tokenizer"]["differences"] == manifest.check["pixels_max_diff"] == 0
    assert manifest.check["vision"]["cosine_min"] > 0.9999 and manifest.text.lengths == "any"
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["tiny_clip"], "no temporary folder is left"
    assert " s  " in done.stderr and "published" in done.stderr


def test_preprocessor_config_opens_in_transformers():
    from exporter.inputs import pil_processor

    for kind, family in (("tiny_clip", "CLIP"), ("tiny_siglip", "Siglip")):
        folder = exported(kind)[0]
        processor = pil_processor(family).from_pretrained(folder)
        assert dict(processor.size).get("shortest_edge" if family == "CLIP" else "height") == 64
        assert json.loads((folder / "config.json").read_text()).get("_name_or_path") is None


def test_fp32(tmp_path):
    bundle = open_bundle(exported("open_clip", "fp32")[0])
    assert [g.file for g in bundle.manifest.graphs] == ["onnx/vision_model.onnx", "onnx/text_model.onnx"]
    assert [g.fp32 for g in bundle.manifest.graphs] == [[], []]
    assert bundle.manifest.check["text"]["max_abs_diff"] < 1e-5
    assert bundle.manifest.text.clean == ["ftfy", "html"] and bundle.manifest.image.convert == "after"


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
    honest = publish.export_graph

    def disturbed(tower, *rest):
        import torch

        with torch.no_grad():
            next(p for p in tower.parameters() if p.ndim == 2).mul_(-1)
        return honest(tower, *rest)

    monkeypatch.setattr(publish, "export_graph", disturbed)
    with pytest.raises(RunFault, match=r"onnx/vision_model_fp16\.onnx: cosine of row . .*at least 0\.9999 expected"):
        publish.export_model(spec, "random", out=tmp_path / "out", overwrite=there)
    left = [p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*")]
    assert left == (["toy_open_clip", "toy_open_clip/manifest.json"] if there else [])


def test_exit_code_of_a_failed_check(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RunFault("onnx/x.onnx: cosine 0.5 found, at least 0.9999 expected")

    monkeypatch.setattr(publish, "export_model", fail)
    done = _invoke("--model", "tiny_clip", "--out", tmp_path)
    assert done.exit_code == 1 and "nothing was published" in done.stderr and done.stdout == ""


def test_damaged_checkpoint_is_no_failed_check(tmp_path):
    """Exit code 1 says that a check failed: whatever a damaged file raises ends with 2, and leaves nothing."""
    folder = shutil.copytree(zoo.get("tiny_clip").folder, tmp_path / "damaged")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    done = run("--model", "tiny_clip", "--weights", str(folder), "--out", str(tmp_path / "out"))
    assert done.returncode == 2, done.stderr
    assert "nothing was published" in done.stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
