"""The lexicon of suite `strict`, read from TOML and made ready for look-up."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from lgip_ort.perturb.caption import Caption, inflector

Phrase = tuple[str, ...]


class Name(NamedTuple):
    """A name of an object category in one number. `lemma`: the singular, which both numbers share."""

    category: str
    lemma: str
    plural: bool


class Synonym(NamedTuple):
    """`words` may become `to` where the next word is of the kind `after` and the word before is none of `not_before`;
    with `head`, where no preposition stands before them."""

    words: Phrase
    to: str
    after: str | None
    not_before: tuple[str, ...] = ()
    head: bool = False


class Mention(NamedTuple):
    """Words `first` to `last` of a caption are `name`."""

    first: int
    last: int
    name: Name


@dataclass(frozen=True)
class Category:
    """An object category: its group, how it is put into a caption (None: never), and the words that show it."""

    group: str
    singular: str | None
    plural: str | None
    hints: frozenset[str]


class Lexicon:
    """Look-up tables made of a lexicon's data."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.names: dict[Phrase, Name] = {}
        self.categories: dict[str, Category] = {}
        for key, entry in data["objects"].items():
            forms = [numbers(name) for name in entry["names"]]
            for one, many in forms:
                self.names[tuple(many.split())] = Name(key, one, True)
                self.names[tuple(one.split())] = Name(key, one, False)
            hints = frozenset(word for pair in forms for word in pair) | frozenset(entry["also"])
            singular, plural = forms[0] if forms else (None, None)
            self.categories[key] = Category(entry["group"], singular, plural, hints)
        self.colours: dict[str, dict[str, Any]] = data["colours"]
        self.spellings: dict[str, str] = {c: c for c in self.colours} | data["colour_spellings"]
        self.numbers: dict[str, int] = {word: i for i, word in enumerate(data["numbers"]["words"], start=2)}
        self.fixed = by_first(tuple(e.split()) for e in data["fixed"]["expressions"])
        grammar = {name: frozenset(words) for name, words in data["grammar"].items()}
        self.after_noun = grammar["after_noun"]
        self.before_noun = grammar["before_noun"]
        self.ing_nouns = grammar["ing_nouns"]
        self.ed_nouns = grammar["ed_nouns"]
        self.adjectives = grammar["adjectives"]
        self.orange_things = grammar["orange_things"]
        self.pronouns = grammar["pronouns"]
        self.no_plurals = grammar["no_plurals"]
        self.before_nouns_only = grammar["before_nouns_only"]
        self.noun_phrase_starts = grammar["noun_phrase_starts"]
        self.clause_starts = grammar["clause_starts"]
        self.quantities = grammar["quantities"]
        self.shades = grammar["shades"]
        self.colourless = grammar["colourless"]
        self.fronted = grammar["fronted"]
        self.surfaces = grammar["surfaces"]
        self.open_places = grammar["open_places"]
        self.young_people = grammar["young_people"]
        self.tied_numbers = grammar["tied_numbers"]
        self.stranding = grammar["stranding"]
        self.pointing_back = grammar["pointing_back"]
        self.determiners = grammar["determiners"] | frozenset(self.numbers)
        self.pictures = grammar["pictures"]
        self.places = grammar["places"]
        self.finite = frozenset(data["verbs"]["finite"])
        self.passive = {forms[1]: forms[2] for forms in data["verbs"]["passive"].values()}
        self.posture = frozenset(forms[1] for forms in data["verbs"]["posture"].values())
        self.plurals = frozenset(" ".join(phrase) for phrase, name in self.names.items() if name.plural)
        self.wrappers: dict[str, list[str]] = data["wrappers"]
        self.synonyms = by_first_word(_synonyms(data["synonyms"]))
        self.spatial = by_first_word(
            Synonym(tuple(a.split()), b, None) for pair in data["spatial"]["pairs"] for a, b in (pair, pair[::-1])
        )
        self.sizes = by_first_word(Synonym(tuple(a.split()), b, None) for a, b in data["sizes"]["pairs"])
        self.exchange: dict[str, Any] = data["exchange"]
        self.scenes = {name: frozenset(words) for name, words in data["scenes"].items()}
        self._longest = max(map(len, self.names))

    def blocked(self, caption: Caption) -> set[int]:
        """The words of `caption` that belong to fixed expressions."""
        out: set[int] = set()
        for i, word in enumerate(caption.lower):
            for phrase in self.fixed.get(word, ()):
                if tuple(caption.lower[i : i + len(phrase)]) == phrase:
                    out.update(range(i, i + len(phrase)))
        return out

    def mentions(self, caption: Caption) -> list[Mention]:
        """Every name of an object in `caption`, the longest first where several start at one word."""
        found, i = [], 0
        while i < len(caption.lower):
            for size in range(min(self._longest, len(caption.lower) - i), 0, -1):
                if name := self.names.get(tuple(caption.lower[i : i + size])):
                    found.append(Mention(i, i + size - 1, name))
                    i += size - 1
                    break
            i += 1
        return found

    def is_verbal(self, word: str) -> bool:
        """Whether `word`, right after a noun, is a participle: riding, parked."""
        return (word.endswith("ing") and word not in self.ing_nouns and len(word) > 4) or (
            word.endswith("ed") and word not in self.ed_nouns and len(word) > 3
        )

    def may_follow(self, word: str | None) -> bool:
        """Whether a noun before `word` stands on its own, and is no part of a compound."""
        return word is None or word in self.after_noun or self.is_verbal(word)

    def may_precede(self, word: str | None) -> bool:
        """Whether a noun after `word` stands on its own."""
        return (
            word is None
            or word in self.before_noun
            or word in self.spellings
            or word in self.numbers
            or word in ("one", "white", "black")
            or word.isdigit()
        )

    def may_describe(self, word: str) -> bool:
        """Whether `word` may stand between a determiner and its noun."""
        return word in self.spellings or word in self.adjectives

    def names_person(self, words: Sequence[str]) -> bool:
        """Whether one of `words` is a person, or a word that hints at one."""
        return any(word in self.categories["person"].hints for word in words)

    def is_thing(self, word: str) -> bool:
        """Whether `word` names an object that is no food: food may be a mass, a little of which is not a small one."""
        name = self.names.get((word,))
        return name is not None and self.categories[name.category].group != "food"

    def is_plural(self, word: str) -> bool:
        """Whether `word` is a plural noun, as far as its form tells."""
        return word in self.plurals or (
            word.endswith("s") and not word.endswith(("ss", "us", "'s", "’s")) and word not in self.no_plurals
        )

    def may_be_finite(self, word: str, before: str | None) -> bool:
        """Whether `word` may be a finite verb: it may, unless an article or adjective before it makes it a noun."""
        return word in self.finite and before not in self.before_nouns_only

    def shown(self, captions: Iterable[Caption]) -> set[str]:
        """The categories that any of an image's captions names or hints at."""
        words: set[str] = set()
        for caption in captions:
            words.update(caption.vocabulary())
            for size in (2, 3):
                words.update(" ".join(caption.lower[i : i + size]) for i in range(len(caption.lower) - size + 1))
        return {key for key, category in self.categories.items() if category.hints & words}


def _synonyms(data: dict[str, Any]) -> Iterable[Synonym]:
    for source, target in data["nouns"]:
        for old, new in zip(numbers(source), numbers(target), strict=True):
            yield Synonym(tuple(old.split()), new, "@name")
    for entry in data["phrases"]:
        words, not_before = tuple(entry["from"].split()), tuple(entry.get("not_before", ()))
        yield Synonym(words, entry["to"], entry.get("after"), not_before, entry.get("head", False))


def by_first_word(entries: Iterable[Synonym]) -> dict[str, list[Synonym]]:
    """Exchanges by the first word of what they replace."""
    out: dict[str, list[Synonym]] = {}
    for entry in entries:
        out.setdefault(entry.words[0], []).append(entry)
    return out


def numbers(name: str) -> tuple[str, str]:
    """Singular and plural of a lexicon name, `singular/plural` or `singular` alone."""
    singular, _, plural = name.partition("/")
    return singular, plural or inflector().plural_noun(singular)


def by_first(phrases: Iterable[Phrase]) -> dict[str, list[Phrase]]:
    """Phrases by their first word."""
    out: dict[str, list[Phrase]] = {}
    for phrase in phrases:
        out.setdefault(phrase[0], []).append(phrase)
    return out


@cache
def standard() -> Lexicon:
    """The lexicon of this package."""
    return Lexicon(tomllib.loads(files(__package__).joinpath("lexicon.toml").read_text(encoding="utf-8")))
