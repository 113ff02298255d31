"""Both demo models along the whole way: weights, export, ONNX Runtime, PyTorch, verdict."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from made import wide_margins

from lgip_ort.bundle import open_bundle
from models import zoo

MODELS = ("tiny_clip", "tiny_siglip")
IMAGES = 100
"""Enough that every family of flips has pairs of thirty images and more; their shares need wide margins."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Both demo models, exported by the command from their committed weights."""
    pytest.importorskip("torch", reason="needs the export extra: torch")
    out = tmp_path_factory.mktemp("artifacts")
    for key in MODELS:
        command = [sys.executable, str(ROOT / "exporter/export.py"), "--model", key, "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("key", MODELS)
def test_artifact_keeps_the_profile_of_its_original(exported, bench, key, tmp_path):
    margins = wide_margins(tmp_path)
    given = ("--limit", IMAGES, "--margins", margins, "--json")
    outcome = bench("--engine", "both", "--bundle", exported / key, *given)
    found = outcome.json()
    assert (outcome.code, found["verdict"]) == (0, "equal"), found["rows"]
    assert {row["verdict"] for row in found["rows"]} == {"equal"}
    assert {(row["metric"], row["family"]) for row in found["rows"]} >= {
        ("E_inv", "wrapper"), ("PR", "colour"), ("PR", "count"), ("E_sens", "object"),
    }  # fmt: skip
    assert min(found["embedding_cosine"].values()) > 0.9999
    reference = json.loads((bench.folder / found["reference"] / "run.json").read_text())
    assert (reference["engine"], reference["precision"]["executed"]) == ("torch", "fp32")


def test_wrong_padding_is_a_drift(exported, bench, tmp_path):
    """A text graph that reads padding as another token: every vector is finite and near the right one, and wrong."""
    from onnx import helper, numpy_helper
    from toy import edit_graph, rehash

    broken = shutil.copytree(exported / "tiny_siglip", tmp_path / "broken")
    pad = open_bundle(broken).manifest.text.pad_id

    def read_padding_as_another_token(graph):
        graph.initializer.extend(
            [numpy_helper.from_array(np.array(value), name) for value, name in ((pad, "pad"), (7, "other"))]
        )
        for node in graph.node:
            node.input[:] = ["seen_ids" if name == "input_ids" else name for name in node.input]
        graph.node.insert(0, helper.make_node("Equal", ["input_ids", "pad"], ["is_pad"]))
        graph.node.insert(1, helper.make_node("Where", ["is_pad", "other", "input_ids"], ["seen_ids"]))

    edit_graph(broken / "onnx/text_model_fp16.onnx", read_padding_as_another_token)
    refused = bench("--bundle", broken, "--limit", 1)
    assert refused.code == 2
    assert "text_model_fp16.onnx: sha256" in refused.err
    rehash(broken)
    outcome = bench("--engine", "both", "--bundle", broken, "--limit", IMAGES, "--json")
    assert (outcome.code, outcome.json()["verdict"]) == (1, "drifted")
    assert outcome.json()["embedding_cosine"]["image_min"] > 0.9999 > outcome.json()["embedding_cosine"]["text_min"]


@pytest.mark.parametrize("key", MODELS)
def test_committed_bundle_is_of_the_committed_weights(exported, key):
    committed, fresh = (open_bundle(folder) for folder in (zoo.get(key).committed_bundle, exported / key))
    assert committed.manifest.weights == fresh.manifest.weights
    assert committed.manifest.files["tokenizer.json"] == fresh.manifest.files["tokenizer.json"]
    assert (committed.manifest.text, committed.manifest.image) == (fresh.manifest.text, fresh.manifest.image)


@pytest.mark.parametrize("key", MODELS)
def test_batch_size_changes_nothing_that_matters(bench, key):
    single, many = (bench("--model", key, "--limit", IMAGES, "--batch-size", size, "--json").json() for size in (1, 64))
    assert single["run"] != many["run"]
    for a, b in zip(single["strata"], many["strata"], strict=True):
        assert a["value"] == pytest.approx(b["value"], abs=1e-5)
        if a["kind"] == "identity":
            assert max(a["value"], b["value"]) <= 1e-6


def test_same_seed_gives_the_same_bytes(bench):
    first, second = (bench("--limit", 40, "--out", name, "--json").json() for name in ("one", "two"))
    assert not second["reused"]
    assert (first["metrics"], first["strata"]) == (second["metrics"], second["strata"])
    a, b = ((bench.folder / run["run"] / "profile.parquet").read_bytes() for run in (first, second))
    assert a == b
    assert bench("--limit", 40, "--out", "one", "--seed", 1, "--json").json()["metrics"] != first["metrics"]


def test_demo_models_are_worth_probing(bench):
    """The README's claim about the default run; chance is 0.5."""
    found = bench("--json").json()
    assert found["model"] == "tiny_clip"
    assert found["metrics"]["PR"]["value"] >= 0.90
    assert found["dataset"]["images"] == 400
