"""Cases timed in turns: every round runs each of them once, so that what else the machine does falls on all alike."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Work:
    """What a case does in a round: calls that are timed one by one, and how many images, texts, pairs or operations
    they are together."""

    calls: Sequence[Callable[[], object]]
    amount: float


Make = Callable[[int], Work]
"""The work of a case for so many images, texts or products."""


@dataclass(frozen=True)
class Group:
    """Cases, by name, that do the same work.

    `seconds`: that a case of middling speed should take over it; its size is a multiple of `step`, at most `most`.
    """

    cases: Mapping[str, Make]
    seconds: float
    step: int = 1
    most: int = 1_000_000


@dataclass(frozen=True)
class Timing:
    """What a case took. seconds: float64 (rounds, calls); amount: of its work."""

    amount: float
    seconds: NDArray[np.float64]

    @property
    def median(self) -> float:
        """Seconds that the work took, the median over the rounds."""
        return float(np.median(self.seconds.sum(axis=1)))

    @property
    def rate(self) -> float:
        """Images, texts, pairs or operations a second, in the median round."""
        return self.amount / self.median

    def against(self, other: Timing) -> NDArray[np.float64]:
        """How many times as fast as `other`, in rates, within each round: float64 (rounds,).

        Both sides of such a ratio saw the same machine, whatever else it did: their median counts.
        """
        own, others = self.seconds.sum(axis=1), other.seconds.sum(axis=1)
        found: NDArray[np.float64] = self.amount / own * others / other.amount
        return found

    def percentile(self, share: int) -> float:
        """Seconds that `share` percent of the single calls took at most, over all rounds."""
        return float(np.percentile(self.seconds, share))


def take_turns(
    groups: Sequence[Group], rounds: int, say: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, Timing], float]:
    """The timings of all cases, and how many seconds the warm-up took, of which nothing counts.

    In the warm-up the work of every group gets its size. The order within a round is drawn: no case always runs behind
    the same other one.
    """
    began = time.perf_counter()
    works: dict[str, Work] = {}
    for group in groups:
        works |= _warm_up(group, say)
    warm_up = time.perf_counter() - began
    seconds: dict[str, list[list[float]]] = {name: [] for name in works}
    order, draw = list(works), random.Random(0)
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}")
        draw.shuffle(order)
        for name in order:
            seconds[name].append(_once(works[name]))
    return {name: Timing(works[name].amount, np.array(found)) for name, found in seconds.items()}, warm_up


def _warm_up(group: Group, say: Callable[[str], None]) -> dict[str, Work]:
    """The work of every case, of one size, run once before anything counts."""
    each = []
    for name, make in group.cases.items():
        say(f"warm-up: {name}")
        work = make(group.step)
        _once(work)  # the first time memory is taken, and kernels are chosen or compiled
        each.append(sum(_once(work)) / group.step)
    middling = math.exp(sum(map(math.log, each)) / len(each))  # one slow case among fast ones does not set the size
    size = min(group.most, max(1, round(group.seconds / middling / group.step)) * group.step)
    works = {name: make(size) for name, make in group.cases.items()}
    for work in works.values():
        _once(work)
    return works


def _once(work: Work) -> list[float]:
    """Seconds of every call."""
    seconds = []
    for call in work.calls:
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds
