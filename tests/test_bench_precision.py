"""bench.py --precision: which graphs are scored, what the run says of it, and what is refused before anything is read."""

from __future__ import annotations

import json

import numpy as np
import pytest
from toy import in_precisions, make_bundle

from lgip_ort.bundle import PRECISIONS, open_bundle
from lgip_ort.encode import encode_texts

pytestmark = pytest.mark.usefixtures("no_charts")


@pytest.fixture
def all_three(tmp_path):
    """A toy bundle in every precision."""
    return in_precisions(make_bundle(tmp_path / "bundle"), *PRECISIONS)


@pytest.mark.parametrize(
    ("options", "asked", "executed"),
    [
        ([], "fp16", "fp32 (cast)"),
        (["--precision", "fp16"], "fp16", "fp32 (cast)"),
        (["--precision", "fp32"], "fp32", "fp32"),
        (["--precision", "int8"], "int8", "int8 (dynamic)"),
    ],
)
def test_the_run_says_what_it_ran_in(options, asked, executed, bench, all_three, coco):
    arguments = ("--bundle", all_three, "--data", f"coco:{coco}", "--provider", "cpu", *options)
    data = bench(*arguments, "--json").json()
    assert data["precision"] == {"asked": asked, "executed": executed}
    assert data["run"].startswith(f"runs/toy/ort-cpu-{asked}/")
    stamp = json.loads((bench.folder / data["run"] / "run.json").read_text())
    assert stamp["precision"] == data["precision"]
    assert bench(*arguments, "--json").json()["reused"]
    assert f"{asked} executed as {executed}" in bench(*arguments).out


@pytest.mark.parametrize("there", [["fp32", "int8"], ["int8"]])
def test_default_is_the_first_that_is_there(there, bench, tmp_path, coco):
    bundle = in_precisions(make_bundle(tmp_path / "bundle"), *there)
    assert bench("--bundle", bundle, "--data", f"coco:{coco}", "--json").json()["precision"]["asked"] == there[0]


def test_runs_of_two_precisions_are_compared(bench, all_three, coco):
    runs = [
        bench("--bundle", all_three, "--data", f"coco:{coco}", "--precision", name, "--json").json()["run"]
        for name in ("fp32", "int8")
    ]
    assert runs[0] != runs[1]
    outcome = bench("compare", *runs, "--json")
    found = outcome.json()
    assert (found["reference"], found["candidate"]) == tuple(runs)
    assert all(row["delta"] == 0 for row in found["rows"]) and found["max_ds"] == 0, "copies of one graph"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--precision", "int8"],
            "precision fp16 found, int8 expected; to have it: python exporter/export.py --model toy",
        ),
        (["--precision", "int"], "unknown precision 'int'; did you mean 'int8'?"),
        (["--engine", "torch", "--precision", "int8"], "--engine torch is the fp32 original, --precision int8 is of a"),
        (["--engine", "torch", "--precision", "fp16"], "--engine torch is the fp32 original, --precision fp16 is of a"),
        (["--engine", "both", "--precision", "fp32"], "precision fp16 found, fp32 expected"),
    ],
)
def test_refused_before_anything_is_read(options, message, bench, toy):
    outcome = bench("--bundle", toy, "--data", "coco:/nowhere", *options)
    assert outcome.code == 2 and message in outcome.err and outcome.out == ""
    assert not (bench.folder / "runs").exists()


@pytest.mark.parametrize("engine", ["ort", "both"])
def test_int8_on_cuda_is_refused_before_anything_is_read(engine, bench, all_three):
    options = ("--engine", engine, "--provider", "cuda", "--precision", "int8", "--data", "coco:/nowhere")
    outcome = bench("--bundle", all_three, *options)
    assert outcome.code == 2 and "no kernel for the products of an int8 graph; --provider cpu" in outcome.err


@pytest.mark.parametrize("kind", ["tiny_clip", "tiny_siglip"])
def test_int8_against_the_original(kind, bench):
    """From export to verdict: the profile of the int8 graphs lies near the fp32 original's, and is not the same."""
    pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
    from checkpoints import exported

    folder, _ = exported(kind, *PRECISIONS)
    outcome = bench("--engine", "both", "--bundle", folder, "--precision", "int8", "--limit", 6, "--json")
    found = outcome.json()
    assert outcome.code in (0, 1) and "ort-cpu-int8" in found["candidate"] and "torch-cpu-fp32" in found["reference"]
    assert 0.98 < min(found["embedding_cosine"].values()) < 0.99999
    deltas = [abs(row["delta"]) for row in found["rows"] if row["metric"] in ("E_inv", "E_sens", "matched_gap")]
    assert 0 < max(deltas) < 0.02


def test_a_row_depends_a_little_on_its_batch():
    """The scale of what is multiplied is taken over the batch: noted in the documentation, held to a bound here."""
    pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
    from checkpoints import CAPTIONS, exported

    from lgip_ort.engine import OrtEngine

    bundle = open_bundle(exported("tiny_siglip", *PRECISIONS)[0])
    for precision, least, most in (("int8", 0.97, 0.99999), ("fp32", 0.999999, 1.001)):
        alone, many = (OrtEngine(bundle, "cpu", size, precision=precision) for size in (1, 64))
        cosines = (encode_texts(alone, CAPTIONS) * encode_texts(many, CAPTIONS)).sum(axis=1, dtype=np.float64)
        assert least < cosines.min() < most, precision
