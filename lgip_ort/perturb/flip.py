"""Flips: one word exchanged, so that the caption is no longer true."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from lgip_ort.perturb.draw import draw


def word_flip(caption: str, words: Sequence[str], shortest: int, key: Sequence[object]) -> tuple[str, str, str] | None:
    """The first whole-word match of `words` in `caption`, exchanged for a drawn other one: (text, source, target).

    Case matters; neither articles nor number are repaired. None where nothing matches or the result has under
    `shortest` characters. `key` is what the draw depends on.
    """
    core = caption.strip()
    match = _pattern(tuple(words)).search(core)
    if match is None:
        return None
    source = match.group()
    (target,) = draw([word for word in words if word != source], 1, *key)
    text = core[: match.start()] + target + core[match.end() :]
    return (text, source, target) if len(text) >= shortest else None


@lru_cache
def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(map(re.escape, words)) + r")\b")
