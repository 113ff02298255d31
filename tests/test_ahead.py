from __future__ import annotations

import threading
import time

import pytest

from lgip_ort.ahead import ahead


def test_order_is_kept_whatever_takes_longer():
    def work(n):
        time.sleep((7 - n % 7) / 1000)
        return n * n

    assert list(ahead(work, range(40), workers=4, depth=6)) == [n * n for n in range(40)]
    assert list(ahead(work, [], workers=2, depth=3)) == []


@pytest.mark.parametrize("depth", [1, 4])
def test_no_more_is_taken_than_the_depth(depth):
    taken = []

    def items():
        for n in range(20):
            taken.append(n)
            yield n

    for given, result in enumerate(ahead(lambda n: n, items(), workers=3, depth=depth)):
        assert result == given
        assert len(taken) == min(20, given + depth)


def test_items_are_worked_on_at_a_time():
    """Each waits for the other: one thread alone would never end."""
    barrier = threading.Barrier(2, timeout=20)
    assert sorted(ahead(lambda n: (barrier.wait(), n)[1], range(2), workers=2, depth=2)) == [0, 1]


def test_an_exception_comes_where_its_result_would_have():
    def work(n):
        if n == 2:
            raise KeyError("two")
        return n

    found = ahead(work, range(5), workers=2, depth=5)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(KeyError, match="two"):
        next(found)


def test_what_hangs_is_given_up_and_the_rest_goes_on():
    """With one worker: the thread that is stuck must have another in its place."""
    release = threading.Event()
    stuck = []

    def work(n):
        if n in (1, 2):
            stuck.append(threading.current_thread())
            release.wait(60)
        return n

    try:
        found = ahead(work, [0, 1, 2, 3, 4, 5, 6, 7], workers=1, depth=6, seconds=0.3, late=lambda n: -n)
        assert [next(found) for _ in range(6)] == [0, -1, -2, 3, 4, 5]
        assert len(set(stuck)) == 2 and all(thread.is_alive() for thread in stuck)
    finally:
        release.set()
    for thread in stuck:  # once it comes back it is not needed any more: there is one in its place
        thread.join(20)
        assert not thread.is_alive()
    assert list(found) == [6, 7]


def test_waiting_for_a_thread_is_not_hanging():
    """The clock of an item starts when it is begun: six of 50 ms behind one thread are in time at 200 ms."""
    found = ahead(lambda n: (time.sleep(0.05), n)[1], range(6), workers=1, depth=6, seconds=0.2, late=lambda n: "late")
    assert list(found) == list(range(6))


def fail(n):
    raise KeyError(n)


def fails(found):
    with pytest.raises(KeyError):
        next(found)


@pytest.mark.parametrize(
    ("work", "items", "end"),
    [
        (str, 10**9, lambda found: (next(found), found.close())),
        (str, 5, list),
        (fail, 10**9, fails),
    ],
    ids=["closed", "at its end", "at a fault"],
)
def test_threads_end_with_the_iterator(work, items, end):
    before = set(threading.enumerate())
    made = []

    def watched(n):
        made.extend(set(threading.enumerate()) - before)
        return work(n)

    end(ahead(watched, iter(range(items)), workers=3, depth=3))
    assert len(set(made)) >= 3
    for thread in set(made):
        thread.join(20)
        assert not thread.is_alive()
