"""What it takes to load a bundle: seconds and memory of a process that does nothing else."""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np

from lgip_ort.bundle import Precision, open_bundle
from lgip_ort.engine import OrtEngine
from lgip_ort.errors import RunFault


def load_afresh(folder: Path, provider: str, precision: Precision, batch: int) -> dict[str, Any]:
    """Open the bundle in `folder`, build its engine and run a batch of images and one of texts, in a new process.

    Seconds to `open` the bundle (every sha256 is checked), to build the `engine`, and for the `first_batch` of each
    tower; `peak_bytes` of memory of the whole process, Python and all, None where the system does not say; `batch`.
    Raises UsageFault as OrtEngine does, RunFault where the process dies.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_load, folder.resolve(), provider, precision, batch).result()
        except BrokenProcessPool as error:
            raise RunFault(f"{folder}: the process that loads it on {provider} in {precision} died: {error}") from error


def _load(folder: Path, provider: str, precision: Precision, batch: int) -> dict[str, Any]:
    began = time.perf_counter()
    bundle = open_bundle(folder)
    opened = time.perf_counter()
    engine = OrtEngine(bundle, provider, batch, precision=precision)
    built = time.perf_counter()
    size = bundle.manifest.image.size
    engine.embed_pixels(np.zeros((batch, 3, size, size), np.float32))
    for _, ids in engine.batches(["a photo of a cat"] * batch):
        engine.embed_ids(ids)
    ran = time.perf_counter()
    return {
        "batch": batch,
        "open": opened - began,
        "engine": built - opened,
        "first_batch": ran - built,
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int | None:
    """The most memory that this process ever held, None where the system does not say.

    On Linux getrusage's figure is inherited: that of a child is its parent's where the parent held more. The kernel's
    own high-water mark is of this program alone.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
