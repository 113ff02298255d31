"""What a command can end with besides success, and the suggestion of a known name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageFault(Exception):
    """What was asked for can't be done as asked: wrong name, missing file, missing hardware. Exit code 2."""


class RunFault(Exception):
    """The work was done and its result can't be trusted: NaN scores, too many skipped rows... Exit code 1."""


class Interrupted(BaseException):
    """Somebody, or the system, asked the process to stop. Exit code 128 and the number of the signal."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest of `known`, else the list of what is known."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
