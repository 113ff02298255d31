"""The command from end to end, on a toy bundle."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from contract import NAMES, RUN, conforms
from made import make_coco
from toy import make_bundle

from lgip_ort import execute as execute_module

ROOT = Path(__file__).resolve().parents[1]


pytestmark = pytest.mark.usefixtures("no_charts")


def parquet(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*.parquet"))}


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
    monkeypatch.setattr(execute_module, "SHARD_IMAGES", 8)
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


def test_real_photographs(bench, toy, shared):
    source = ("--bundle", toy, "--data", f"coco:{shared / 'coco'}:val2017", "--json")
    refused = bench(*source)
    assert refused.code == 2
    assert re.search(r"4,966 of 5,000 images are not there, the first is .*/val2017/\d+\.jpg", refused.err)
    data = bench(*source, "--available-only").json()
    assert (data["dataset"]["images"], data["dataset"]["captions"], data["dataset"]["missing"]) == (34, 170, 4966)
    assert data["pairs"] == {"paraphrase": 1020, "flip": 76, "combined": 0, "identity": 34}


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
