from __future__ import annotations

import math
import re

import pytest

from lgip_ort.perturb.caption import Caption
from lgip_ort.perturb.flip import FAMILIES, Flip, count_words, known_of
from lgip_ort.perturb.lexicon import standard


def flips(family, *captions, annotated=None, draws=80, lexicon=None):
    """What many draws make of the first of an image's captions."""
    lexicon = lexicon or standard()
    parsed = [Caption(text) for text in captions]
    known = known_of(parsed, annotated, lexicon)
    made = {FAMILIES[family](parsed[0], known, lexicon, (seed,)) for seed in range(draws)}
    return made - {None}


def texts(family, *captions, **more):
    return {flip.text for flip in flips(family, *captions, **more)}


def named(word):
    """What the lexicon knows of a name of an object."""
    return standard().names[tuple(word.lower().split())]


@pytest.mark.parametrize(
    ("caption", "source", "plural", "shape"),
    [
        ("Two dogs", "dogs", True, r"Two [a-z ]+"),
        ("A dog on a rock", "dog", False, r"An? [a-z ]+ on a rock"),
        ("some sheep, two cats.", "cats", True, r"some sheep, two [a-z ]+\."),
        ("2 men", "men", True, r"2 [a-z ]+"),
        ("The old couch", "couch", False, r"The old [a-z ]+"),
        ("Dogs on a rock", "Dogs", True, r"[A-Z][a-z ]+ on a rock"),
        ("A DOG ON A ROCK", "DOG", False, r"AN? [A-Z ]+ ON A ROCK"),
        ("A Dog on a Rock", "Dog", False, r"An? [A-Z][a-z ]+ on a Rock"),
        ("one of the men", "men", True, r"one of the [a-z ]+"),
    ],
)
def test_object(caption, source, plural, shape):
    """The number of the word, its capitals and the article before it are right for the new one."""
    made = {flip for flip in flips("object", caption) if flip.source == source}
    assert len({flip.target for flip in made}) > 3
    for flip in made:
        assert re.fullmatch(shape, flip.text)
        assert flip.target in flip.text
        assert named(flip.target).plural == plural or flip.target.lower() == "sheep"
        assert named(flip.target).category != named(source).category


def test_articles_of_objects():
    made = texts("object", "A dog on a rock", draws=200)
    starts = {text.split()[0] for text in made if text.split()[1][0] in "aeiou"}
    assert starts == {"An"}
    assert {text.split()[0] for text in made if text.split()[1][0] in "bcdfgkst"} == {"A"}


@pytest.mark.parametrize(
    "caption",
    [
        "a train station",
        "a hot dog",
        "An orange on a plate",
        "a teddy bear",
        "a fire truck",
        "a dog house",
        "The dog's owner",
        "a dog-like thing",
        "A couch cushion",
        "teddy bears",
        "playing frisbee",  # a game, not a thing
        "a thing",
        "",
    ],
)
def test_objects_that_are_none(caption):
    assert flips("object", caption) == set()


def test_every_mention_changes():
    for text in texts("object", "A dog chasing another dog by two dogs"):
        found = re.fullmatch(r"An? ([a-z ]+) chasing another ([a-z ]+) by two ([a-z ]+)", text)
        assert found[1] == found[2] != "dog"
        assert named(found[3]) == named(found[1])._replace(plural=True) or found[1] == "sheep"


def test_mention_that_can_not_change_keeps_them_all():
    """The dog of the compound would stay behind."""
    assert flips("object", "A dog beside a dog house") == set()


@pytest.mark.parametrize(
    ("others", "annotated", "hidden"),
    [
        ([], None, set()),
        (["cats and cows"], None, {"cat", "cow"}),
        (["a KITTEN"], None, {"cat"}),  # no name of it, but a hint
        (["a cat-like creature"], None, {"cat"}),
        (["the cat's tail"], None, {"cat"}),
        (["some animals"], None, {"cat", "cow", "horse", "bird"}),
        ([], {"cat", "airplane"}, {"cat", "airplane"}),
        (["a horse"], {"cat"}, {"cat", "horse"}),
    ],
)
def test_no_flip_to_what_the_image_shows(others, annotated, hidden):
    shown = annotated and frozenset(annotated)
    made = flips("object", "A dog on a rock", *others, annotated=shown, draws=400)
    categories = {named(flip.target).category for flip in made}
    assert categories.isdisjoint(hidden)
    assert categories | hidden >= {"cat", "cow", "horse", "airplane"} - hidden


def test_strength_of_objects():
    """0 within a supercategory of COCO, 1 across; both are drawn."""
    made = {flip.target: flip.strength for flip in flips("object", "A dog on a rock", draws=300)}
    assert made["cat"] == made["cow"] == 0
    assert made["airplane"] == made["train"] == 1
    assert len(set(made.values())) == 2


@pytest.mark.parametrize(
    ("caption", "some", "never"),
    [
        ("A grey cat", {"A black cat", "An orange cat", "A blue cat"}, {"A gray cat", "A white cat"}),
        ("A red bus", {"An orange bus", "A green bus"}, {"A pink bus", "A red bus"}),
        ("An orange car", {"A blue car", "A green car"}, {"A yellow car"}),
        ("The bus is red.", {"The bus is blue."}, set()),
        ("A GREY CAT", {"A BLUE CAT", "AN ORANGE CAT"}, set()),
        ("Grey cats", {"Blue cats", "Orange cats"}, set()),
    ],
)
def test_colour(caption, some, never):
    made = texts("colour", caption, draws=300)
    assert made >= some
    assert made.isdisjoint(never)


@pytest.mark.parametrize(
    "caption",
    [
        "An orange on a plate",
        "Oranges and an orange",
        "A glass of orange juice",
        "An orange slice",
        "A black and white cat",
        "A red-haired boy",
        "A white board",
        "A green light",
        "The house is orange",
        "",
    ],
)
def test_colours_that_are_none(caption):
    assert flips("colour", caption) == set()


def test_no_colour_that_another_caption_names():
    alone = {flip.target for flip in flips("colour", "A blue dog", draws=300)}
    assert alone >= {"red", "green", "yellow", "black", "white"}
    beside = {flip.target for flip in flips("colour", "A blue dog", "a Red-haired boy", "GREEN", draws=300)}
    assert beside <= alone - {"red", "green"}
    assert beside >= {"yellow", "black", "white"}


def test_strength_of_colours():
    """The distance in CIELAB: black has L* 9, gray 56, both neutral."""
    made = {flip.target: flip.strength for flip in flips("colour", "A gray cat", draws=200)}
    assert made["black"] == 47
    assert made["blue"] == pytest.approx(math.sqrt(20**2 + 22**2 + 64**2))


@pytest.mark.parametrize(
    ("caption", "others", "expected"),
    [
        ("Two dogs", [], {"Three dogs", "Four dogs", "Five dogs", "Six dogs"}),
        ("2 men", [], {"3 men", "4 men", "5 men", "6 men"}),
        ("A man with two big dogs", [], {f"A man with {n} big dogs" for n in ("three", "four", "five", "six")}),
        ("TWO DOGS", [], {"THREE DOGS", "FOUR DOGS", "FIVE DOGS", "SIX DOGS"}),
        ("Two dogs", ["3 dogs", "Five of them", "a six-pack"], {"Four dogs"}),
        ("Ten dogs", [], {f"{n} dogs" for n in ("Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")}),
    ],
)
def test_count(caption, others, expected):
    """At least two of them, so that the noun keeps its plural, and no number that any caption names."""
    made = flips("count", caption, *others, draws=200)
    assert {flip.text for flip in made} == expected
    assert all(flip.target in flip.text and flip.source in caption for flip in made)


@pytest.mark.parametrize(
    "caption",
    ["one of the men", "the one", "One dog", "A dog", "A two story house", "two-story houses", "number two", "2² dogs",
     "② dogs", "12 dogs", "9" * 5000 + " dogs", "Two", "two,dogs", ""],
)  # fmt: skip
def test_counts_that_are_none(caption):
    assert flips("count", caption) == set()


def test_count_words():
    assert count_words(Caption("Two dogs and 3 cats on one bed"), standard()) == [(0, 2), (3, 3)]


def test_strength_of_counts():
    made = {flip.target: flip.strength for flip in flips("count", "Two dogs", draws=100)}
    assert made["Four"] == pytest.approx(math.log(2))
    assert made["Six"] == pytest.approx(math.log(3))
    down = {flip.target: flip.strength for flip in flips("count", "Six dogs", draws=100)}
    assert down["Two"] == pytest.approx(math.log(3))


@pytest.mark.parametrize(
    ("family", "caption", "expected", "source", "target"),
    [
        ("spatial", "A sign to the left of a door", "A sign to the right of a door", "to the left", "to the right"),
        ("spatial", "A man standing behind a car", "A man standing in front of a car", "behind", "in front of"),
        ("spatial", "A dog inside a car", "A dog outside a car", "inside", "outside"),
        ("size", "A big dog", "A small dog", "big", "small"),
        ("size", "Big dogs", "Small dogs", "Big", "Small"),
        ("size", "A HUGE ELEPHANT", "A TINY ELEPHANT", "HUGE", "TINY"),
    ],
)
def test_opposites(family, caption, expected, source, target):
    assert flips(family, caption) == {Flip(expected, source, target, 1.0)}


@pytest.mark.parametrize(
    ("family", "caption"),
    [
        ("spatial", "A man left behind"),
        ("spatial", "A door with a cat to the left and a dog to the right"),  # both are there
        ("spatial", "A man turning left"),
        ("spatial", "The inside"),
        ("size", "A little bit of snow"),
        ("size", "Big Ben"),
        ("size", "A very big dog"),
        ("size", "A dog that is big"),
        ("size", "A small dog beside a large dog"),
        ("size", ""),
    ],
)
def test_opposites_that_are_none(family, caption):
    assert flips(family, caption) == set()


def test_known_of_an_image():
    known = known_of([Caption("A red-haired MAN"), Caption("2 kittens")], frozenset({"bus"}), standard())
    assert {"red", "haired", "man", "2", "kittens"} <= known.words
    assert {"person", "cat", "bus"} <= known.shown
    assert "dog" not in known.shown
