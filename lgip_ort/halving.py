"""A batch that does not fit into memory is halved, and the run goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lgip_ort.errors import UsageFault

log = logging.getLogger(__name__)

OUT_OF_MEMORY = (
    "failed to allocate memory",
    "out of memory",
    "bad_alloc",
    "not enough memory",
    "can't allocate memory",
)
"""What ONNX Runtime, its providers and PyTorch say, in lower case."""


class Halving:
    """`run`, which takes a batch (n, ...) and gives (n, dim), on batches as large as memory takes.

    Once a batch was too large, all that are as large are cut before they are tried. Raises UsageFault where not even
    one row fits.
    """

    def __init__(self, run: Callable[[NDArray[Any]], NDArray[np.float32]], what: str) -> None:
        self._run, self._what = run, what
        self._most: int | None = None

    def __call__(self, batch: NDArray[Any]) -> NDArray[np.float32]:
        """float32 (n, dim), whatever the number of calls that it took."""
        parts: list[NDArray[np.float32]] = []
        error = self._try(batch, parts)
        if error is None:
            return parts[0]
        rows = len(batch)
        if rows == 1:
            raise UsageFault(f"one of the {self._what} alone does not fit into memory: {error}")
        half = -(-rows // 2)
        if self._most is None or batch.size // rows * half < self._most:
            self._most = batch.size // rows * half
            log.warning("out of memory on a batch of %d %s: going on with %d", rows, self._what, half)
        return np.concatenate([self(batch[:half]), self(batch[half:])])

    def _try(self, batch: NDArray[Any], parts: list[NDArray[np.float32]]) -> str | None:
        """Why `batch` did not fit, None where its result was put into `parts`."""
        if self._most is not None and batch.size > self._most and len(batch) > 1:
            return "larger than what did not fit before"
        try:
            parts.append(self._run(batch))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return str(error)
        return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of a session or of PyTorch says that memory ran out."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY)
