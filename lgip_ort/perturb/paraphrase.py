"""Paraphrases of suite `strict`: the same statement in other words. Where a rule is not sure, it makes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lgip_ort.perturb.caption import Caption, Edit, apply, capital, fitted, like, matches, small
from lgip_ort.perturb.draw import draw
from lgip_ort.perturb.flip import count_words
from lgip_ort.perturb.lexicon import Lexicon


class Paraphrase(NamedTuple):
    """A reworded caption; what stood there and what stands there now, None where the whole sentence was rebuilt."""

    text: str
    source: str | None = None
    target: str | None = None


Rule = Callable[[Caption, Lexicon, Sequence[object]], Iterator[Paraphrase]]


def wrapper(caption: Caption, lexicon: Lexicon, key: Sequence[object]) -> Iterator[Paraphrase]:
    """Two drawn wrappers that fit: of a noun phrase, or of a clause."""
    if not caption.words or is_picture(caption, lexicon) or is_shouted(caption):
        return
    templates: Sequence[str] = ()
    if is_clause(caption, lexicon) and caption.lower[0] not in ("this", "these", "here"):
        templates = lexicon.wrappers["clause"]
    elif is_noun_phrase(caption, lexicon):
        templates = lexicon.wrappers["noun_phrase"]
    for template in draw(templates, 2, *key):
        yield Paraphrase(template.format(small(caption.text)), None, template)


def synonym(caption: Caption, lexicon: Lexicon, key: Sequence[object]) -> Iterator[Paraphrase]:
    """Two drawn exchanges of a noun or phrase for one of the same meaning."""
    blocked = lexicon.blocked(caption)
    for first, last, new in draw(list(_synonyms(caption, lexicon, blocked)), 2, *key):
        yield _one(caption.text, Edit(*caption.span(first, last), new))


def _one(text: str, edit: Edit) -> Paraphrase:
    """The paraphrase of a single edit."""
    return Paraphrase(apply(text, [edit]), text[edit.start : edit.end], fitted(text, edit))


def _synonyms(caption: Caption, lexicon: Lexicon, blocked: set[int]) -> Iterator[tuple[int, int, str]]:
    for i, word in enumerate(caption.lower):
        for entry in lexicon.synonyms.get(word, ()):
            last = i + len(entry.words) - 1
            if not matches(caption.lower, i, entry.words) or blocked.intersection(range(i, last + 1)):
                continue
            if not all(caption.joined[i:last]) or (word == "lots" and caption.before(i) in ("of", "with")):
                continue
            if caption.before(i) in entry.not_before or caption.lower.count(word) > 1:
                continue  # of two, both or none would have to change
            if entry.head and (lexicon.places | {"of", "with"}).intersection(caption.lower[:i]):
                continue
            after = caption.after(last)
            fits = {
                None: True,
                "@article": after in ("a", "an", "the"),
                "@det": after in lexicon.determiners,
                "@noun": after is not None
                and after not in lexicon.after_noun
                and caption.before(i) not in ("very", "too", "so"),
                "@thing": after is not None and lexicon.is_thing(after),
                "@plural": caption.before(i) not in lexicon.determiners
                and after is not None
                and _plural_near(last, caption, lexicon),
                "@name": lexicon.may_precede(caption.before(i)) and lexicon.may_follow(after),
            }
            if fits[entry.after]:
                yield i, last, entry.to


def _plural_near(last: int, caption: Caption, lexicon: Lexicon) -> bool:
    return any(lexicon.is_plural(w) for w in caption.lower[last + 1 : last + 3])


def voice(caption: Caption, lexicon: Lexicon, key: Sequence[object]) -> Iterator[Paraphrase]:
    """`A man riding a horse` <-> `A horse being ridden by a man`, with a place behind it or nothing."""
    words, low = caption.words, caption.lower
    if not can_be_turned(caption):
        return
    for i, word in enumerate(low):
        if word in lexicon.passive and 2 <= i <= 5 and all(caption.joined[:i]):
            subject = _simple(caption, 0, i - 1, lexicon)
            stop = _noun_phrase_end(caption, i + 1, lexicon)
            if not subject or stop is None:
                return
            if not _shared_place(stop + 1, caption, lexicon):
                return
            agent = small(caption.text[: words[i - 1].end])
            patient = caption.text[words[i + 1].start : words[stop].end]
            rest = caption.text[words[stop].end :]
            yield Paraphrase(f"{like(caption.text[:1], patient)} being {lexicon.passive[word]} by {agent}{rest}")
            return


def _shared_place(first: int, caption: Caption, lexicon: Lexicon) -> bool:
    """Whether what follows from word `first` on is nothing, or a place that both things before it share."""
    rest = caption.lower[first:]
    if not rest:
        return True
    if not caption.joined[first - 1] or rest[0] not in lexicon.places or caption.after(first) not in ("a", "an", "the"):
        return False
    return not any(word in lexicon.stranding or _ties_down(word, lexicon) for word in rest)


def _simple(caption: Caption, first: int, last: int, lexicon: Lexicon) -> bool:
    """Whether words first to last are a determiner, at most two describing words, and the name of an object."""
    low = caption.lower
    if low[first] not in ("a", "an", "the", "two", "three", "four", "some", "several") or last - first > 3:
        return False
    for size in (1, 2):
        name = lexicon.names.get(tuple(low[last - size + 1 : last + 1]))
        if name and last - size >= first:
            return all(lexicon.may_describe(w) for w in low[first + 1 : last - size + 1])
    return False


def _noun_phrase_end(caption: Caption, first: int, lexicon: Lexicon) -> int | None:
    """The last word of the simple noun phrase that starts at `first`, None where there is none."""
    if first >= len(caption.lower) or not caption.joined[first - 1]:
        return None
    for last in range(first + 1, min(first + 4, len(caption.lower))):
        if not all(caption.joined[first:last]):
            return None
        if _simple(caption, first, last, lexicon) and (
            caption.after(last) is None or caption.after(last) in lexicon.places
        ):
            return last
    return None


def order(caption: Caption, lexicon: Lexicon, key: Sequence[object]) -> Iterator[Paraphrase]:
    """`A cat sitting on a couch.` -> `Sitting on a couch is a cat.`; `A cat is sitting on a couch.` the same."""
    words, low = caption.words, caption.lower
    at = next((i for i, word in enumerate(low) if word in lexicon.posture), 0)
    if not 2 <= at <= 6 or not all(caption.joined[:-1]) or not can_be_turned(caption):
        return
    be = low[at - 1] in ("is", "are")
    last = at - 2 if be else at - 1
    place = low[at + 1 :]
    if not _simple(caption, 0, last, lexicon) or not (be or is_noun_phrase(caption, lexicon)):
        return
    if not place or place[0] not in lexicon.places or len(place) > 9:
        return
    if any(_ties_down(word, lexicon) for word in place):
        return
    plural = low[0] in lexicon.numbers or low[0] in ("some", "several") or lexicon.is_plural(low[last])
    if be and plural != (low[at - 1] == "are"):
        return
    head = small(caption.text[: words[last].end])
    tail = caption.text[words[at].start : words[-1].end]
    stop = caption.text[words[-1].end :]
    yield Paraphrase(f"{like(caption.text[:1], tail)} {'are' if plural else 'is'} {head}{stop}")


def _ties_down(word: str, lexicon: Lexicon) -> bool:
    """Whether a phrase of place with `word` says more than a place, or points back at what would follow it."""
    return (
        word in lexicon.finite
        or word in lexicon.pronouns
        or word in lexicon.pointing_back
        or word in ("while", "and", "with", "that", "who", "which")
        or (word.endswith("ing") and word not in lexicon.ing_nouns)
    )


def existential(caption: Caption, lexicon: Lexicon, key: Sequence[object]) -> Iterator[Paraphrase]:
    """`A man riding a wave` -> `There is a man riding a wave`; `A man is riding a wave` the same."""
    words, low = caption.words, caption.lower
    if len(low) < 3 or is_picture(caption, lexicon) or not can_be_turned(caption):
        return
    number = head_number(caption, lexicon)
    if number is None:
        return
    finite = [i for i, w in enumerate(low) if lexicon.may_be_finite(w, low[i - 1] if i else None)]
    text = caption.text
    if finite:
        i = finite[0]
        if len(finite) > 1 or not _links(i, "are" if number else "is", caption, lexicon):
            return
        text = text[: words[i].start] + text[words[i + 1].start :]
    elif not is_noun_phrase(caption, lexicon):
        return
    yield Paraphrase(f"{like(text[:1], 'there')} {'are' if number else 'is'} {small(text)}")


def _links(i: int, be: str, caption: Caption, lexicon: Lexicon) -> bool:
    """Whether word i is the verb of the sentence, a form of be (`be`) between its subject and a participle or place."""
    low = caption.lower
    if low[i] != be or i + 1 >= len(low) or not all(caption.joined[: i + 1]):
        return False
    if any(w in ("that", "who", "which", "where", "someone") or lexicon.is_verbal(w) for w in low[1:i]):
        return False
    after = low[i + 1]
    return (
        (after.endswith("ing") and after not in lexicon.ing_nouns)
        or after in ("parked", "seated", "covered", "filled", "dressed", "surrounded", "topped", "perched")
        or after in lexicon.places
    )


def number_style(caption: Caption, lexicon: Lexicon, key: Sequence[object]) -> Iterator[Paraphrase]:
    """`Two dogs` <-> `2 dogs`, for one drawn number of things."""
    for i, value in draw(count_words(caption, lexicon), 1, *key):
        start, end = caption.span(i, i)
        words = list(lexicon.numbers)
        new = words[value - 2] if caption.lower[i].isdigit() else str(value)
        yield _one(caption.text, Edit(start, end, new if start else capital(new)))


def is_picture(caption: Caption, lexicon: Lexicon) -> bool:
    """Whether the caption says what kind of picture it is: wrapping it again would say it twice."""
    return any(w in lexicon.pictures for w in caption.lower[:4])


def is_shouted(caption: Caption) -> bool:
    """Whether a caption is in capitals: small words around it would look wrong."""
    return caption.text.isupper()


def can_be_turned(caption: Caption) -> bool:
    """Whether words may come before the first one: it is the first thing there, and not shouted."""
    return bool(caption.words) and caption.words[0].start == 0 and not is_shouted(caption)


def is_clause(caption: Caption, lexicon: Lexicon) -> bool:
    """Whether the caption is a sentence with `is` or `are` as its verb, or begins with `there`."""
    low = caption.lower
    return low[:2] in (["there", "is"], ["there", "are"]) or (
        low[0] in ("a", "an", "the", "two", "three", "some", "several", "people")
        and any(w in ("is", "are") for w in low[:7])
        and not any(w in ("that", "who", "which") for w in low[:7])
    )


def is_noun_phrase(caption: Caption, lexicon: Lexicon) -> bool:
    """Whether the caption is a noun phrase without any finite verb: `A man riding a wave on a surfboard`."""
    low = caption.lower
    if low[0] not in lexicon.noun_phrase_starts or any(
        lexicon.may_be_finite(w, low[i - 1] if i else None) for i, w in enumerate(low)
    ):
        return False
    # A skier slaloms, a man photographs: what follows a singular noun in -s is a verb that no list has.
    followers = (caption.after(m.last) for m in lexicon.mentions(caption) if not m.name.plural)
    return not any(word and word.endswith("s") and word not in lexicon.after_noun for word in followers)


def head_number(caption: Caption, lexicon: Lexicon) -> bool | None:
    """Whether the caption begins with a plural noun phrase that `there are` may introduce; None where it can't tell."""
    low = caption.lower
    if low[0] in ("a", "an", "one", "another"):
        if "and" in low[1:4] and any(word in lexicon.numbers for word in low[2:6]):
            return None  # a green and two red buses
        if low[1] in ("couple", "number", "few", "lot", "bunch", "variety", "series", "pair", "herd", "group", "row"):
            return None if low[1] not in ("group", "herd", "row", "pair") else False
        return False
    if low[0] in lexicon.numbers or low[0] in ("several", "many"):
        return True
    if low[0] == "some":
        return True if lexicon.is_plural(low[1]) else None
    return True if lexicon.is_plural(low[0]) and low[0] in lexicon.plurals and lexicon.is_verbal(low[1]) else None


FAMILIES: dict[str, Rule] = {
    "wrapper": wrapper,
    "synonym": synonym,
    "voice": voice,
    "order": order,
    "existential": existential,
    "number style": number_style,
}
