"""The commands that adopt: exit codes, what is printed where, what is left behind."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

import exports

from exporter import export


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
