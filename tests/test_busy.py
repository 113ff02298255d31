"""What others use is what all use, without this process."""

from __future__ import annotations

import os

import pytest

from lgip_ort.speed import busy
from lgip_ort.speed.busy import Watch


class Clock:
    """Wall and process time that a test sets."""

    def __init__(self, wall, own):
        self.wall, self.own = wall, own

    def perf_counter(self):
        return self.wall

    def process_time(self):
        return self.own


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Sets wall time, this process's time, and the fields of /proc/stat in seconds."""
    stat, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(busy, "STAT", stat)

    def set_(wall, own, *fields):
        monkeypatch.setattr(busy, "time", Clock(wall, own))
        stat.write_text("cpu  " + " ".join(str(int(field * tick)) for field in fields) + " 0 0\ncpu0 1 2 3\n")

    return set_


def test_cores_that_others_keep_busy(machine):
    """In ten seconds 6 user, 1 nice, 2 system, 1 irq, 1 softirq, 4 stolen, of which 8 are this process's: 7 of 10."""
    machine(100, 20, 50, 10, 10, 900, 5, 0, 0, 0)
    watch = Watch()
    machine(110, 28, 56, 11, 12, 905, 6, 1, 1, 4)
    assert watch.cores() == 0.7


def test_idle(machine):
    machine(100, 20, 50, 0, 0, 0, 0, 0, 0, 0)
    watch = Watch()
    machine(110, 30.004, 60, 0, 0, 0, 0, 0, 0, 0)  # ticks are coarser than this process's clock
    assert watch.cores() == 0.0


def test_where_the_system_does_not_say(machine, monkeypatch, tmp_path):
    machine(100, 20, 50, 0, 0, 0, 0, 0, 0, 0)
    watch = Watch()
    monkeypatch.setattr(busy, "STAT", tmp_path / "nothing")
    assert watch.cores() is None and Watch().cores() is None
    (tmp_path / "other").write_text("cpu of another kind\n")
    monkeypatch.setattr(busy, "STAT", tmp_path / "other")
    assert Watch().cores() is None
