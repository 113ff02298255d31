"""Making a run: what is in its folder, what makes it another one, and what it keeps of an earlier try."""

from __future__ import annotations

import dataclasses
import json
import shutil
from contextlib import contextmanager

import polars as pl
import pytest
from made import MadeEngine, make_coco, make_plan

from lgip_ort import encode as encode_module
from lgip_ort import execute as execute_module
from lgip_ort.dataset import open_dataset
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.execute import execute
from lgip_ort.image import ImageFault
from lgip_ort.run import open_run
from lgip_ort.score import Local
from lgip_ort.table import build_table


def quiet(stage, count):
    """A progress that shows nothing."""


@pytest.fixture
def planned(tmp_path_factory):
    """A plan over a data set in COCO's layout."""
    tables = tmp_path_factory.mktemp("tables")

    def make(folder, limit=40, seed=0, batch_size=64, max_skipped=0):
        data = open_dataset(f"coco:{folder}").head(limit)
        return make_plan(tables, data, build_table(data.captions, "paper", seed), seed, batch_size, max_skipped)

    return make


def whole(plan):
    """The table of a plan."""
    return plan.table.scan().collect()


@pytest.fixture
def plan(coco, planned, monkeypatch):
    """Forty images in five shards."""
    monkeypatch.setattr(execute_module, "SHARD_IMAGES", 8)
    return planned(coco)


@pytest.fixture
def spoiled(tmp_path, monkeypatch):
    """A data set of six images, two in a shard, the fourth of which can't be read."""
    monkeypatch.setattr(execute_module, "SHARD_IMAGES", 2)
    folder = make_coco(tmp_path / "spoiled", images=6)
    path = folder / "val/000000000004.png"
    path.write_bytes(path.read_bytes()[:60])
    return folder


def contents(folder, kind="*.parquet"):
    """The bytes of every file of a kind, by its path in the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob(kind))}


def test_folder(plan, tmp_path):
    run = execute(Local(MadeEngine()), plan, tmp_path, quiet, load=2.0)
    assert run.folder.parent == tmp_path / "made/made-cpu-fp16"
    assert run.folder.name.startswith("coco-val-paper-")
    assert len(list((run.folder / "scores").iterdir())) == len(list((run.folder / "embeddings").iterdir())) == 5
    files = {path.name for path in run.folder.iterdir() if path.is_file()}
    assert files == {".lock", "run.json", "table.parquet", "images.parquet", "skipped.parquet", "profile.parquet"}
    assert run.table().equals(whole(plan))
    assert run.pairs()["pair_id"].equals(whole(plan)["pair_id"])
    assert pl.read_parquet(run.folder / "images.parquet").equals(plan.dataset.images)
    assert len(run.embeddings().filter(tower="vision")) == 40


def test_stamp(plan, tmp_path):
    run = execute(Local(MadeEngine()), plan, tmp_path, quiet, load=2.0)
    stamp = json.loads((run.folder / "run.json").read_text())
    assert stamp == run.stamp
    assert stamp["status"] == "done"
    assert stamp["n"] == {"original": 760, "effective": 760, "images": 40, "skipped": 0}
    assert stamp["pairs"] == {"paraphrase": 480, "flip": 240, "combined": 0, "identity": 40}
    assert {name: stamp["dataset"][name] for name in ("name", "images", "captions", "missing", "named")} == {
        "name": "coco-val", "images": 40, "captions": 80, "missing": 0, "named": 40,
    }  # fmt: skip
    for name in ("started", "finished", "lgip_ort", "python", "machine", "versions", "weights", "artifact", "table"):
        assert stamp[name], name
    assert (stamp["suite"], stamp["seed"], stamp["batch_size"]) == ("paper", 0, 64)
    assert set(stamp["seconds"]) == {"load", "images", "texts", "score", "total"}
    assert stamp["seconds"]["load"] == 2.0 < stamp["seconds"]["total"]
    assert open_run(run.folder) == dataclasses.replace(run, reused=True)


def test_finished_run_is_shown_again_and_not_touched(plan, tmp_path):
    first = execute(Local(MadeEngine()), plan, tmp_path, quiet)
    before, engine = contents(first.folder, "*.*"), MadeEngine()
    again = execute(Local(engine), plan, tmp_path, quiet)
    assert again.reused
    assert not first.reused
    assert again.stamp == first.stamp
    assert engine.texts == engine.images == []
    assert contents(first.folder, "*.*") == before


def test_run_that_another_process_finished_meanwhile(plan, tmp_path, monkeypatch):
    """Between the first look and the lock."""
    locked = execute_module._locked

    @contextmanager
    def late(folder):
        monkeypatch.setattr(execute_module, "_locked", locked)
        execute(Local(MadeEngine()), plan, tmp_path, quiet)
        with locked(folder):
            yield

    monkeypatch.setattr(execute_module, "_locked", late)
    engine = MadeEngine()
    run = execute(Local(engine), plan, tmp_path, quiet)
    assert run.reused and run.stamp["status"] == "done"
    assert engine.texts == engine.images == []


def test_overwrite_computes_again(plan, tmp_path):
    first = execute(Local(MadeEngine()), plan, tmp_path, quiet)
    (first.folder / "scores/left over.parquet").write_bytes(b"of another time")
    engine = MadeEngine()
    again = execute(Local(engine), plan, tmp_path, quiet, overwrite=True)
    assert (again.folder, again.reused, sum(engine.images)) == (first.folder, False, 40)
    assert not (again.folder / "scores/left over.parquet").exists()


class Killed(MadeEngine):
    """An engine whose process ends in its n-th shard, and which looks at the stamp before."""

    def __init__(self, n, out):
        super().__init__()
        self.n, self.out = n, out

    def encode_texts(self, texts, pad_to=None):
        if len(self.images) == self.n:
            (stamp,) = self.out.rglob("run.json")
            assert json.loads(stamp.read_text())["status"] == "started"
            raise KeyboardInterrupt
        return super().encode_texts(texts)


@pytest.mark.parametrize("shard", [1, 3, 5])
def test_killed_run_goes_on_and_ends_with_the_same_bytes(plan, tmp_path, shard):
    whole = execute(Local(MadeEngine()), plan, tmp_path / "whole", quiet)
    with pytest.raises(KeyboardInterrupt):
        execute(Local(Killed(shard, tmp_path / "killed")), plan, tmp_path / "killed", quiet)
    engine = MadeEngine()
    resumed = execute(Local(engine), plan, tmp_path / "killed", quiet)
    assert len(engine.images) == 5 - (shard - 1)
    assert contents(resumed.folder) == contents(whole.folder)
    assert resumed.stamp["status"] == "done"


def test_missing_shards_are_filled_in(plan, tmp_path):
    """Whichever they are: half of a shard (its vectors without its scores) counts as missing."""
    run = execute(Local(MadeEngine()), plan, tmp_path, quiet)
    whole = contents(run.folder)
    scores = sorted((run.folder / "scores").iterdir())
    scores[0].unlink()
    scores[3].unlink()
    (run.folder / "embeddings" / scores[3].name).unlink()
    (run.folder / "run.json").write_text(json.dumps(run.stamp | {"status": "started"}))
    engine = MadeEngine()
    execute(Local(engine), plan, tmp_path, quiet)
    assert engine.images == [8, 8]
    assert contents(run.folder) == whole


def test_shards_do_not_change_the_profile(plan, tmp_path, monkeypatch):
    small = execute(Local(MadeEngine()), plan, tmp_path / "small", quiet)
    monkeypatch.setattr(execute_module, "SHARD_IMAGES", 512)
    large = execute(Local(MadeEngine()), plan, tmp_path / "large", quiet)
    for name in ("profile.parquet", "table.parquet", "skipped.parquet"):
        assert (small.folder / name).read_bytes() == (large.folder / name).read_bytes()


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 1}, {"limit": 39}])
def test_other_inputs_are_another_run(plan, coco, tmp_path, change, planned):
    first = execute(Local(MadeEngine()), plan, tmp_path, quiet)
    assert execute(Local(MadeEngine()), planned(coco, **change), tmp_path, quiet).folder != first.folder


def test_another_artifact_is_another_run(plan, tmp_path):
    first, engine = execute(Local(MadeEngine()), plan, tmp_path, quiet), MadeEngine()
    engine.stamp = dataclasses.replace(engine.stamp, artifact="3" * 64)
    assert execute(Local(engine), plan, tmp_path, quiet).folder != first.folder


def with_padding(plan, text, perturbed, arm="paper"):
    lengths = {"text_length": text, "perturbed_length": perturbed}
    table = whole(plan).with_columns(pl.lit(n, pl.UInt16).alias(name) for name, n in lengths.items())
    return make_plan(plan.table.path.parent, plan.dataset, table, padding=arm)


def test_other_lengths_are_another_run(plan, tmp_path):
    """The original's artifact is its weights: that a bundle counts its tokens in another way shows in the lengths alone."""
    engine = MadeEngine()
    engine.stamp = dataclasses.replace(engine.stamp, padding="paper")
    runs = [execute(Local(engine), with_padding(plan, 9, n), tmp_path, quiet) for n in (5, 6, 5)]
    assert [run.reused for run in runs] == [False, False, True]
    assert runs[0].folder == runs[2].folder != runs[1].folder
    assert (runs[1].stamp["padding"], runs[1].stamp["lengths"] | {"sha256": ""}) == (
        "paper", {"min": 6, "max": 9, "sha256": ""},
    )  # fmt: skip
    assert runs[1].table()["perturbed_length"].unique().to_list() == [6]
    assert execute(Local(MadeEngine()), plan, tmp_path, quiet).stamp["lengths"] is None


def test_engine_of_another_arm_than_the_plan(plan, tmp_path):
    """Its numbers would stand under a wrong name."""
    with pytest.raises(ValueError, match="padding 'trained' found in the engine, 'paper' in the plan"):
        execute(Local(MadeEngine()), with_padding(plan, 9, 9), tmp_path, quiet)
    assert not list(tmp_path.rglob("run.json"))


def test_a_text_of_several_shards_has_one_vector(plan, tmp_path):
    """However often it was encoded: runs are compared vector by vector."""
    text = pl.lit("the same caption everywhere")
    table = whole(plan).with_columns(text=text)
    run = execute(Local(MadeEngine()), make_plan(plan.table.path.parent, plan.dataset, table), tmp_path, quiet)
    vectors = run.embeddings()
    assert not vectors.select("tower", "key").is_duplicated().any()
    assert len(vectors.filter(tower="text")) == 1


def test_unreadable_image(spoiled, tmp_path, planned):
    run = execute(Local(MadeEngine()), planned(spoiled), tmp_path, quiet)
    assert run.failed
    assert run.stamp["status"] == "failed"
    assert run.stamp["error"].startswith(
        "1 images could not be read, --max-skipped allows 0; the first is val/000000000004.png: "
    )
    assert run.skipped().select("image_id", "path").rows() == [("4", "val/000000000004.png")]
    assert run.stamp["n"] == {"original": 6 * 19, "effective": 5 * 19, "images": 5, "skipped": 1}
    assert run.stamp["pairs"] == {"paraphrase": 60, "flip": 30, "combined": 0, "identity": 5}
    assert "4" not in set(run.pairs()["image_id"])
    with pytest.raises(UsageFault, match="the run is 'failed', not done"):
        open_run(run.folder)


def test_tolerance_is_no_input(spoiled, tmp_path, planned):
    """Of a failed run only the shard with the unreadable image is read again; a done one is judged and left as it is."""
    failed = execute(Local(MadeEngine()), planned(spoiled), tmp_path, quiet)
    for tolerated in (1, 0):
        engine = MadeEngine()
        run = execute(Local(engine), planned(spoiled, max_skipped=tolerated), tmp_path, quiet)
        assert (run.folder, run.failed, sum(engine.images)) == (failed.folder, tolerated == 0, tolerated)
        assert open_run(run.folder).stamp["status"] == "done"
        assert run.skipped()["image_id"].to_list() == ["4"]


def test_other_pixels_are_another_run(tmp_path, planned):
    """Files of the same name and size, with another picture in them."""
    data = make_coco(tmp_path / "data", images=4)
    first = execute(Local(MadeEngine()), planned(data), tmp_path, quiet)
    path = data / "val/000000000001.png"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    assert execute(Local(MadeEngine()), planned(data, max_skipped=1), tmp_path, quiet).folder != first.folder


@pytest.mark.parametrize("name", ["g[1]", "h*", "a?c"])
def test_folder_that_looks_like_a_pattern(plan, tmp_path, name, planned):
    """What stands in a neighbour whose name the pattern fits is not read."""
    other = execute(Local(MadeEngine()), planned(make_coco(tmp_path / "data", images=4)), tmp_path / "g1", quiet)
    run = execute(Local(MadeEngine()), plan, tmp_path / name, quiet)
    assert len(run.pairs()) == plan.table.rows != len(other.pairs())
    assert run.profile().height > 0 and run.skipped().is_empty()


def test_image_that_can_be_read_again(tmp_path, monkeypatch, planned):
    """The reason why an image was skipped may have passed: nothing that was skipped is taken from an earlier try."""
    plan = planned(make_coco(tmp_path / "data", images=4))
    read = encode_module.read_pixels

    def broken(path, prepare):
        if path.name.endswith("3.png"):
            raise ImageFault("OSError: the disk is away")
        return read(path, prepare)

    monkeypatch.setattr(encode_module, "read_pixels", broken)
    assert execute(Local(MadeEngine()), plan, tmp_path, quiet).failed
    monkeypatch.undo()
    run = execute(Local(MadeEngine()), plan, tmp_path, quiet)
    assert (run.failed, run.stamp["n"]["images"], len(run.skipped())) == (False, 4, 0)


def test_no_readable_image(tmp_path, planned):
    folder = make_coco(tmp_path / "data", images=2)
    for path in (folder / "val").iterdir():
        path.write_bytes(b"")
    run = execute(Local(MadeEngine()), planned(folder, max_skipped=2), tmp_path, quiet)
    assert run.stamp["n"] == {"original": 38, "effective": 0, "images": 0, "skipped": 2}
    assert len(run.profile()) == 0


def test_score_that_is_not_finite(plan, tmp_path):
    engine = MadeEngine({whole(plan)[-1, "perturbed"]: (float("nan"), 0, 0)})
    with pytest.raises(RunFault, match="not finite"):
        execute(Local(engine), plan, tmp_path, quiet)
    (stamp,) = tmp_path.rglob("run.json")
    assert json.loads(stamp.read_text())["status"] == "failed"
    assert "not finite" in json.loads(stamp.read_text())["error"]
    assert not list(tmp_path.rglob("profile.parquet"))


def test_revision_of_the_source(monkeypatch, tmp_path):
    assert execute_module._git_revision() is None or len(execute_module._git_revision()) == 40
    monkeypatch.setenv("PATH", str(tmp_path))
    assert execute_module._git_revision() is None
    assert shutil.which("git") is None
