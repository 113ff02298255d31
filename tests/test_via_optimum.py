"""Optimum's exporter as the other route: what it takes, what it refuses, and what the manifest says of it."""

from __future__ import annotations

import logging
import sys

import pytest
from typer.testing import CliRunner

pytest.importorskip("optimum", reason="needs the export extra: optimum-onnx")
pytest.importorskip("transformers", reason="needs the export extra: transformers")

from checkpoints import open_clip_spec, random_spec

from exporter import export, via_optimum
from exporter.via_optimum import export_via_optimum
from lgip_ort.bundle import open_bundle
from lgip_ort.errors import UsageFault
from models import zoo


@pytest.mark.parametrize("key", ["tiny_clip", "tiny_siglip"])
def test_a_demo_model_via_optimum(key, tmp_path):
    levels = {name: logging.getLogger(name).level for name in via_optimum.LOGGERS}
    done = CliRunner().invoke(export.app, ["--model", key, "--via", "optimum", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "Warning" not in done.output and "exported by optimum " in done.stderr
    assert levels == {name: logging.getLogger(name).level for name in via_optimum.LOGGERS}
    manifest = open_bundle(tmp_path / key).manifest
    assert [(g.tower, g.precision, g.opset) for g in manifest.graphs] == [("vision", "fp32", 18), ("text", "fp32", 18)]
    assert manifest.exported_by == via_optimum.made_by()
    assert manifest.weights.source == "demo"
    committed = open_bundle(zoo.get(key).committed_bundle).manifest
    assert manifest.weights.sha256 == committed.weights.sha256
    for graph in manifest.graphs:
        assert manifest.check[graph.file]["from"] == "model.onnx"
        assert manifest.check[graph.file]["cosine_min"] > 0.99999
        assert not any("normalised" in edit for edit in manifest.check[graph.file]["edits"])
    assert [path.name for path in tmp_path.iterdir()] == [key]


def test_random_weights_via_optimum(tmp_path):
    _, manifest = export_via_optimum(random_spec(), "random", ["fp32"], tmp_path, seed=3)
    assert (manifest.weights.source, manifest.weights.name) == ("random", "seed 3")
    assert manifest.text.source == "stand-in"


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_precisions_that_it_does_not_write(precision, tmp_path):
    with pytest.raises(UsageFault, match=f"--precision {precision} found, fp32 expected with --via optimum"):
        export_via_optimum(zoo.get("tiny_clip"), precisions=["fp32", precision], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_open_clip_is_not_its_to_export(tmp_path):
    with pytest.raises(UsageFault, match="Optimum exports models of transformers, this one is open_clip's"):
        export_via_optimum(open_clip_spec(tmp_path), "random", out=tmp_path / "out")


def test_without_optimum(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optimum.exporters.onnx", None)
    with pytest.raises(UsageFault, match=r"--via optimum: .*; pip install 'optimum-onnx' 'transformers<4\.58'"):
        export_via_optimum(zoo.get("tiny_clip"), out=tmp_path)


def test_what_it_can_t_export_is_no_failed_check(tmp_path, monkeypatch):
    monkeypatch.setattr(via_optimum, "TASK", "text-generation")
    with pytest.raises(UsageFault, match=r"tiny_clip: Optimum can't export it: .*text-generation"):
        export_via_optimum(zoo.get("tiny_clip"), out=tmp_path)
