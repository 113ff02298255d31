"""The rules of the paper's suite, frozen: wrappers, synonyms, "passive", flips and both together.

They are what the published numbers were made with, flaws included: nothing is repaired here. Every draw is keyed by
(seed, image, caption, type).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import combinations, product
from typing import Any, Literal, NamedTuple

from lgip_ort.perturb.draw import draw

Pool = Literal["wrappers", "advanced"]
Key = Sequence[object]


class Flip(NamedTuple):
    """A caption with one word exchanged: the text, the word that stood there, the word that stands there now."""

    text: str
    source: str
    target: str


@cache
def rules() -> dict[str, Any]:
    """The word lists and constants of `paper.toml`."""
    return tomllib.loads(files(__package__).joinpath("paper.toml").read_text(encoding="utf-8"))


def wrappers(caption: str) -> dict[str, str]:
    """Every wrapped form of `caption` with its template: the caption goes in untouched but for outer white space.

    Results that are too short, duplicates and the caption itself are left out.
    """
    core = caption.strip()
    made: dict[str, str] = {}
    for template in rules()["wrappers"]:
        text = template.format(core).strip()
        if len(text) >= rules()["shortest"] and text != core:
            made.setdefault(text, template)
    return made


def advanced(caption: str) -> dict[str, str]:
    """The pool of the advanced paraphrases with the rule that made each: wrappers, synonyms, "passive".

    Results that are too short and those equal to the caption but for case are left out.
    """
    core = caption.strip()
    made = wrappers(core)
    for text in synonyms(core):
        made.setdefault(text, "synonym")
    if turned := passive(core):
        made.setdefault(turned, "passive")
    shortest = rules()["shortest"]
    return {text: rule for text, rule in made.items() if len(text) >= shortest and text.lower() != core.lower()}


def synonyms(caption: str) -> Iterator[str]:
    """Every single substitution and every pair of substitutions, lower-cased with a first capital.

    Words are what white space separates: one with punctuation attached does not match.
    """
    words = caption.lower().split()
    places = [i for i, word in enumerate(words) if word in rules()["synonyms"]]
    for chosen in [*combinations(places, 1), *combinations(places, 2)]:
        for new in product(*(rules()["synonyms"][words[i]] for i in chosen)):
            changed = list(words)
            for i, word in zip(chosen, new, strict=True):
                changed[i] = word
            yield _capital(" ".join(changed))


def passive(caption: str) -> str | None:
    """The first of three patterns that matches, with its parts exchanged; mostly ungrammatical, and kept so.

    `A W V P REST.` -> `A REST V P W.`; `W V P REST.` -> `REST V P W.`; `A W is going down REST.` -> `REST is going W
    down them.`; lower-cased with a first capital. None where none matches.
    """
    for pattern, form in _patterns():
        if match := pattern.match(caption.strip()):
            return _capital(form.format(**match.groupdict()).lower())
    return None


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    lists = {name: "|".join(map(re.escape, words)) for name, words in rules()["passive"].items()}
    tail = rf"(?P<verb>{lists['verbs']})\s+(?P<place>{lists['places']})\s+(?P<rest>.+)\.$"
    moving = rf"(?P<be>is|are)\s+(?P<move>{lists['moves']})\s+(?P<way>{lists['ways']})\s+(?P<rest>.+)\.$"
    return [
        (re.compile(rf"A\s+(?P<word>\w+)\s+{tail}", re.IGNORECASE), "A {rest} {verb} {place} {word}."),
        (re.compile(rf"(?P<word>\w+)\s+{tail}", re.IGNORECASE), "{rest} {verb} {place} {word}."),
        (re.compile(rf"A\s+(?P<word>\w+)\s+{moving}", re.IGNORECASE), "{rest} {be} {move} {word} {way} them."),
    ]


def paraphrases(caption: str, pool: Pool, key: Key) -> list[tuple[str, str]]:
    """Six drawn paraphrases of a pool, as (text, template or rule)."""
    made = wrappers(caption) if pool == "wrappers" else advanced(caption)
    kind = "wrapper" if pool == "wrappers" else "advanced"
    return draw(list(made.items()), rules()["paraphrases_drawn"], *key, kind)


def flips(caption: str, key: Key) -> Iterator[tuple[str, Flip]]:
    """At most one flip of each type (colour, count, object), with its type; a text that is made twice counts once."""
    seen = set()
    for family, words in rules()["flips"].items():
        flip = word_flip(caption, words, rules()["shortest"], (*key, family))
        if flip and flip.text not in seen:
            seen.add(flip.text)
            yield family, flip


def word_flip(caption: str, words: Sequence[str], shortest: int, key: Key) -> Flip | None:
    """The first whole-word match of `words` in `caption`, exchanged for a drawn other one.

    Case matters; neither articles nor number are repaired. None where nothing matches or the result has under
    `shortest` characters. `key` is what the draw depends on.
    """
    core = caption.strip()
    match = _any_of(tuple(words)).search(core)
    if match is None:
        return None
    source = match.group()
    (target,) = draw([word for word in words if word != source], 1, *key)
    text = core[: match.start()] + target + core[match.end() :]
    return Flip(text, source, target) if len(text) >= shortest else None


def combined(caption: str, key: Key) -> list[tuple[str, Flip]]:
    """Paraphrased and flipped: every flip of five drawn advanced paraphrases, the first six kept."""
    pool = list(advanced(caption).items())
    made: dict[str, tuple[str, Flip]] = {}
    for number, (text, _) in enumerate(draw(pool, rules()["combined_paraphrases"], *key, "combined")):
        for family, flip in flips(text, (*key, "combined", number)):
            made.setdefault(flip.text, (family, flip))
    return list(made.values())[: rules()["combined_kept"]]


@cache
def _any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(map(re.escape, words)) + r")\b")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
