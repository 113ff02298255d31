"""Flips of suite `strict`: grammatical, and certainly false of the image. Where a rule is unsure, it makes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lgip_ort.perturb.caption import Caption, Edit, apply, fitted, matches
from lgip_ort.perturb.draw import draw
from lgip_ort.perturb.lexicon import Lexicon, Mention, Synonym


@dataclass(frozen=True)
class Known:
    """What is known of an image: the words of all its captions, and the object categories that it shows, by its
    captions or its annotations."""

    words: frozenset[str]
    shown: frozenset[str]


def known_of(captions: Sequence[Caption], annotated: frozenset[str] | None, lexicon: Lexicon) -> Known:
    """Put together what an image's captions and annotations (None: not annotated) say of it."""
    words = frozenset(word for caption in captions for word in caption.vocabulary())
    return Known(words, frozenset(lexicon.shown(captions)) | (annotated or frozenset()))


class Flip(NamedTuple):
    """A falsified caption: what stood there, what stands there now, and how far apart they are, without any model."""

    text: str
    source: str
    target: str
    strength: float


def _one(text: str, edit: Edit, strength: float) -> Flip:
    """The flip of a single edit."""
    return Flip(apply(text, [edit]), text[edit.start : edit.end], fitted(text, edit), strength)


def object_flip(caption: Caption, image: Known, lexicon: Lexicon, key: Sequence[object]) -> Flip | None:
    """Every mention of one drawn object becomes another object of the same number, which the image does not show."""
    blocked = lexicon.blocked(caption)
    mentions = lexicon.mentions(caption)
    by_lemma: dict[str, list[Mention]] = {}
    for mention in mentions:
        by_lemma.setdefault(mention.name.lemma, []).append(mention)
    free = [lemma for lemma, found in by_lemma.items() if all(_alone(m, caption, lexicon, blocked) for m in found)]
    # "The man" and "a man" may be two people, but "a dog and another dog" become two cats: all change together.
    for lemma in draw(free, 1, *key, "source"):
        source = by_lemma[lemma]
        near, far = _exchanges(source, caption, image, lexicon)
        (side,) = draw([near, far], 1, *key, "near or far")
        for target in draw(side or near or far, 1, *key, "target"):
            chosen = lexicon.categories[target]
            edits = []
            for m in source:
                new = chosen.plural if m.name.plural else chosen.singular
                assert new is not None
                edits.append(Edit(*caption.span(m.first, m.last), new))
            old = caption.text[edits[0].start : edits[0].end]
            group = lexicon.categories[source[0].name.category].group
            target_word = fitted(caption.text, edits[0])
            return Flip(apply(caption.text, edits), old, target_word, float(chosen.group != group))
    return None


def _exchanges(
    source: Sequence[Mention], caption: Caption, image: Known, lexicon: Lexicon
) -> tuple[list[str], list[str]]:
    """What the mentions may become: categories of their own group, and of others. None that the image shows, and none
    that a caption might have left out."""
    category = source[0].name.category
    group = lexicon.categories[category].group
    rules = lexicon.exchange
    far = list(rules["always"])
    home, outdoors = (bool(image.words & lexicon.scenes[name]) for name in ("home", "outdoors"))
    if home and not outdoors:
        far += rules["at_home"]
    elif outdoors and not home:
        far += rules["outdoors"]
    listed = any(_in_list(m, caption) for m in source)
    near = [] if listed else rules["same_group"].get(group, [])

    def allowed(target: str) -> bool:
        return target != category and target not in image.shown

    return (
        [t for t in near if allowed(t)],
        [t for t in far if allowed(t) and lexicon.categories[t].group != group],
    )


def _in_list(mention: Mention, caption: Caption) -> bool:
    """Whether a mention is one of several things named together: another of them may well be there."""
    around = (caption.before(mention.first), caption.after(mention.last))
    comma = mention.last + 1 < len(caption.words) and not caption.joined[mention.last]
    return comma or any(word in ("and", "or") for word in around)


def _alone(mention: Mention, caption: Caption, lexicon: Lexicon, blocked: set[int]) -> bool:
    """Whether a mention is a noun of its own: no fixed expression, no compound, no name of a game or a substance."""
    if blocked.intersection(range(mention.first, mention.last + 1)):
        return False
    before, after = caption.before(mention.first), caption.after(mention.last)
    if not (lexicon.may_precede(before) and lexicon.may_follow(after)):
        return False
    # sheep: one form for both numbers; the word before tells, or nothing does.
    if mention.name.lemma == "sheep":
        return before in ("a", "one") or before in lexicon.numbers or before in ("some", "several", "many")
    return mention.name.plural or mention.first == 0 or _determined(mention.first, caption, lexicon)


def _determined(first: int, caption: Caption, lexicon: Lexicon) -> bool:
    """Whether a determiner, and describing words, stand before the noun at `first`: not so in `play frisbee`."""
    for i in range(first - 1, max(-1, first - 5), -1):
        if not caption.joined[i]:
            return False
        if caption.lower[i] in lexicon.determiners or caption.lower[i] in ("one", "no", "each", "every", "other"):
            return True
        if not (lexicon.may_describe(caption.lower[i]) or caption.lower[i] in lexicon.before_noun):
            return False
    return False


def colour_flip(caption: Caption, image: Known, lexicon: Lexicon, key: Sequence[object]) -> Flip | None:
    """One drawn colour word, used as an adjective, becomes a colour that none of the image's captions names."""
    blocked = lexicon.blocked(caption)
    free = [
        i
        for i, word in enumerate(caption.lower)
        if word in lexicon.spellings and i not in blocked and _is_adjective(i, caption, lexicon)
    ]
    for i in draw(free, 1, *key, "source"):
        word = caption.lower[i]
        source = lexicon.spellings[word]
        alike = {source, *lexicon.colours[source]["alike"]}
        targets = [
            c
            for c, entry in lexicon.colours.items()
            if c not in alike
            and not image.words & {c, *entry["alike"], *(s for s, t in lexicon.spellings.items() if t == c)}
        ]
        for target in draw(targets, 1, *key, "target"):
            edit = Edit(*caption.span(i, i), target)
            distance = math.dist(lexicon.colours[source]["lab"], lexicon.colours[target]["lab"])
            return _one(caption.text, edit, distance)
    return None


def _is_adjective(i: int, caption: Caption, lexicon: Lexicon) -> bool:
    """Whether colour word i says what colour something is: before a noun, or after is, are and painted."""
    word, before, after = caption.lower[i], caption.before(i), caption.after(i)
    if before in lexicon.shades or after in lexicon.colourless or _beside_colour(i, caption, lexicon):
        return False
    if lexicon.names_person(caption.lower[i + 1 : i + 3]):  # a black woman: not what colour she is painted
        return False
    if after is None or after in lexicon.after_noun:
        return before in ("is", "are", "painted", "colored") and word != "orange" and after != "and"
    if word == "orange":  # the fruit, unless a thing that has a colour follows
        return tuple(caption.lower[i + 1 : i + 2]) in lexicon.names or after in lexicon.orange_things
    return not lexicon.is_verbal(after)


def _beside_colour(i: int, caption: Caption, lexicon: Lexicon) -> bool:
    """Whether colour word i is one of several of a thing: a third one may be on it as well."""
    low = caption.lower
    return any(
        0 <= j < len(low) and (low[j] in lexicon.spellings or low[j] in ("multicolored", "striped", "tan", "silver"))
        for j in (i - 3, i - 2, i - 1, i + 1, i + 2, i + 3)
    )


def count_flip(caption: Caption, image: Known, lexicon: Lexicon, key: Sequence[object]) -> Flip | None:
    """One drawn number of things becomes another number of them, two to ten, which no caption of the image names."""
    words = list(lexicon.numbers)
    for i, value in draw(count_words(caption, lexicon), 1, *key, "source"):
        taken = {_number(word, lexicon) for word in image.words}
        targets = [n for n in range(2, len(words) + 2) if n != value and n not in taken and n <= max(6, value)]
        for target in draw(targets, 1, *key, "target"):
            new = str(target) if caption.lower[i].isdigit() else words[target - 2]
            return _one(caption.text, Edit(*caption.span(i, i), new), abs(math.log(target / value)))
    return None


def count_words(caption: Caption, lexicon: Lexicon) -> list[tuple[int, int]]:
    """Number words that count things, as (index, value)."""
    if lexicon.tied_numbers.intersection(caption.lower):
        return []
    blocked = lexicon.blocked(caption)
    return [
        (i, value)
        for i, word in enumerate(caption.lower)
        if (value := _number(word, lexicon)) and i not in blocked and _counts(i, caption, lexicon)
    ]


def _number(word: str, lexicon: Lexicon) -> int | None:
    """The value of a number word or of one digit, from two up."""
    if word.isdecimal() and len(word) <= 2 and 2 <= int(word) <= 10:
        return int(word)
    return lexicon.numbers.get(word)


def _counts(i: int, caption: Caption, lexicon: Lexicon) -> bool:
    """Whether number word i counts the things that follow: a plural noun comes within three words."""
    if caption.before(i) in (
        "number",
        "the",
        "these",
        "those",
        "of",
        "all",
        "other",
        "last",
        "first",
        "and",
        "or",
        "about",
        "only",
        "over",
    ):
        return caption.before(i) in ("the", "these", "those", "of", "and", "all") and _plural_within(
            i, caption, lexicon, 2
        )
    return _plural_within(i, caption, lexicon, 3)


def _plural_within(i: int, caption: Caption, lexicon: Lexicon, reach: int) -> bool:
    for j in range(i + 1, min(i + 1 + reach, len(caption.lower))):
        if not caption.joined[j - 1]:
            return False
        word = caption.lower[j]
        if word in lexicon.plurals or (
            word.endswith("s")
            and not word.endswith(("ss", "us", "'s", "’s"))
            and word not in ("is", "has", "this", "as", "its", "his")
        ):
            return True
        if word in lexicon.after_noun or word in ("of", "way", "story", "person", "man"):
            return False
    return False


def spatial_flip(caption: Caption, image: Known, lexicon: Lexicon, key: Sequence[object]) -> Flip | None:
    """One drawn expression of place becomes its opposite: on the left, in front of, above, inside."""
    return _opposite(caption, lexicon.spatial, lexicon, key)


def size_flip(caption: Caption, image: Known, lexicon: Lexicon, key: Sequence[object]) -> Flip | None:
    """One drawn word of size becomes its opposite: big, small."""
    return _opposite(caption, lexicon.sizes, lexicon, key)


def _opposite(
    caption: Caption, table: dict[str, list[Synonym]], lexicon: Lexicon, key: Sequence[object]
) -> Flip | None:
    blocked = lexicon.blocked(caption)
    free = []
    for i, word in enumerate(caption.lower):
        for entry in table.get(word, ()):
            last = i + len(entry.words) - 1
            if (
                matches(caption.lower, i, entry.words)
                and all(caption.joined[i:last])
                and not blocked.intersection(range(i, last + 1))
                and _fits(i, last, caption, lexicon)
            ):
                free.append((i, last, entry.to))
    for first, last, new in draw(free, 1, *key, "source"):
        return _one(caption.text, Edit(*caption.span(first, last), new), 1.0)
    return None


def _fits(first: int, last: int, caption: Caption, lexicon: Lexicon) -> bool:
    """Whether an expression of place or size is used as one, and its opposite would be false wherever one stands."""
    low = caption.lower
    word, before, after = low[last], caption.before(first), caption.after(last)
    if word in ("left", "right") or low[first] in ("left", "right"):
        return not {"left", "right"} <= set(low)
    if first == last and word in lexicon.sizes:
        return _sized(last, caption, lexicon) and before not in ("very", "too", "so", "how")
    if word in ("over", "under"):
        moves = ("flying", "jumping", "bridge", "hanging", "standing", "sitting", "flies", "jumps")
        return before in moves and after in ("a", "an", "the")
    if after not in ("a", "an", "the", "some", "his", "her", "its", "their", "two"):
        return False
    thing = _head(last + 1, caption, lexicon)
    if thing is not None and low.count(thing) > 1:  # a building in front of a building is behind it, too
        return False
    if word == "behind" or low[first : last + 1] == ["in", "front", "of"]:
        return thing in lexicon.fronted
    if before in ("hanging", "hang", "hangs", "suspended"):
        return False
    return thing is not None and thing not in lexicon.surfaces | lexicon.open_places


def _sized(i: int, caption: Caption, lexicon: Lexicon) -> bool:
    """Whether size word i describes a thing, and no second one of the same kind that the new size would fit."""
    low = caption.lower
    after = caption.after(i)
    if after is None or after in lexicon.after_noun or after in lexicon.young_people or lexicon.may_describe(after):
        return False
    if low.count(after) > 1 or low.count(after.removesuffix("s")) > 1 or {"other", "another", "others"} & set(low):
        return False
    return not any(word.endswith(("er", "est")) and word[:4] in ("smal", "larg", "bigg") for word in low)


def _head(i: int, caption: Caption, lexicon: Lexicon) -> str | None:
    """The last word of the noun phrase whose determiner is word i: before a comma, a preposition or a verb."""
    head = None
    for j in range(i + 1, min(i + 6, len(caption.lower))):
        if not caption.joined[j - 1] or caption.lower[j] in lexicon.after_noun or lexicon.is_verbal(caption.lower[j]):
            break
        head = caption.lower[j]
    return head


FAMILIES: dict[str, Callable[[Caption, Known, Lexicon, Sequence[object]], Flip | None]] = {
    "object": object_flip,
    "colour": colour_flip,
    "count": count_flip,
    "spatial": spatial_flip,
    "size": size_flip,
}

CHECKED = frozenset({"object", "colour", "count"})
"""Families whose new word is looked for in all that is known of the image."""
