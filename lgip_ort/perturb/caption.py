"""A caption as words with their places, and edits that keep case and repair the article before them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
PARTS = re.compile(r"['’.-]")


class Word(NamedTuple):
    """A word of a caption: as it stands, in lower case, and where (`text[start:end]`)."""

    text: str
    lower: str
    start: int
    end: int


class Edit(NamedTuple):
    """Put `new` in the place of `text[start:end]`."""

    start: int
    end: int
    new: str


class Caption:
    """A caption cut into words.

    `joined[i]`: nothing but white space stands between words i and i + 1.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = [Word(m.group(), m.group().lower(), m.start(), m.end()) for m in WORD.finditer(text)]
        self.lower = [word.lower for word in self.words]
        self.joined = [not text[a.end : b.start].strip() for a, b in zip(self.words, self.words[1:], strict=False)] + [
            False
        ]

    def vocabulary(self) -> set[str]:
        """Its words in lower case, and the parts of compound ones: of `red-haired` also `red` and `haired`."""
        parts = (part for word in self.lower if not word.isalnum() for part in PARTS.split(word))
        return {*self.lower, *parts}

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Start and end, in characters, of words `first` to `last` (inclusive)."""
        return self.words[first].start, self.words[last].end

    def before(self, i: int) -> str | None:
        """The word before word i in lower case; None at the start and after punctuation."""
        return self.lower[i - 1] if i and self.joined[i - 1] else None

    def after(self, i: int) -> str | None:
        """The word after word i in lower case; None at the end and before punctuation."""
        return self.lower[i + 1] if self.joined[i] else None


def apply(text: str, edits: Iterable[Edit]) -> str:
    """`text` with every edit made: case as in the place it takes, `a` or `an` before it as its sound asks."""
    original = text
    for edit in sorted(edits, reverse=True):
        new, head = fitted(original, edit), text[: edit.start]
        if found := re.search(r"\b(an?)(\s+)$", head, re.IGNORECASE):
            repaired = like(found[1], article(new.split()[0]))
            head = head[: found.start()] + (repaired.upper() if original.isupper() else repaired) + found[2]
        text = head + new + text[edit.end :]
    return text


def fitted(text: str, edit: Edit) -> str:
    """What `edit` puts into `text`, in the case of its place: in capitals among capitals, a first one for a first."""
    if text.isupper():
        return edit.new.upper()
    old = text[edit.start : edit.end]
    # TV stands in capitals anywhere, and asks for none in what takes its place but at the start.
    return capital(edit.new) if old[:1].isupper() and not (old.isupper() and edit.start) else edit.new


def like(old: str, new: str) -> str:
    """`new` with the case of `old`: all capitals, a first capital, or as it is."""
    if len(old) > 1 and old.isupper() and not new.isupper():
        return new.upper()
    return capital(new) if old[:1].isupper() else new


def capital(text: str) -> str:
    """`text` with a first capital."""
    return text[:1].upper() + text[1:]


def small(text: str) -> str:
    """`text` with a small first letter, unless its first word is no ordinary one (I, TV, U.S.)."""
    first = text.split(maxsplit=1)[0] if text.split() else ""
    return text if first[1:] != first[1:].lower() or first == "I" else text[:1].lower() + text[1:]


@cache
def article(word: str) -> str:
    """`a` or `an` before `word`."""
    return inflector().a(word.lower()).split()[0]


@cache
def inflector() -> Any:
    """The inflection engine. Imported late: it takes a second, and suite `paper` does without."""
    import inflect

    return inflect.engine()


def matches(words: Sequence[str], i: int, phrase: Sequence[str]) -> bool:
    """Whether `phrase` stands in `words` at i."""
    return tuple(words[i : i + len(phrase)]) == tuple(phrase)
