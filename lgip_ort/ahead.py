"""Work done ahead of whoever uses it: in order, in a few threads, and never more than so much of it in memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class _Job(Generic[T, R]):
    item: T
    done: threading.Event = field(default_factory=threading.Event)
    began: float | None = None
    given_up: bool = False
    result: R | None = None
    error: BaseException | None = None


def ahead(
    work: Callable[[T], R],
    items: Iterable[T],
    workers: int,
    depth: int,
    seconds: float | None = None,
    late: Callable[[T], R] | None = None,
) -> Generator[R, None, None]:
    """work(item) of every item, in order, computed by `workers` threads up to `depth` items ahead.

    Items are taken by the thread that iterates. An exception of `work` is raised where its result would have come. A
    call that has not returned after `seconds` is given up: `late(item)` comes in its place. A thread can't be stopped;
    the one that is stuck is left behind, another takes its place, and neither keeps the process from ending.
    """
    queue: SimpleQueue[_Job[T, R] | None] = SimpleQueue()
    waiting: deque[_Job[T, R]] = deque()
    source = iter(items)

    def serve() -> None:
        while (job := queue.get()) is not None:
            job.began = time.monotonic()
            try:
                job.result = work(job.item)
            except BaseException as error:
                job.error = error
            job.done.set()
            if job.given_up:
                return

    def start() -> None:
        threading.Thread(target=serve, daemon=True).start()

    for _ in range(workers):
        start()
    try:
        while True:
            for item in islice(source, depth - len(waiting)):
                job = _Job[T, R](item)
                waiting.append(job)
                queue.put(job)
            if not waiting:
                return
            job = waiting.popleft()
            if not _wait(job, seconds):
                job.given_up = True
                start()
                assert late is not None
                yield late(job.item)
                continue
            if job.error is not None:
                raise job.error
            yield job.result  # type: ignore[misc]
    finally:
        for _ in range(workers):
            queue.put(None)


def _wait(job: _Job[T, R], seconds: float | None) -> bool:
    """Wait until `job` is done; False where it has been at work for longer than `seconds`."""
    if seconds is None:
        return job.done.wait()
    while True:
        spent = 0.0 if job.began is None else time.monotonic() - job.began
        if job.done.wait(max(0.01, seconds - spent)):
            return True
        if job.began is not None and time.monotonic() - job.began >= seconds:
            return job.done.is_set()
