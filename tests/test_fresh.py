"""Loading a bundle in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.speed import fresh
from lgip_ort.speed.fresh import load_afresh, peak_bytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux knows a process's own peak")
def test_memory_is_the_process_s_own(toy):
    """Of 800 MB that this process holds nothing is in the other's peak."""
    held = np.ones(100_000_000)
    assert peak_bytes() > held.nbytes
    load = load_afresh(toy, "cpu", "fp16", 3)
    assert 10e6 < load["peak_bytes"] < 500e6


def test_seconds_of_every_part(toy):
    load = load_afresh(toy, "cpu", "fp16", 3)
    assert load.keys() == {"batch", "open", "engine", "first_batch", "peak_bytes"}
    assert load["batch"] == 3 and all(load[part] > 0 for part in ("open", "engine", "first_batch"))


def test_a_fault_there_is_a_fault_here(toy, tmp_path):
    with pytest.raises(UsageFault, match="precision fp16 found, fp32 expected"):
        load_afresh(toy, "cpu", "fp32", 3)
    with pytest.raises(UsageFault, match="not a bundle"):
        load_afresh(tmp_path, "cpu", "fp16", 3)


def test_a_process_that_dies(toy, monkeypatch):
    monkeypatch.setattr(fresh, "_load", die)
    with pytest.raises(RunFault, match="the process that loads it on cpu in fp16 died"):
        load_afresh(toy, "cpu", "fp16", 3)


def die(folder: Path, *_: object) -> None:
    import os

    os._exit(9)
