"""How much of a machine others use while something is measured: it makes numbers too low, and not all by as much."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
"""Where Linux keeps what all processes together have used."""


class Watch:
    """Watches from when it is made on."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), _used_by_others()

    def cores(self) -> float | None:
        """Cores that other processes kept busy since, on average, what a host took from a virtual machine included;
        None where the system does not say."""
        used, seconds = _used_by_others(), time.perf_counter() - self._began
        if used is None or self._used is None or seconds <= 0:
            return None
        return round(max(0.0, used - self._used) / seconds, 2)


def _used_by_others() -> float | None:
    """Seconds of processor time that all processes but this one have used, since the machine started."""
    try:
        ticks = [int(field) for field in STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
        user, nice, system, _idle, _waiting, irq, softirq, stolen = ticks[:8]
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK") - time.process_time()
