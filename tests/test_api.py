"""The lines of the README, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from made import make_coco

from lgip_ort import api
from lgip_ort.errors import UsageFault
from models import zoo

ROOT = Path(__file__).parents[1]


def test_readme_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(ROOT)
    code = code.replace('"runs"', repr(str(tmp_path)))
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "E_inv" in shown
    assert "equal" in shown


def test_score_is_what_the_command_scores(tmp_path, toy, bench):
    folder = make_coco(tmp_path / "data")
    run = api.score(toy, f"coco:{folder}:val", tmp_path / "runs")
    outcome = bench("--bundle", toy, "--data", f"coco:{folder}:val", "--out", tmp_path / "runs", "--json").json()
    assert outcome["reused"] is True
    assert outcome["run"] == str(run.folder)
    assert (run.folder / "report.html").exists()
    assert api.score(toy, f"coco:{folder}:val", tmp_path / "runs").reused
    assert api.open_run(run.folder).profile().equals(run.profile())


def test_table():
    pairs = api.table(api.Wanted("demo", suite="strict", limit=20))
    assert pairs["suite"].unique().to_list() == ["strict"]
    assert pairs["image_id"].n_unique() == 20


def test_what_is_unknown(tmp_path):
    bundle = zoo.get("tiny_clip").committed_bundle
    with pytest.raises(UsageFault, match="unknown suite"):
        api.score(bundle, api.Wanted("demo", suite="strickt"), tmp_path)
    with pytest.raises(UsageFault, match="unknown provider"):
        api.score(bundle, "demo", tmp_path, provider="gpu")
    assert not list(tmp_path.iterdir())
