"""A run that is cut short, wherever and however: nothing is lost, nothing is half there, and it ends with the same bytes."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
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
import json, os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
import bench
import lgip_ort.score
from lgip_ort import execute
from lgip_ort.report import html

how = json.loads(sys.argv.pop(1))
execute.SHARD_IMAGES = 2
html.write_report = lambda run: None
embed, replace = lgip_ort.score.embed_pixels, Path.replace
embedded = written = 0

def slowly(*arguments):
    global embedded
    embedded += 1
    if embedded == 3 and "gate" in how:
        Path(how["gate"]).touch()
        while Path(how["gate"]).exists():
            time.sleep(0.01)
    time.sleep(how.get("seconds", 0))
    return embed(*arguments)

def killed(self, target):
    # Each file is renamed when it is whole: a process that dies in the middle of one, before that, or behind it.
    global written
    written += not target.is_relative_to(os.environ["TMPDIR"])
    number, place = how.get("dies", (None, None))
    if written == number and place == "within":
        os.truncate(self, self.stat().st_size // 2)
    if written == number and place != "behind":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(self, target)
    if written == number:
        os.kill(os.getpid(), signal.SIGKILL)

lgip_ort.score.embed_pixels, Path.replace = slowly, killed
bench.main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A bundle, a data set of forty images, and the command that scores it in twenty shards; what it leaves when it is
    killed lies there, too."""
    folder = tmp_path_factory.mktemp("place")
    make_bundle(folder / "toy")
    make_coco(folder / "data")
    (folder / "temporary").mkdir()
    (folder / "driver.py").write_text(DRIVER.format(root=str(ROOT)))
    return folder


@contextmanager
def running(place, out, *options, **how):
    """The command in a process of its own, which does not outlive the block. how: what DRIVER reads."""
    source = ["--bundle", place / "toy", "--data", f"coco:{place / 'data'}", "--out", out, "--json"]
    command = [sys.executable, place / "driver.py", json.dumps(how), *source, *options]
    environment = os.environ | {"TMPDIR": str(place / "temporary")}
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finish(place, out, *options, **how):
    """Run the command to its end; returns its exit code, the run's folder (None where it gave none), and its stderr."""
    with running(place, out, *options, **how) as process:
        printed, err = process.communicate(timeout=120)
    return process.returncode, Path(json.loads(printed)["run"]) if printed else None, err


def contents(folder):
    """Every file but those that hold times."""
    left_out = ("run.json", "report.html", ".lock")
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in left_out]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def undisturbed(place):
    code, folder, err = finish(place, place / "whole")
    assert code == 0, err
    found = contents(folder)
    assert len(found) == 2 * 20 + 4
    return found


def wait_until(condition, process):
    """Until then `process` is at work."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def shards(out):
    return len(list(out.rglob("scores/*.parquet")))


# What a process writes, in this order: run.json, table, images; vectors and scores of each shard that is missing;
# skipped, profile, run.json. When it dies, and how many shards there are then; the next one goes on with them.
DIES = [
    (1, "within", 0), (1, "behind", 0), (2, "within", 0), (3, "before", 0),
    (4, "within", 0), (4, "behind", 0), (5, "within", 0), (5, "before", 0), (5, "behind", 1), (12, "within", 5),
    (3 + 2 * 15 + 1, "before", 20), (5, "within", 20), (6, "before", 20),
]  # fmt: skip


def test_killed_at_a_file_it_ends_with_the_same_bytes(place, undisturbed, tmp_path):
    for number, where, there in DIES:
        code, _, err = finish(place, tmp_path, dies=(number, where))
        assert (code, shards(tmp_path)) == (-signal.SIGKILL, there), (number, where, err)
    code, folder, err = finish(place, tmp_path, "--resume")
    assert code == 0, err
    assert contents(folder) == undisturbed


def test_killed_at_any_moment_it_ends_with_the_same_bytes(place, undisturbed, tmp_path):
    draw = random.Random(0)
    for _ in range(4):
        before = shards(tmp_path)
        with running(place, tmp_path, seconds=0.1) as process:
            wait_until(lambda before=before: shards(tmp_path) > before, process)
            time.sleep(draw.uniform(0, 0.1))
    assert 4 <= shards(tmp_path) < 20
    code, folder, err = finish(place, tmp_path, "--resume")
    assert code == 0, err
    assert contents(folder) == undisturbed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(place, undisturbed, tmp_path, number, code):
    with running(place, tmp_path, gate=str(tmp_path / "gate")) as process:
        wait_until((tmp_path / "gate").exists, process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert "interrupted; finished shards are kept, the same command goes on with them" in err
    assert "Traceback" not in err
    assert shards(tmp_path) == 2
    code, folder, err = finish(place, tmp_path, "--resume")
    assert code == 0, err
    assert contents(folder) == undisturbed


def test_two_processes_on_one_run(place, undisturbed, tmp_path):
    with running(place, tmp_path, gate=str(tmp_path / "gate")) as first:
        wait_until((tmp_path / "gate").exists, first)
        for options in ((), ("--resume",), ("--overwrite",)):
            code, _, err = finish(place, tmp_path, *options)
            assert code == 2
            assert f"process {first.pid} on " in err and "is at work on this run" in err
        (tmp_path / "gate").unlink()
        out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert contents(Path(json.loads(out)["run"])) == undisturbed


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
def test_a_disk_that_fills_up(score, undisturbed, monkeypatch, tmp_path, error):
    """In the middle of a shard: what was written of it is taken away, and the same command goes on. Polars says it in
    its own way."""
    write = pl.DataFrame.write_parquet

    def full(self, path, **options):
        write(self, path, **options)
        if path.parent.name == "scores" and shards(tmp_path) == 4:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(pl.DataFrame, "write_parquet", full)
        outcome = score()
    assert outcome.code == 2 and FULL in outcome.err and "Traceback" not in outcome.err
    (stamp,) = tmp_path.rglob("run.json")
    there = contents(stamp.parent)
    assert there.items() < undisturbed.items()  # nothing half written, nothing with another name
    assert shards(tmp_path) == 4
    assert Path(score("--resume").json()["run"]) == stamp.parent
    assert contents(stamp.parent) == undisturbed


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


def test_overwrite_that_is_cut_short_leaves_no_run_that_looks_done(score, monkeypatch):
    """The stamp goes first, whatever the order that the folder is listed in."""
    folder = Path(score().json()["run"])
    unlink, rmtree, removed = Path.unlink, shutil.rmtree, []

    def watched(remove, path, *arguments, **options):
        if folder in path.parents and path.exists() and not path.name.endswith(".tmp"):
            removed.append(path.name)
        remove(path, *arguments, **options)

    monkeypatch.setattr(Path, "unlink", lambda path, *a, **o: watched(unlink, path, *a, **o))
    monkeypatch.setattr(execute_module.shutil, "rmtree", lambda path, *a, **o: watched(rmtree, Path(path), *a, **o))
    assert score("--overwrite").code == 0
    assert {"run.json", "scores", "profile.parquet"} <= set(removed)
    assert removed[0] == "run.json"


def test_nothing_to_resume(score, tmp_path):
    outcome = score("--resume")
    assert outcome.code == 2
    assert "nothing to resume: no unfinished run of coco-val-paper in" in outcome.err
    assert not list((tmp_path / "runs").rglob("run.json"))
    folder = Path(score().json()["run"])
    assert score("--resume").json()["reused"]  # done is done
    folder.rename(folder.with_name("coco-val-paper-00000000"))  # done as well, and another's
    assert "nothing to resume: no unfinished run of coco-val-paper in" in score("--resume").err


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
