"""Seeded draws that do not depend on the order of rows, on sharding or on the process.

Every draw is keyed by what it is for (seed, image, caption, type), not by a stream of random numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def draw(items: Sequence[T], count: int, *key: object) -> list[T]:
    """`count` of `items` without replacement (all of them where there are fewer), in random order, fixed by `key`.

    The 128 bits of a hash of the key are read as digits of a mixed radix, one a place, as in a Lehmer code; with at
    most 20 items to draw the bias of a place is below 2**-60.
    """
    digest = hashlib.blake2b("\0".join(map(str, key)).encode(), digest_size=16).digest()
    number = int.from_bytes(digest)
    pool = list(items)
    drawn = []
    for _ in range(min(count, len(pool))):
        number, place = divmod(number, len(pool))
        drawn.append(pool.pop(place))
    return drawn
