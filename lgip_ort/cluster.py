"""The same shards on many processes or machines, by Ray. Who scores a shard changes no byte of it.

Every worker opens the bundle and the images by the paths that this process knows them by: on several machines both lie
on a file system that all of them see.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl

from lgip_ort.engine import Engine, EngineStamp
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.score import Local, Pairs, Progress, Shard, ShardScores

IN_FLIGHT = 2
"""Shards that a worker has at a time: one that it scores, and the next."""

RETRIES = 3
"""Times that a worker is started again after it was killed, and that its shard is tried again."""

LOCAL = "local"
"""The address that means: start Ray on this machine, for this run alone."""


class Worker:
    """An engine in a process of its own, built there."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make

    @cached_property
    def _scorer(self) -> Local:
        """Built by the first call: a fault is then that call's, and comes back as what it is."""
        return Local(self._make())

    def stamp(self) -> EngineStamp:
        """What the engine says of itself."""
        return self._scorer.stamp

    def score(self, root: Path, shard: Shard, pairs: pl.DataFrame, gallery: float) -> ShardScores:
        """The scores of one shard."""
        ((_, made),) = self._scorer.score(root, [shard], lambda _: pairs, gallery, lambda *_: None)
        return made


class Cluster:
    """Workers that score shards, as a `Scorer`; a context manager, that stops them at its end.

    `make` builds an engine and is sent to the workers; `address`: of a running cluster, or LOCAL; `gpus` and `cpus`:
    what each worker takes. Raises UsageFault where Ray is not installed, where the cluster can't be reached or has too
    little for the workers, and where an engine can't be built, with its reason.
    """

    def __init__(
        self, make: Callable[[], Engine], workers: int, address: str = LOCAL, gpus: int = 0, cpus: int = 1
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise UsageFault(f"--ray and --workers need Ray ({error}): pip install 'lgip-ort[ray]'") from error
        self._ray: Any = ray
        _refuse_unreachable(address)
        # Ray reports what it does on stdout, which is for data.
        self._stdout = contextlib.redirect_stdout(sys.stderr)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            where = _where(address, workers * cpus)
            ray.init(**where, include_dashboard=False, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageFault(f"--ray {address}: {error}") from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray puts its own in its place
        self._stdout.__enter__()
        self._check_room(workers, gpus, cpus)
        remote = ray.remote(num_gpus=gpus, num_cpus=cpus, max_restarts=RETRIES, max_task_retries=RETRIES)(Worker)
        self._workers = [remote.remote(make) for _ in range(workers)]
        try:
            stamps = ray.get([worker.stamp.remote() for worker in self._workers])
        except ray.exceptions.RayError as error:
            self.close()
            raise _reason(error) from error
        self.stamp: EngineStamp = stamps[0]
        for other in stamps[1:]:
            if other.identity() != self.stamp.identity():
                self.close()
                raise UsageFault(f"workers differ: {self.stamp.identity()} and {other.identity()}")

    def score(
        self, root: Path, shards: Sequence[Shard], pairs: Pairs, gallery: float, progress: Progress
    ) -> Iterator[tuple[Shard, ShardScores]]:
        """Every shard with its scores, as they become known."""
        root = root.resolve()
        waiting = iter(shards)
        at_work: dict[Any, tuple[Shard, Any]] = {}

        def give(worker: Any) -> None:
            if (shard := next(waiting, None)) is not None:
                at_work[worker.score.remote(root, shard, pairs(shard), gallery)] = shard, worker

        for _ in range(IN_FLIGHT):
            for worker in self._workers:
                give(worker)
        while at_work:
            (done,), _ = self._ray.wait(list(at_work), num_returns=1)
            shard, worker = at_work.pop(done)
            try:
                made = self._ray.get(done)
            except self._ray.exceptions.RayError as error:
                raise _reason(error) from error
            give(worker)
            progress("images", len(shard.images))
            yield shard, made

    def close(self) -> None:
        """Stop the workers, and Ray where it was started here."""
        self._ray.shutdown()
        self._stdout.__exit__(None, None, None)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_room(self, workers: int, gpus: int, cpus: int) -> None:
        """A worker that nobody has room for would be waited for in silence."""
        there = self._ray.cluster_resources()
        for name, each in (("CPU", cpus), ("GPU", gpus)):
            if workers * each > there.get(name, 0):
                self.close()
                raise UsageFault(
                    f"{workers} workers with {each} {name} each asked for, the cluster has {there.get(name, 0):g}"
                )


def _where(address: str, cpus: int) -> dict[str, Any]:
    """What Ray is told of where it runs. Workers on this machine find the modules that this process finds."""
    if address != LOCAL:
        return {"address": address}
    return {"num_cpus": cpus, "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}}


def _refuse_unreachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # local, auto, or a scheme of Ray's own
    try:
        socket.create_connection((host.rpartition("/")[2], int(port)), timeout=10).close()
    except OSError as error:
        raise UsageFault(f"--ray {address}: nothing answers there: {error}") from error


def _reason(error: Any) -> Exception:
    """The fault of a worker, as it would have been raised here."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, UsageFault | RunFault | OSError):
        return cause
    return RunFault(f"a worker failed and did not come back: {str(error).strip().splitlines()[-1]}")
