"""What tokenizers do to a text before they cut it up, as steps of a `tokenizers` normaliser."""

from __future__ import annotations

import re
import string
from typing import Any

from tokenizers import Regex, normalizers

from lgip_ort.errors import UsageFault

SPACES = r"[\s\x1c-\x1f]+"
"""What Python's str.split() takes for white space: four separators more than the regular expression has."""

FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})"
"""str.lower() turns a capital sigma at the end of a word into its final form; the lower-casing here does not."""


def single_spaces() -> list[Any]:
    """ " ".join(text.split())"""
    return [normalizers.Replace(Regex(SPACES), " "), normalizers.Strip()]


def lower_case() -> list[Any]:
    """text.lower()"""
    return [normalizers.Replace(Regex(FINAL_SIGMA), "ς"), normalizers.Lowercase()]


def without_punctuation() -> list[Any]:
    """The text without ASCII punctuation."""
    return [normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), "")]


def open_clip_cleaning(function: Any) -> list[Any]:
    """The steps of open_clip's cleaning `function` that follow ftfy and html.unescape, with which all of them begin.

    Raises UsageFault for a function that is not known.
    """
    name = getattr(function, "__name__", repr(function))
    if name == "_clean_whitespace":
        return single_spaces()
    if name == "_clean_lower":
        return [*single_spaces(), *lower_case()]
    if name == "_clean_canonicalize":
        return [normalizers.Replace("_", " "), *without_punctuation(), *lower_case(), *single_spaces()]
    raise UsageFault(f"open_clip's cleaning {name!r} found, whitespace, lower or canonicalize expected")
