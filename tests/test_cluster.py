"""Shards over Ray workers: the same bytes as without."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from made import make_coco
from toy import make_bundle

from lgip_ort import execute as execute_module
from lgip_ort.dataset import Dataset, open_dataset
from lgip_ort.engine import OrtEngine
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.execute import Plan, execute
from lgip_ort.run import Run
from lgip_ort.score import Local
from lgip_ort.stored import StoredTable, store
from lgip_ort.table import build_table

pytest.importorskip("ray", reason="Ray is not installed")
from lgip_ort.cluster import Cluster

# Ray's own: it leaves sockets and files of its processes to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundle") / "toy")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = make_coco(tmp_path_factory.mktemp("data"))
    (root / "val/000000000007.png").write_bytes(b"no image")
    return open_dataset(f"coco:{root}:val")


@pytest.fixture(scope="module")
def table(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> StoredTable:
    captions = data.images.select("image_id").join(data.captions, on="image_id", maintain_order="left_right")
    return store([build_table(captions, "paper", 0)], data.images, tmp_path_factory.mktemp("table") / "t.parquet")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute_module, "SHARD_IMAGES", 4)


def plan(data: Dataset, table: StoredTable) -> Plan:
    return Plan(data, table, "paper", 0, 64, max_skipped=1)


def files(run: Run) -> dict[str, bytes]:
    """Every file of a run whose bytes must not depend on who made it."""
    return {str(path.relative_to(run.folder)): path.read_bytes() for path in run.folder.rglob("*.parquet")}


def count(seen: Counter[str], stage: str, n: int) -> None:
    seen[stage] += n


def test_one_worker_and_three_give_the_bytes_of_none(bundle, data, table, tmp_path):
    make = partial(OrtEngine.open, bundle, "cpu")
    local = execute(Local(make()), plan(data, table), tmp_path / "local", lambda *_: None)
    assert local.stamp["n"]["skipped"] == 1
    assert len(files(local)) > 2 * 10
    for workers in (1, 3):
        seen = Counter()
        with Cluster(make, workers) as cluster:
            made = execute(cluster, plan(data, table), tmp_path / str(workers), partial(count, seen))
        assert seen == {"images": 40}
        assert made.stamp["n"] == local.stamp["n"]
        assert made.skipped().equals(local.skipped())
        assert files(made) == files(local)


class Fragile:
    """An engine whose process dies at its third batch of texts, once: `trace` remembers."""

    def __init__(self, bundle: Path, trace: Path, times: int) -> None:
        self._engine, self._trace, self._times, self._seen = OrtEngine.open(bundle, "cpu"), trace, times, 0

    def __getattr__(self, name: str):
        if name.startswith("__") or name == "_engine":
            raise AttributeError(name)
        return getattr(self._engine, name)

    def embed_ids(self, ids: np.ndarray) -> np.ndarray:
        self._seen += 1
        deaths = len(list(self._trace.iterdir()))
        if self._seen == 3 and deaths < self._times:
            (self._trace / f"{deaths}-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._engine.embed_ids(ids)


def fragile(bundle: Path, trace: Path, times: int) -> Fragile:
    return Fragile(bundle, trace, times)


@pytest.fixture
def by_value():
    """The workers don't know the tests' folder: what is defined here is sent whole."""
    import sys

    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_killed_worker_is_started_again(bundle, data, table, tmp_path, by_value):
    local = execute(Local(OrtEngine.open(bundle, "cpu")), plan(data, table), tmp_path / "local", lambda *_: None)
    (trace := tmp_path / "trace").mkdir()
    with Cluster(partial(fragile, bundle, trace, 1), 2) as cluster:
        made = execute(cluster, plan(data, table), tmp_path / "ray", lambda *_: None)
    assert len(list(trace.iterdir())) == 1
    assert files(made) == files(local)


def test_a_worker_that_always_dies_is_a_fault_and_the_run_goes_on_without_it(bundle, data, table, tmp_path, by_value):
    (trace := tmp_path / "trace").mkdir()
    with (
        Cluster(partial(fragile, bundle, trace, 99), 1) as cluster,
        pytest.raises(RunFault, match="a worker failed and did not come back"),
    ):
        execute(cluster, plan(data, table), tmp_path / "ray", lambda *_: None)
    assert len(list(trace.iterdir())) > 1
    local = Local(OrtEngine.open(bundle, "cpu"))
    made = execute(local, plan(data, table), tmp_path / "ray", lambda *_: None, resume=True)
    assert files(made) == files(execute(local, plan(data, table), tmp_path / "local", lambda *_: None))


def test_faults_of_a_worker_are_its_own(tmp_path, bundle, data, table):
    with pytest.raises(UsageFault, match=r"nothing: not a bundle, manifest\.json is missing"):
        Cluster(partial(OrtEngine.open, tmp_path / "nothing", "cpu"), 1)
    poisoned = make_bundle(tmp_path / "poisoned", poison="horse")
    with (
        Cluster(partial(OrtEngine.open, poisoned, "cpu"), 2) as cluster,
        pytest.raises(RunFault, match="scores are not finite"),
    ):
        execute(cluster, plan(data, table), tmp_path / "runs", lambda *_: None)


def test_a_cluster_that_is_not_there():
    with pytest.raises(UsageFault, match=r"--ray 127\.0\.0\.1:1: nothing answers there"):
        Cluster(partial(OrtEngine.open, Path("nowhere"), "cpu"), 1, "127.0.0.1:1")


def test_no_gpu_for_a_worker(bundle):
    with pytest.raises(UsageFault, match="1 workers with 1 GPU each asked for, the cluster has 0"):
        Cluster(partial(OrtEngine.open, bundle, "cpu"), 1, gpus=1)


def test_the_command(bench, bundle, data, tmp_path):
    argv = ["--bundle", bundle, "--data", f"coco:{data.root}:val", "--max-skipped", 1, "--json"]
    one = bench(*argv, "--out", tmp_path / "a").json()
    two = bench(*argv, "--out", tmp_path / "b", "--workers", 2, "--cores", 1).json()
    same = ("status", "metrics", "strata", "pairs", "skipped")
    assert {name: two[name] for name in same} == {name: one[name] for name in same}
    assert pl.read_parquet(Path(two["run"]) / "profile.parquet").equals(
        pl.read_parquet(Path(one["run"]) / "profile.parquet")
    )
