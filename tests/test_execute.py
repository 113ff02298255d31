"""A run that is cut short, wherever and however: nothing is lost, nothing is half there, and it ends with the same bytes."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from conftest import ROOT
from filelock import FileLock
from made import make_coco
from toy import make_bundle

from lgip_ort import execute as execute_module

pytestmark = pytest.mark.usefixtures("no_charts")

DRIVER = """
import sys, time
sys.path.insert(0, {root!r})
import bench
from lgip_ort import encode, execute
from lgip_ort.report import html
execute.SHARD_IMAGES = 2
embed = encode.embed_pixels
def slowly(*arguments):
    time.sleep(0.03)
    return embed(*arguments)
import lgip_ort.score
lgip_ort.score.embed_pixels = slowly
html.write_report = lambda run: None
bench.main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A bundle, a data set of forty images, and the command that scores it in twenty slow shards."""
    folder = tmp_path_factory.mktemp("place")
    make_bundle(folder / "toy")
    make_coco(folder / "data")
    (folder / "driver.py").write_text(DRIVER.format(root=str(ROOT)))
    return folder


def command(place, out, *more):
    source = ["--bundle", str(place / "toy"), "--data", f"coco:{place / 'data'}"]
    return [sys.executable, str(place / "driver.py"), *source, "--out", str(out), "--json", *more]


def finish(place, out, *more):
    """Run the command to its end; returns its exit code and the run's folder."""
    done = subprocess.run(command(place, out, *more), capture_output=True, text=True, timeout=120)
    return done.returncode, (Path(json.loads(done.stdout)["run"]) if done.returncode == 0 else done.stderr)


def contents(folder):
    """Every file but those that hold times."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("run.json", ".lock")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def undisturbed(place):
    code, folder = finish(place, place / "whole")
    assert code == 0
    found = contents(folder)
    assert len(found) == 2 * 20 + 4
    return found


def started(out):
    """Wait until a run has begun there: its first shard is written."""
    for _ in range(1200):
        if list(out.rglob("scores/*.parquet")):
            return
        time.sleep(0.02)
    raise AssertionError("no shard was written")


def test_killed_at_ten_moments_it_ends_with_the_same_bytes(place, undisturbed, tmp_path):
    draw = random.Random(0)
    left = 0
    for _ in range(10):
        process = subprocess.Popen(command(place, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            started(tmp_path)
            time.sleep(draw.uniform(0, 0.12))
        finally:
            process.kill()
            process.communicate()
        kept = len(list(tmp_path.rglob("scores/*.parquet")))
        assert left <= kept
        left = kept
    assert left > 0
    code, folder = finish(place, tmp_path, "--resume")
    assert code == 0
    assert contents(folder) == undisturbed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(place, undisturbed, tmp_path, number, code):
    process = subprocess.Popen(command(place, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert "interrupted; finished shards are kept, the same command goes on with them" in err
    assert "Traceback" not in err
    code, folder = finish(place, tmp_path, "--resume")
    assert (code, contents(folder)) == (0, undisturbed)


def test_two_processes_on_one_run(place, undisturbed, tmp_path):
    first = subprocess.Popen(command(place, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started(tmp_path)
    code, error = finish(place, tmp_path)
    assert code == 2
    assert f"process {first.pid} on " in error and "is at work on this run" in error
    out, _ = first.communicate(timeout=60)
    assert (first.returncode, contents(Path(json.loads(out)["run"]))) == (0, undisturbed)


@pytest.fixture
def score(bench, place, monkeypatch, tmp_path):
    """The command in this process, in shards of two images."""
    monkeypatch.setattr(execute_module, "SHARD_IMAGES", 2)
    source = ("--bundle", place / "toy", "--data", f"coco:{place / 'data'}", "--out", tmp_path / "runs", "--json")
    return lambda *options: bench(*source, *options)


def cut_short(score, **stamp):
    """A run that stands as one that was killed, three shards of it missing; returns its folder."""
    folder = Path(score().json()["run"])
    for path in (*sorted((folder / "scores").iterdir())[4:7], folder / "profile.parquet", folder / "skipped.parquet"):
        path.unlink()
    known = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(known | {"status": "started"} | stamp))
    return folder


FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, FULL), pl.exceptions.ComputeError(f"parquet: underlying IO error: {FULL} (os error 28)")],
)
def test_a_disk_that_fills_up(score, undisturbed, monkeypatch, error):
    """In the middle of a shard: what was written of it is taken away, and the same command goes on. Polars says it in
    its own way."""
    write, calls = pl.DataFrame.write_parquet, []

    def full(self, path, **options):
        write(self, path, **options)
        calls.append(Path(path).name)
        if len(calls) > 9:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(pl.DataFrame, "write_parquet", full)
        outcome = score()
    assert outcome.code == 2 and FULL in outcome.err
    folder = Path(score("--resume").json()["run"])
    assert not [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
    assert {n: b for n, b in contents(folder).items() if n != "report.html"} == undisturbed


def test_a_folder_that_can_not_be_written_to(score, tmp_path, monkeypatch):
    mkdir = Path.mkdir

    def denied(self, *arguments, **options):
        if tmp_path in self.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return mkdir(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", denied)
    outcome = score()
    assert outcome.code == 2 and "Permission denied" in outcome.err and str(tmp_path) in outcome.err


def test_a_lock_that_another_holds(score):
    process = {"pid": 4711, "host": "elsewhere", "since": "2026-01-02T03:04:05+00:00"}
    folder = cut_short(score, process=process)
    with FileLock(folder / ".lock"):
        outcome = score()
    assert outcome.code == 2
    assert f"{folder}: process 4711 on elsewhere, since 2026-01-02T03:04:05+00:00 is at work on this run" in outcome.err
    with FileLock(folder / ".lock"):
        (folder / "run.json").unlink()
        assert "another process is at work on this run" in score().err


def test_half_written_files_of_one_that_was_killed_are_removed(score):
    folder = cut_short(score)
    for name in (".table.parquet.99.tmp", "scores/.00004-1.parquet.99.tmp", "embeddings/.x.parquet.99.tmp"):
        (folder / name).write_bytes(b"half")
    assert score().code == 0
    assert not list(folder.rglob(".*.tmp"))


def test_overwrite_leaves_nothing_of_the_old_but_the_lock(score):
    folder = cut_short(score)
    (folder / "scores/left over.parquet").write_bytes(b"of another time")
    (folder / "more").mkdir()
    assert score("--overwrite").code == 0
    assert not (folder / "scores/left over.parquet").exists() and not (folder / "more").exists()
    assert (folder / ".lock").exists()


def test_nothing_to_resume(score, tmp_path):
    outcome = score("--resume")
    assert outcome.code == 2
    assert "nothing to resume: no unfinished run of coco-val-paper in" in outcome.err
    assert not list((tmp_path / "runs").rglob("run.json"))
    score()
    assert score("--resume").json()["reused"]  # done is done


@pytest.mark.parametrize(
    ("stamp", "message"),
    [
        ({"artifact": "f" * 64}, "artifact was 'ffff"),
        ({"versions": {"numpy": "1"}}, "versions was {'numpy': '1'}, is {"),
        ({"dataset": {"hash": "d"}, "seed": 7}, "dataset hash was 'd', is '"),
    ],
)
def test_what_changed_since_is_named(score, bench, stamp, message):
    """A bundle that was exported again, say: the folder has another name, and the unfinished one is found beside it."""
    folder = cut_short(score, **stamp)
    folder.rename(folder.with_name("coco-val-paper-00000000"))
    outcome = score("--resume")
    assert outcome.code == 2
    assert f"{folder.with_name('coco-val-paper-00000000')} can't be resumed: " in outcome.err and message in outcome.err
    assert outcome.err.count(" was ") == len(stamp)
    assert not folder.exists()
    assert score().code == 0  # of its own
