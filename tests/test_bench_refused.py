"""What a run does with what it can not do: data, bundles and options, each with its exit code."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from contract import RUN, conforms
from made import make_coco
from toy import TEXT, VISION, make_bundle, rehash

from lgip_ort.provider import cuda_problem

pytestmark = pytest.mark.usefixtures("no_charts")


def test_unreadable_image(score, spoiled):
    failed = score("--json", data=spoiled)
    assert failed.code == 1
    data = failed.json()
    conforms(data, RUN | {"error": str})
    assert data["status"] == "failed"
    assert "--max-skipped allows 0; the first is val/000000000002.png: " in data["error"]
    (skipped,) = data["skipped"]
    assert (skipped["image_id"], skipped["path"]) == ("2", "val/000000000002.png")
    assert "truncated" in skipped["reason"]
    assert data["pairs"]["identity"] == 3  # the rest was scored

    shown = score(data=spoiled)
    assert shown.code == 1
    assert "FAILED     1 images could not be read" in shown.out

    tolerated = score("--json", "--max-skipped", 1, data=spoiled)
    assert tolerated.code == 0
    assert tolerated.json()["status"] == "done"
    assert tolerated.json()["skipped"] == data["skipped"]
    assert tolerated.json()["metrics"] == data["metrics"]


def test_no_readable_image(score, tmp_path):
    folder = make_coco(tmp_path / "data", images=2)
    for path in (folder / "val").iterdir():
        path.write_bytes(b"")
    outcome = score("--json", data=folder)
    assert outcome.code == 1
    assert outcome.json()["metrics"]["PR"] == {"value": None, "ci_low": None, "ci_high": None, "n": 0}
    assert score(data=folder).code == 1


def test_missing_images(score, tmp_path):
    folder = make_coco(tmp_path / "data", images=4)
    for i in (2, 3):
        (folder / f"val/{i:012d}.png").unlink()
    refused = score("--json", data=folder)
    assert (refused.code, refused.out) == (2, "")
    assert f"2 of 4 images are not there, the first is {folder}/val/000000000002.png" in refused.err
    assert not Path("runs").exists()
    outcome = score("--json", "--available-only", data=folder)
    assert outcome.code == 0
    assert "2 of 4 images of coco-val are not there" in outcome.err
    assert {name: outcome.json()["dataset"][name] for name in ("images", "captions", "missing", "named")} == {
        "images": 2, "captions": 4, "missing": 2, "named": 4,
    }  # fmt: skip
    assert outcome.json()["skipped"] == []


def test_score_that_is_not_finite(score, tmp_path):
    outcome = score("--json", bundle=make_bundle(tmp_path / "b", poison="purple"))
    assert outcome.code == 1
    assert set(outcome.json()) == {"status", "error"}
    assert re.search(
        r"error: \d+ of 760 scores are not finite; the first is image \d+, '.*' against '.*purple.*'", outcome.err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "tiny_clp"], "unknown model 'tiny_clp'; did you mean 'tiny_clip'?"),
        (["--data", "cocoo:x"], "unknown data 'cocoo:x'; did you mean 'coco'?"),
        (["--data", "coco:nowhere"], "name a split"),
        (["--suite", "papper"], "unknown suite 'papper'; did you mean 'paper'?"),
        (["--provider", "cdua"], "unknown provider 'cdua'; did you mean 'cuda'?"),
        (["--model", "siglip_large"], "python exporter/export.py --model siglip_large"),
        (["--model", "tiny_clip", "--bundle", "x"], "--model and --bundle exclude each other"),
        (["--bundle", "nowhere"], "nowhere: not a bundle, manifest.json is missing"),
        (["--out", "file"], "file"),
        (["--limit", "0"], "--limit"),
        (["--engine", "tensorflow"], "tensorflow"),
        (["--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_what_is_asked_for_can_not_be_done(bench, toy, tmp_path, options, message):
    (tmp_path / "file").touch()
    bundle = [] if {"--model", "--bundle"} & set(options) or options == ["nonsense"] else ["--bundle", toy]
    outcome = bench(*bundle, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert not Path("runs").exists()


@pytest.mark.skipif(cuda_problem() is None, reason="CUDA works here")
def test_cuda_that_is_not_there(score):
    outcome = score("--provider", "cuda", "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "CUDAExecutionProvider is not available: " in outcome.err


@pytest.mark.parametrize("engine", ["torch", "both"])
def test_without_torch_the_original_can_not_run(score, monkeypatch, engine):
    monkeypatch.setitem(sys.modules, "exporter.reference", None)
    outcome = score("--engine", engine)
    assert outcome.code == 2
    assert f"--engine {engine if engine != 'both' else 'torch'} needs PyTorch" in outcome.err
    assert "pip install -e '.[export]'" in outcome.err


@pytest.mark.parametrize("name", [VISION, TEXT, "tokenizer.json"])
def test_changed_byte_in_a_bundle(score, toy, tmp_path, name):
    bundle = shutil.copytree(toy, tmp_path / "b")
    data = bytearray((bundle / name).read_bytes())
    data[-9] ^= 1
    (bundle / name).write_bytes(data)
    outcome = score(bundle=bundle)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"error: {bundle / name}: sha256 " in outcome.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2 found, 1 expected"),
        ({"files": {"../outside": "0" * 64}}, "'../outside' leaves the bundle's folder"),
        ({"embedding_dim": 5}, "16 values an embedding, 5 expected"),
    ],
)
def test_manifest_that_is_refused(score, toy, tmp_path, changes, message):
    bundle = shutil.copytree(toy, tmp_path / "b")
    rehash(bundle, **changes)
    outcome = score(bundle=bundle)
    assert outcome.code == 2
    assert str(bundle) in outcome.err
    assert message in outcome.err


def test_options_before_a_command_are_refused(bench):
    outcome = bench("--json", "compare", "a", "b")
    assert (outcome.code, outcome.out) == (2, "")
    assert "options of 'compare' go behind it; as_json stands before" in outcome.err


def test_fault_of_the_program_is_no_verdict(bench, toy, coco, monkeypatch):
    """Exit code 1 says drifted, inconclusive or failed: an exception that nobody expected says none of these."""
    import lgip_ort.launch

    def broken(*_, **__):
        raise KeyError("nobody expected this")

    monkeypatch.setattr(lgip_ort.launch, "execute", broken)
    outcome = bench("--bundle", toy, "--data", f"coco:{coco}")
    assert outcome.code == 2
    assert "nobody expected this" in outcome.err
