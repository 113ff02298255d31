"""Captions as people might write them, made from a scene's spec: never wrong, rarely complete."""

from __future__ import annotations

import random

from models.demo import words
from models.demo.scenes import Spec, stream
from models.demo.words import COLOURS, COUNTS, GROUNDS, OBJECTS, SENTENCES

CAPTIONS_PER_SCENE = 5

# Shares of captions. People leave things out; what is left out is what makes five captions differ.
COLOUR_NAMED = 0.70
COUNT_NAMED = 0.72
PLACE_NAMED = 0.60
SECOND_NAMED = 0.60
SECOND_COLOUR_NAMED = 0.60
NOUN_SYNONYM = 0.12
COLOUR_SYNONYM = 0.08
WRAPPED = 0.05
CAPITALISED = 0.88
FULL_STOP = 0.90


def article(phrase: str) -> str:
    """The phrase with a or an before it."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def determiner(count: int, named: bool, rng: random.Random) -> str:
    """What stands before the noun of `count` objects; '' asks for a plain a or an."""
    if count == 1:
        if named and rng.random() < 0.4:
            return rng.choice(words.SINGLE)
        return "the" if rng.random() < 0.1 else ""
    if not named:
        return rng.choice(words.SOME if count > 2 else words.SOME_TWO)
    if count == 2:
        return rng.choice(words.TWO)
    return f"a group of {COUNTS[count - 1]}" if rng.random() < 0.1 else COUNTS[count - 1]


def second_object(spec: Spec, rng: random.Random) -> str:
    """The object of another kind as a prepositional phrase, or '' where there is none or it goes unsaid."""
    if spec.second is None or rng.random() >= SECOND_NAMED:
        return ""
    name, colour = spec.second
    phrase = f"{colour} {name}" if rng.random() < SECOND_COLOUR_NAMED else name
    return f"{rng.choice(words.BESIDE)} {article(phrase)}"


def caption(spec: Spec, rng: random.Random) -> str:
    """One caption of the scene."""
    noun = OBJECTS[spec.object]
    singular, plural = rng.choice(noun.synonyms) if rng.random() < NOUN_SYNONYM else (noun.name, noun.plural)
    name = singular if spec.count == 1 else plural
    colour = rng.choice(COLOURS[spec.colour].synonyms) if rng.random() < COLOUR_SYNONYM else spec.colour
    coloured = f"{colour} {name}" if rng.random() < COLOUR_NAMED else name
    before = determiner(spec.count, rng.random() < COUNT_NAMED, rng)
    wall = article(spec.wall or "plain")
    place = rng.choice(GROUNDS[spec.ground].places).format(a_wall=wall)

    group = {1: "one", 2: "two"}.get(spec.count, "more")
    fitting = [sentence for sentence in SENTENCES if sentence.count in (None, group)]
    (sentence,) = rng.choices(fitting, [option.weight for option in fitting])
    text = sentence.text.format(
        subject=f"{before} {coloured}" if before else article(coloured),
        noun=name,
        a_noun=article(singular),
        number=COUNTS[spec.count - 1],
        colour=colour,
        verb=rng.choice(noun.verbs),
        be="is" if spec.count == 1 else "are",
        place=place,
        where=place if rng.random() < PLACE_NAMED else "",
        beside=second_object(spec, rng),
        ground=GROUNDS[spec.ground].phrase.format(a_wall=wall),
    )
    if rng.random() < WRAPPED:
        text = rng.choice(words.WRAPPERS).format(text)
    # An empty part of a sentence leaves two spaces, or one before the comma.
    text = " ".join(text.split()).replace(" ,", ",")
    if rng.random() < CAPITALISED:
        text = text[0].upper() + text[1:]
    return text + "." if rng.random() < FULL_STOP else text


def captions(spec: Spec, seed: int, index: int) -> list[str]:
    """Five different captions of scene `index` of the stream `seed`."""
    rng = stream(seed, index, "captions")
    found: dict[str, None] = {}
    while len(found) < CAPTIONS_PER_SCENE:
        found[caption(spec, rng)] = None
    return list(found)
