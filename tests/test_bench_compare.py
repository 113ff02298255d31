"""Comparisons: the verdict of `bench.py compare` and of `--engine both` on toy runs, and what can not be compared."""

from __future__ import annotations

import pytest
from contract import COMPARISON, conforms
from toy import UNKNOWN, make_bundle, rehash

pytestmark = pytest.mark.usefixtures("no_charts")


def test_compare_equal(bench, score, tmp_path):
    """80 flips of a kind leave three of 80 open: less than one's own margin, more than the project's."""
    runs = [score("--json", "--batch-size", n).json()["run"] for n in (64, 1)]
    outcome = bench("compare", *runs, "--json")
    assert (outcome.code, outcome.json()["verdict"]) == (1, "inconclusive")
    margins = tmp_path / "margins.toml"
    margins.write_text("[PR]\nabsolute = 0.05\n[recall]\nabsolute = 0.08\n")
    outcome = bench("compare", *runs, "--margins", margins, "--json")
    assert outcome.code == 0
    data = outcome.json()
    conforms(data, COMPARISON)
    assert data["verdict"] == "equal"
    assert {row["verdict"] for row in data["rows"]} == {"equal"}
    assert (data["reference"], data["candidate"]) == tuple(runs)
    assert data["sign_changes"] == {"n": 0, "of": 240, "pairs": []}
    assert min(data["embedding_cosine"].values()) > 0.999999
    assert data["margins"]["PR"] == {"absolute": 0.05, "relative": 0.0}
    shown = bench("compare", *runs, "--margins", margins)
    assert shown.code == 0
    assert "verdict: equal" in shown.out


def test_compare_finds_the_wrong_pad_id(bench, score, tmp_path):
    """The graphs are the same to the byte: only what people do with texts shows it."""
    bundle = make_bundle(tmp_path / "b", pad_matters=True)
    reference = score("--json", bundle=bundle).json()["run"]
    rehash(bundle, text={"pad_id": UNKNOWN})
    candidate = score("--json", bundle=bundle).json()["run"]
    outcome = bench("compare", reference, candidate, "--json")
    assert outcome.code == 1
    data = outcome.json()
    conforms(data, COMPARISON)
    assert data["verdict"] == "drifted"
    assert {row["verdict"] for row in data["rows"] if row["metric"] == "E_inv" and row["family"] == "all"} == {
        "drifted"
    }
    assert data["embedding_cosine"]["image_min"] > 0.999999
    assert data["embedding_cosine"]["text_p1"] < 0.99
    assert data["sign_changes"]["n"] == len(data["sign_changes"]["pairs"]) > 0
    assert "verdict: drifted" in bench("compare", reference, candidate).out


def test_compare_inconclusive(bench, score):
    runs = [score("--json", "--limit", 12, "--batch-size", n).json()["run"] for n in (64, 1)]
    outcome = bench("compare", *runs, "--json")
    assert outcome.code == 1
    assert outcome.json()["verdict"] == "inconclusive"
    rows = outcome.json()["rows"]
    assert {row["images_needed"] for row in rows if row["metric"] not in ("PR", "R@1", "R@5", "R@10")} == {30}
    most = max(row["images_needed"] for row in rows)
    assert most > 100  # a share of few pairs is not known to a hundredth
    assert f"{most} images" in bench("compare", *runs).out


def test_margins_that_are_none(bench, score, tmp_path):
    run = score("--json").json()["run"]
    outcome = bench("compare", run, run, "--margins", tmp_path / "nowhere.toml")
    assert (outcome.code, outcome.out) == (2, "")
    assert "nowhere.toml: not a table of margins" in outcome.err


def test_compare_refuses(bench, score, spoiled, tmp_path):
    run, other = (score("--json", "--seed", n).json()["run"] for n in (0, 1))
    outcome = bench("compare", run, other, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "seed is 0 in the reference and 1 in the candidate" in outcome.err
    failed = score("--json", data=spoiled).json()["run"]
    assert bench("compare", run, failed).code == 2
    assert bench("compare", run, tmp_path / "nowhere").code == 2
    assert bench("compare", run).code == 2


def test_both_engines_with_unreadable_images(score, bench, spoiled, monkeypatch, toy):
    """One object on stdout, whatever fails."""
    import bench as command
    from lgip_ort.engine import OrtEngine

    monkeypatch.setattr(
        command, "_original", lambda bundle, plan, device: lambda: OrtEngine(bundle, device, plan.batch_size)
    )
    outcome = bench("--engine", "both", "--bundle", toy, "--data", f"coco:{spoiled}", "--json")
    assert outcome.code == 1
    assert outcome.json()["status"] == "failed"
    assert "could not be read" in outcome.json()["error"]
