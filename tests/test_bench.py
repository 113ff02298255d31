"""The command from end to end, on a toy bundle."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from made import make_coco
from toy import TEXT, UNKNOWN, VISION, make_bundle, rehash

from lgip_ort import run as run_module
from lgip_ort.session import cuda_problem

ROOT = Path(__file__).resolve().parents[1]

NUMBER, NULLABLE = (int, float), (int, float, type(None))
METRIC = {"value": NUMBER, "ci_low": NULLABLE, "ci_high": NULLABLE, "n": int}
NAMES = {"metric": str, "kind": str, "family": str, "stratum": str}
RUN = {
    "status": str,
    "model": str,
    "weights": str,
    "weights_sha256": str,
    "engine": str,
    "provider": {"asked": str, "active": str},
    "precision": {"asked": str, "executed": str},
    "padding": str,
    "suite": str,
    "seed": int,
    "dataset": {"name": str, "hash": str, "images": int, "captions": int, "missing": int, "named": int},
    "pairs": {"paraphrase": int, "flip": int, "combined": int, "identity": int},
    "skipped": [{"image_id": str, "path": str, "reason": str}],
    "metrics": {"E_inv": METRIC, "E_sens": METRIC, "PR": METRIC},
    "strata": [NAMES | METRIC],
    "seconds": {"load": NUMBER, "images": NUMBER, "texts": NUMBER, "score": NUMBER, "total": NUMBER},
    "run": str,
    "reused": bool,
}
COMPARED = {"reference": NUMBER, "candidate": NUMBER, "delta": NUMBER, "ci_low": NULLABLE, "ci_high": NULLABLE}
COSINE = {"image_min": NULLABLE, "image_p1": NULLABLE, "text_min": NULLABLE, "text_p1": NULLABLE}
CHANGE = {"image_id": str, "family": str, "text": str, "perturbed": str, "s": NUMBER, "s_perturbed": NUMBER}
COMPARISON = {
    "verdict": str,
    "model": str,
    "weights": str,
    "padding": {"reference": str, "candidate": str},
    "rows": [
        NAMES | COMPARED | {"margin": NUMBER, "verdict": str, "n": int, "images": int, "images_needed": NULLABLE}
    ],
    "left_out": int,
    "sign_changes": {
        "n": int,
        "of": int,
        "pairs": [CHANGE | {"s_candidate": NUMBER, "s_perturbed_candidate": NUMBER}],
    },
    "embedding_cosine": COSINE,
    "max_ds": NUMBER,
    "reference": str,
    "candidate": str,
}  # fmt: skip


def conforms(data, spec, where="$"):
    """Asserts that `data` has the fields and types of `spec`, and no other field."""
    if isinstance(spec, dict):
        assert set(data) == set(spec), where
        for name, inner in spec.items():
            conforms(data[name], inner, f"{where}.{name}")
    elif isinstance(spec, list):
        assert isinstance(data, list), where
        for i, item in enumerate(data):
            conforms(item, spec[0], f"{where}[{i}]")
    else:
        assert isinstance(data, spec), (where, data)
        assert spec is bool or not isinstance(data, bool), (where, data)


def parquet(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*.parquet"))}


@pytest.fixture(autouse=True)
def no_charts(monkeypatch):
    """They take most of a small run's time, and have tests of their own."""
    for name in ("flips_chart", "wrappers_chart"):
        monkeypatch.setattr(f"lgip_ort.report.html.{name}", lambda profile: "")


@pytest.fixture
def score(bench, toy, coco):
    """Scores the toy on the small data set, with other options."""
    return lambda *options, bundle=toy, data=coco: bench("--bundle", bundle, "--data", f"coco:{data}", *options)


@pytest.fixture
def spoiled(tmp_path):
    """A data set of four images, the second of which is cut short."""
    folder = make_coco(tmp_path / "spoiled", images=4)
    path = folder / "val/000000000002.png"
    path.write_bytes(path.read_bytes()[:60])
    return folder


def test_json_of_a_run(score):
    outcome = score("--json")
    assert outcome.code == 0
    data = outcome.json()
    conforms(data, RUN)
    assert (data["status"], data["model"], data["weights"], data["engine"]) == ("done", "toy", "random", "ort")
    assert data["provider"]["asked"] == "auto"
    assert data["dataset"] | {"hash": ""} == {
        "name": "coco-val", "hash": "", "images": 40, "captions": 80, "missing": 0, "named": 40,
    }  # fmt: skip
    assert data["pairs"] == {"paraphrase": 480, "flip": 240, "combined": 0, "identity": 40}
    assert {row["family"] for row in data["strata"]} == {"all", "wrapper", "colour", "count", "object", "identity"}
    assert data["metrics"]["PR"]["n"] == data["metrics"]["E_sens"]["n"] == 240
    assert data["metrics"]["E_inv"]["ci_low"] < data["metrics"]["E_inv"]["value"] < data["metrics"]["E_inv"]["ci_high"]
    (identity,) = [row for row in data["strata"] if row["kind"] == "identity"]
    assert 0 <= identity["value"] <= 1e-6
    assert (Path(data["run"]) / "report.html").is_file()


def test_terminal_says_where_the_report_is(score):
    outcome = score()
    assert outcome.code == 0
    assert "LGIP profile of toy" in outcome.out
    report = re.search(r"^report +(.*)$", outcome.out, re.MULTILINE).group(1)
    assert Path(report).is_file()


def test_two_runs_are_the_same_bytes(score):
    first, second = (score("--json", "--out", name).json() for name in ("one", "two"))
    assert json.dumps(first["metrics"]) == json.dumps(second["metrics"])
    assert json.dumps(first["strata"]) == json.dumps(second["strata"])
    assert parquet(first["run"]) == parquet(second["run"])


@pytest.mark.parametrize("pad_matters", [False, True])
def test_batch_size_does_not_matter(score, tmp_path, pad_matters):
    bundle = make_bundle(tmp_path / "b", pad_matters=pad_matters)
    one, many = (score("--json", "--batch-size", n, bundle=bundle).json() for n in (1, 64))
    assert one["run"] != many["run"]
    for a, b in zip(one["strata"], many["strata"], strict=True):
        assert [a[name] for name in NAMES] == [b[name] for name in NAMES]
        assert a["value"] == pytest.approx(b["value"], abs=1e-5)
        assert a["kind"] != "identity" or max(a["value"], b["value"]) <= 1e-6
    assert one["metrics"]["PR"]["value"] == many["metrics"]["PR"]["value"]


def test_seed_changes_the_draws(score):
    first, second = (score("--json", "--seed", n).json() for n in (0, 1))
    assert first["pairs"] == second["pairs"]
    assert first["metrics"]["E_inv"]["value"] != second["metrics"]["E_inv"]["value"]


def test_limit(score):
    data = score("--json", "--limit", 3).json()
    assert (data["dataset"]["images"], data["pairs"]["identity"]) == (3, 3)


def test_demo_scenes(bench, toy):
    data = bench("--bundle", toy, "--limit", 10, "--json").json()
    assert data["dataset"]["name"] == "demo"
    assert data["pairs"]["paraphrase"] == 10 * 5 * 6


def test_same_run_is_shown_again(score):
    first = score("--json").json()
    before = {path: path.stat().st_mtime_ns for path in Path(first["run"]).rglob("*")}
    again = score("--json").json()
    assert (first.pop("reused"), again.pop("reused")) == (False, True)
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in Path(first["run"]).rglob("*")} == before
    assert "(an earlier run, shown again)" in score().out


def test_report_that_was_lost_is_written_again(score):
    report = Path(score("--json").json()["run"]) / "report.html"
    report.unlink()
    assert score().code == 0
    assert report.is_file()


def test_overwrite(score):
    first = score("--json").json()
    profile = Path(first["run"]) / "profile.parquet"
    before = profile.read_bytes()
    profile.write_bytes(b"spoiled")
    again = score("--json", "--overwrite").json()
    assert (again["run"], again["reused"]) == (first["run"], False)
    assert profile.read_bytes() == before


def test_run_that_was_cut_short_goes_on(score, monkeypatch):
    monkeypatch.setattr(run_module, "SHARD_IMAGES", 8)
    first = score("--json").json()
    folder = Path(first["run"])
    whole = parquet(folder)
    for path in (*sorted((folder / "scores").iterdir())[1:3], folder / "profile.parquet", folder / "skipped.parquet"):
        path.unlink()
    stamp = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(stamp | {"status": "started"}))
    again = score("--json").json()
    assert again["metrics"] == first["metrics"]
    assert again["strata"] == first["strata"]
    assert parquet(folder) == whole


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


def test_real_photographs(bench, toy, shared):
    source = ("--bundle", toy, "--data", f"coco:{shared / 'coco'}:val2017", "--json")
    refused = bench(*source)
    assert refused.code == 2
    assert re.search(r"4,966 of 5,000 images are not there, the first is .*/val2017/\d+\.jpg", refused.err)
    data = bench(*source, "--available-only").json()
    assert (data["dataset"]["images"], data["dataset"]["captions"], data["dataset"]["missing"]) == (34, 170, 4966)
    assert data["pairs"] == {"paraphrase": 1020, "flip": 76, "combined": 0, "identity": 34}


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


def test_compare_equal(bench, score):
    runs = [score("--json", "--batch-size", n).json()["run"] for n in (64, 1)]
    outcome = bench("compare", *runs, "--json")
    assert outcome.code == 0
    data = outcome.json()
    conforms(data, COMPARISON)
    assert data["verdict"] == "equal"
    assert {row["verdict"] for row in data["rows"]} == {"equal"}
    assert (data["reference"], data["candidate"]) == tuple(runs)
    assert data["sign_changes"] == {"n": 0, "of": 240, "pairs": []}
    assert min(data["embedding_cosine"].values()) > 0.999999
    shown = bench("compare", *runs)
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
    assert {row["images_needed"] for row in outcome.json()["rows"]} == {30}
    assert "30 images" in bench("compare", *runs).out


def test_compare_refuses(bench, score, spoiled, tmp_path):
    run, other = (score("--json", "--seed", n).json()["run"] for n in (0, 1))
    outcome = bench("compare", run, other, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "seed is 0 in the reference and 1 in the candidate" in outcome.err
    failed = score("--json", data=spoiled).json()["run"]
    assert bench("compare", run, failed).code == 2
    assert bench("compare", run, tmp_path / "nowhere").code == 2
    assert bench("compare", run).code == 2


def shell(*arguments, cwd, **environment):
    """bench.py in a process of its own, with pipes for stdout and stderr."""
    command = [sys.executable, str(ROOT / "bench.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, cwd=cwd, env=os.environ | environment, check=False)


@pytest.mark.parametrize("as_json", [False, True])
def test_pipes(toy, coco, tmp_path, as_json):
    """Data on stdout and nothing else; no colours and no bars in a pipe."""
    done = shell("--bundle", toy, "--data", f"coco:{coco}", *["--json"] * as_json, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\r" not in done.stdout + done.stderr
    assert done.stderr.decode().splitlines() == [f"bundle {toy}"]
    if as_json:
        conforms(json.loads(done.stdout), RUN)
    else:
        assert done.stdout.startswith(b"LGIP profile of toy")


@pytest.mark.parametrize("as_json", [False, True])
def test_captions_that_the_terminal_can_not_show(toy, tmp_path, as_json):
    folder = make_coco(tmp_path / "data", images=3)
    path = folder / "annotations/captions_val.json"
    path.write_text(path.read_text().replace("000000000002.png", "👍.png"))
    (folder / "val/000000000002.png").write_text("no image")
    (folder / "val/000000000002.png").rename(folder / "val/👍.png")
    done = shell(
        "--bundle", toy, "--data", f"coco:{folder}", *["--json"] * as_json, cwd=tmp_path, PYTHONIOENCODING="ascii"
    )
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    if as_json:
        assert json.loads(done.stdout)["skipped"][0]["path"] == "val/👍.png"
    else:
        assert b"\\U0001f44d.png" in done.stdout


def commands():
    import bench

    main = typer.main.get_command(bench.app)
    return {(): main} | {(name,): command for name, command in main.commands.items()}


@pytest.mark.parametrize("name", commands())
def test_help(bench, name):
    outcome = bench(*name, "--help")
    assert outcome.code == 0
    assert commands()[name].help
    for parameter in commands()[name].params:
        assert parameter.help, parameter.name
        shown = parameter.opts[-1] if parameter.opts[-1].startswith("--") else parameter.name
        assert shown.lower() in outcome.out.lower()


def test_options_before_a_command_are_refused(bench):
    outcome = bench("--json", "compare", "a", "b")
    assert (outcome.code, outcome.out) == (2, "")
    assert "options of 'compare' go behind it; as_json stands before" in outcome.err


def test_fault_of_the_program_is_no_verdict(bench, toy, coco, monkeypatch):
    """Exit code 1 says drifted, inconclusive or failed: an exception that nobody expected says none of these."""
    import lgip_ort.run

    def broken(*_, **__):
        raise KeyError("nobody expected this")

    monkeypatch.setattr(lgip_ort.run, "execute", broken)
    outcome = bench("--bundle", toy, "--data", f"coco:{coco}")
    assert outcome.code == 2
    assert "nobody expected this" in outcome.err


def test_both_engines_with_unreadable_images(score, bench, spoiled, monkeypatch, toy):
    """One object on stdout, whatever fails."""
    import bench as command
    from lgip_ort.engine import OrtEngine

    monkeypatch.setattr(
        command, "_engine", lambda name, bundle, plan, provider, _: OrtEngine(bundle, provider, plan.batch_size)
    )
    outcome = bench("--engine", "both", "--bundle", toy, "--data", f"coco:{spoiled}", "--json")
    assert outcome.code == 1
    assert outcome.json()["status"] == "failed"
    assert "could not be read" in outcome.json()["error"]
