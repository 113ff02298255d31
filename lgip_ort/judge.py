"""From an interval and a margin to a verdict, and to how many images would settle it."""

from __future__ import annotations

import math
from typing import Literal

from lgip_ort.bootstrap import UNSEEN, Interval

Verdict = Literal["equal", "drifted", "inconclusive"]


def judge(interval: Interval, at_once: Interval, margin: float, images: int, min_images: int) -> Verdict:
    """The verdict on a difference with this interval, and with `at_once` among the intervals of all rows."""
    low, high = interval
    drift_low, drift_high = at_once
    if low is None or high is None or drift_low is None or drift_high is None or images < min_images:
        return "inconclusive"
    if -margin <= low and high <= margin:
        return "equal"
    if (low > margin and drift_low > margin) or (high < -margin and drift_high < -margin):
        return "drifted"
    return "inconclusive"


def in_margins(difference: float, margin: float) -> float:
    """A difference in units of its margin; of a margin of zero, infinite unless there is none."""
    if margin > 0:
        return difference / margin
    return math.copysign(math.inf, difference) if difference else 0.0


def images_needed(
    delta: float, interval: Interval, margin: float, images: int, min_images: int, unseen: float = 0.0
) -> int | None:
    """How many images would settle a row, if more of them were as these are.

    The half-width of an interval is sqrt(z^2 v / n + (UNSEEN u / n)^2) with v the variance between images and u,
    `unseen`, the change that an added image brings. Solved for the n at which it is the distance between difference and
    margin. None where the difference sits on the margin itself, which no number of images would settle.
    """
    low, high = interval
    distance = abs(margin - abs(delta))
    if low is None or high is None:
        return min_images
    if distance == 0:
        return None
    widest, added = max(high - delta, delta - low), (UNSEEN * unseen) ** 2
    spread = max(0.0, images * widest**2 - added / images)  # z^2 v
    needed = (spread + math.sqrt(spread**2 + 4 * distance**2 * added)) / (2 * distance**2)
    return max(min_images, math.ceil(needed))


def overall(verdicts: list[Verdict]) -> Verdict:
    """One drift is a drift; without one, a single open row keeps the whole open; nothing compared is nothing shown."""
    if "drifted" in verdicts:
        return "drifted"
    return "inconclusive" if "inconclusive" in verdicts or not verdicts else "equal"
