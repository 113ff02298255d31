from __future__ import annotations

import logging

import numpy as np
import pytest

from lgip_ort.errors import UsageFault
from lgip_ort.halving import OUT_OF_MEMORY, Halving, is_out_of_memory

SAID = [
    RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 9"
    ),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"),
    RuntimeError("[enforce fail] posix_memalign: can't allocate memory: you tried to allocate 9 bytes. Cannot"),
    MemoryError(),
]


class Small:
    """Doubles numbers, `most` of them at a time; `tried` records the rows of every call."""

    def __init__(self, most, error):
        self.most, self.error, self.tried = most, error, []

    def __call__(self, batch):
        self.tried.append(len(batch))
        if batch.size > self.most:
            raise self.error
        return (batch.reshape(len(batch), -1)[:, :1] * 2).astype(np.float32)


@pytest.mark.parametrize("error", SAID, ids=lambda e: type(e).__name__ + str(e)[:20])
@pytest.mark.parametrize(("rows", "most"), [(64, 64), (64, 20), (7, 1), (5, 3)])
def test_the_rows_are_those_of_one_large_batch(error, rows, most):
    batch = np.arange(rows, dtype=np.float32).reshape(rows, 1)
    assert Halving(Small(most, error), "images")(batch).tolist() == (batch * 2).tolist()


def test_it_says_so_once_and_remembers(caplog):
    run = Small(20, SAID[0])
    halving = Halving(run, "images")
    with caplog.at_level(logging.WARNING):
        halving(np.zeros((64, 1), np.float32))
        assert run.tried == [64, 32, 16, 16, 16, 16]
        run.tried.clear()
        halving(np.zeros((64, 1), np.float32))
        assert run.tried == [16, 16, 16, 16]
        run.tried.clear()
        halving(np.zeros((8, 4), np.float32))  # longer rows: fewer of them fit
        assert run.tried == [4, 4]
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory on a batch of 64 images: going on with 32",
        "out of memory on a batch of 32 images: going on with 16",
    ]


def test_one_row_that_does_not_fit():
    with pytest.raises(UsageFault, match=r"one of the texts alone does not fit into memory: .*Failed to allocate"):
        Halving(Small(2, SAID[0]), "texts")(np.zeros((4, 3), np.float32))


@pytest.mark.parametrize("words", OUT_OF_MEMORY)
def test_every_known_message_is_tried_here(words):
    assert words == words.lower()
    assert any(words in str(error).lower() for error in SAID)


def test_other_faults_are_not_its_own():
    for error in (RuntimeError("CUDA error: illegal memory access"), ValueError("shape"), KeyboardInterrupt()):
        assert not is_out_of_memory(error)
        with pytest.raises(type(error)):
            Halving(Small(0, error), "texts")(np.zeros((4, 1), np.float32))
