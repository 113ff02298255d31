"""`make zoo`: every model once, resumable, measured, and the tables made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from benchmarks import zoo as exports
from models import zoo

ROOT = Path(__file__).resolve().parents[1]


def entry(key: str, **changes) -> dict:
    """What an export leaves, with figures that can be told apart in a table."""
    check = {
        "parameters": {"vision": 86_192_640, "text": 63_428_096},
        "onnx/vision_model_fp16.onnx": {
            "cosine_min": 0.9999998,
            "centred_cosine_min": 0.9999965,
            "max_abs_diff": 0.0001,
            "true_fp16": {"cosine_min": 0.99991, "centred_cosine_min": 0.9987654},
            "islands": 3,
        },
        "onnx/text_model_fp16.onnx": {"cosine_min": 0.9999996, "centred_cosine_min": 0.9999986, "max_abs_diff": 0.0002},
    }
    manifest = {
        "weights": {"source": "random"},
        "embedding_dim": 512,
        "activation": {"vision": "QuickGELU", "text": "QuickGELU"},
        "graphs": [{"tower": tower, "file": f"onnx/{tower}_model_fp16.onnx"} for tower in ("vision", "text")],
        "text": {
            "context_length": 64,
            "pad_id": 1,
            "lengths": "trained",
            "ignores": ["case", "punctuation"],
            "source": "stand-in",
            "reference": "transformers.SomeTokenizer",
        },
        "image": {"size": 224, "resize": "squash", "interpolation": "bicubic", "reference": "transformers.Some"},
        "check": check,
    }
    sizes = {
        "onnx/vision_model_fp16.onnx": 1.5,
        "onnx/vision_model_fp16.onnx_data": 1263.0,
        "onnx/text_model_fp16.onnx": 127.2,
    }
    return {"model": key, "seconds": 58.4, "peak_gb": 2.93, "megabytes": sizes, "manifest": manifest} | changes


@pytest.fixture
def docs(tmp_path):
    (tmp_path / "measurements").mkdir()
    for name in ("measurements/exports.md", "models.md"):
        (tmp_path / name).write_text(f"before\n\n{exports.BEGIN}\n| stale |\n{exports.END}\n\nafter\n")
    return tmp_path


@pytest.fixture
def done(monkeypatch):
    """The keys that were exported, none of them really."""
    keys = []

    def export(spec, keep):
        keys.append(spec.key)
        return {k: v for k, v in entry(spec.key).items() if k != "model"}

    monkeypatch.setattr(exports, "_export", export)
    return keys


def run(docs, *only, overwrite=False, as_json=False) -> int:
    try:
        exports.main(list(only) or None, overwrite, docs, None, as_json)
    except typer.Exit as end:
        return end.exit_code
    return 0


def rows(path) -> list[list[str]]:
    text = path.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "stale" not in text
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_every_model_once(docs, done):
    assert run(docs) == 0 and done == list(zoo.load())
    assert run(docs) == 0 and done == list(zoo.load()), "nothing is exported twice"
    assert run(docs, "siglip_base", overwrite=True) == 0 and done[-1] == "siglip_base" and len(done) == 12
    for name in ("measurements/exports.md", "models.md"):
        assert [row[0] for row in rows(docs / name)[1:]] == list(zoo.load())


def test_what_a_table_says(docs, done):
    run(docs, "siglip_base")
    header, row = rows(docs / "measurements/exports.md")
    said = dict(zip(header, row, strict=True))
    assert said | {"centred": "", "true fp16": ""} == {
        "key": "siglip_base",
        "seconds": "58",
        "peak GB": "2.9",
        "vision MB": "1,264",
        "text MB": "127",
        "vision cosine, least": "0.9999998",
        "text cosine, least": "0.9999996",
        "largest difference": "2.0e-04",
        "centred": "",
        "true fp16": "",
    }
    assert [cell for name, cell in zip(header, row, strict=True) if name == "centred"] == ["0.9999965", "0.9999986"]
    assert [cell for name, cell in zip(header, row, strict=True) if name == "true fp16"] == [
        "0.9987654",
        "not measured",
    ]
    header, row = rows(docs / "models.md")
    said = dict(zip(header, row, strict=True))
    assert said["parameters, vision"] == "86.2 M" and said["text"] == "63.4 M"
    assert said["padding"] == "1, always to the full length" and said["ignores"] == "case, punctuation"
    assert said["fp32 islands"] == "3 + not measured" and said["activation"] == "QuickGELU"
    assert said["ids equal to those of"] == "transformers.SomeTokenizer (stand-in)"


def test_a_changed_recipe_is_exported_again(docs, done, monkeypatch):
    run(docs, "tiny_clip")
    run(docs, "tiny_clip")
    assert done == ["tiny_clip"]
    for name, value in (("_versions", {"torch": "9"}), ("_source", "other code")):
        monkeypatch.setattr(exports, name, lambda value=value: value)
        run(docs, "tiny_clip")
    assert done == ["tiny_clip"] * 3


def test_one_failure_does_not_stop_the_others(docs, done, monkeypatch, capsys):
    honest = exports._export

    def export(spec, keep):
        if spec.key == "clip_vit_b16":
            return {"seconds": 1.0, "peak_gb": 0.1, "error": "exit code 1: cosine 0.5 found"}
        return honest(spec, keep)

    monkeypatch.setattr(exports, "_export", export)
    assert run(docs, "tiny_clip", "clip_vit_b16", "siglip_base", as_json=True) == 1
    said = json.loads(capsys.readouterr().out)["exports"]
    assert ["error" in one for one in said] == [False, True, False] and done == ["tiny_clip", "siglip_base"]
    assert [row[:2] for row in rows(docs / "models.md")[1:]] == [
        ["tiny_clip", "random"],
        ["clip_vit_b16", "failed"],
        ["siglip_base", "random"],
    ]
    monkeypatch.setattr(exports, "_export", honest)
    assert run(docs, "clip_vit_b16") == 0 and done[-1] == "clip_vit_b16", "a failure is tried again"


def test_entries_without_a_recipe_are_measured_again(docs, done):
    old = {"exports": [{"model": "tiny_clip", "seconds": 1}]}
    (docs / "measurements/exports.json").write_text(json.dumps(old))
    assert run(docs, "siglip_base") == 0
    written = json.loads((docs / "measurements/exports.json").read_text())["exports"]
    assert [one["model"] for one in written] == ["siglip_base"]


def test_a_document_without_marks_is_not_written_over(docs, done):
    (docs / "models.md").write_text("mine")
    with pytest.raises(ValueError, match=r"models\.md: no <!-- made by benchmarks/zoo\.py"):
        run(docs, "tiny_clip")
    assert (docs / "models.md").read_text() == "mine"


def test_unknown_key(docs):
    with pytest.raises(typer.BadParameter, match="did you mean 'siglip_base'"):
        run(docs, "siglip_bas")


def test_for_real(docs, monkeypatch):
    pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
    command = [sys.executable, str(ROOT / "benchmarks/zoo.py"), "--only", "tiny_clip", "--docs", str(docs), "--json"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert ran.returncode == 0, ran.stderr
    (one,) = json.loads(ran.stdout)["exports"]
    assert one["model"] == "tiny_clip" and one["seconds"] > 0 and 0.1 < one["peak_gb"] < 20
    assert one["manifest"]["weights"]["source"] == "demo" and one["manifest"]["check"]["data"]["name"] == "demo"
    assert sum(one["manifest"]["check"]["parameters"].values()) + 1 == 1_579_521, "and the scale of the logits"
    assert len(rows(docs / "models.md")) == len(rows(docs / "measurements/exports.md")) == 2
    assert not (ROOT / "tiny_clip").exists()


def test_the_document_names_every_model():
    text = (ROOT / "docs/models.md").read_text()
    for spec in zoo.load().values():
        assert f"`{spec.key}`" in text
        if spec.library == "transformers" and spec.weights == "hub":
            assert f"| {spec.name} |" in text
    assert exports.BEGIN in text and exports.BEGIN in (ROOT / "docs/measurements/exports.md").read_text()


def test_the_document_names_open_clip_s_repositories():
    pretrained = pytest.importorskip("open_clip.pretrained", reason="open_clip, which knows them, is not installed")
    text = (ROOT / "docs/models.md").read_text()
    for spec in zoo.load().values():
        if spec.library == "open_clip":
            repository = pretrained.get_pretrained_cfg(spec.name, spec.tag)["hf_hub"].strip("/")
            assert f"| open_clip {spec.name}, `{spec.tag}` | {repository} |" in text
