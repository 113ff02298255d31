"""Turns and their arithmetic, on a clock of our own."""

from __future__ import annotations

import numpy as np
import pytest

from lgip_ort.speed import rounds
from lgip_ort.speed.rounds import Group, Timing, Work, take_turns


class Clock:
    """Time that passes by what is done: `busy` makes a case whose every item takes `seconds`, or as many as said when
    its turn comes. `log` keeps who worked on how many items."""

    def __init__(self) -> None:
        self.now, self.log = 0.0, []

    def perf_counter(self) -> float:
        return self.now

    def busy(self, name, seconds, batch=1):
        def call(items):
            self.log.append((name, items))
            self.now += items * (seconds() if callable(seconds) else seconds)

        def make(count):
            calls = [lambda: call(batch)] * -(-count // batch)
            return Work(calls, len(calls) * batch)

        return make


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(rounds, "time", clock)
    return clock


def timing(amount, *seconds):
    return Timing(amount, np.array(seconds, float).reshape(len(seconds), -1))


def test_every_round_runs_every_case_once_and_the_warm_up_does_not_count(clock):
    slow_at_first = iter([100.0] * 3)
    cases = {"a": clock.busy("a", lambda: next(slow_at_first, 0.5)), "b": clock.busy("b", 0.5)}
    timings, warm_up = take_turns([Group(cases, seconds=0.5)], 4)
    assert timings["a"].seconds.tolist() == timings["b"].seconds.tolist() == [[0.5]] * 4
    assert warm_up == pytest.approx(300 + 3 * 0.5)
    counted = [name for name, _ in clock.log[-8:]]
    assert [sorted(counted[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4


def test_the_order_changes(clock):
    cases = {name: clock.busy(name, 1.0) for name in "abcd"}
    take_turns([Group(cases, seconds=1.0)], 6)
    names = [name for name, _ in clock.log[-24:]]
    assert len({"".join(names[i : i + 4]) for i in range(0, 24, 4)}) > 3


def test_work_is_the_same_for_all_and_sized_by_the_middling(clock):
    """0.01 and 0.04 s an item: the middle is 0.02, so that 2 s are 100 items, in whole steps of 32 are 96."""
    cases = {"fast": clock.busy("fast", 0.01, batch=8), "slow": clock.busy("slow", 0.04, batch=32)}
    timings, _ = take_turns([Group(cases, seconds=2.0, step=32)], 1)
    assert timings["fast"].amount == timings["slow"].amount == 96
    assert timings["fast"].seconds.shape == (1, 12) and timings["slow"].seconds.shape == (1, 3)
    assert timings["fast"].rate == pytest.approx(100) and timings["slow"].rate == pytest.approx(25)


@pytest.mark.parametrize(("each", "most", "expected"), [(9.0, 100, 4), (0.001, 100, 100)])
def test_at_least_a_step_and_at_most_what_there_is(clock, each, most, expected):
    timings, _ = take_turns([Group({"a": clock.busy("a", each)}, seconds=1.0, step=4, most=most)], 1)
    assert timings["a"].amount == expected


def test_groups_have_sizes_of_their_own(clock):
    groups = [Group({"a": clock.busy("a", 0.1)}, 1.0), Group({"b": clock.busy("b", 0.5)}, 1.0)]
    timings, _ = take_turns(groups, 1)
    assert (timings["a"].amount, timings["b"].amount) == (10, 2)


def test_results_are_medians():
    made = timing(10, [1, 1], [2, 3], [9, 1])
    assert made.median == 5 and made.rate == 2
    assert made.percentile(50) == 1.5 and made.percentile(100) == 9


def test_a_ratio_is_of_one_round():
    """Both become slower together: within a round `a` is always twice as fast, whatever the medians say."""
    a, b = timing(10, [1], [5], [2]), timing(10, [2], [10], [4])
    assert a.against(b).tolist() == [2, 2, 2] and b.against(a).tolist() == [0.5] * 3
    odd = timing(10, [2], [10], [1])
    assert a.against(odd).tolist() == [2, 2, 0.5] and odd.median / a.median == 1


def test_a_ratio_is_of_rates():
    """Twenty in two seconds are twice as fast as five in one."""
    assert timing(20, [2]).against(timing(5, [1])).tolist() == [2]
