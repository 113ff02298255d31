from __future__ import annotations

import json

import pytest

from lgip_ort.perturb.caption import Caption
from lgip_ort.perturb.lexicon import Name, numbers, standard


def test_the_eighty_categories_of_coco(shared):
    path = shared / "coco/annotations/instances_val2017_subset.json"
    listed = json.loads(path.read_text())["categories"]
    assert {c["name"]: c["supercategory"] for c in listed} == {
        key: category.group for key, category in standard().categories.items()
    }


def test_every_word_is_found_as_captions_have_it():
    """Names and hints are looked up in lower case, with one space between words."""
    lexicon = standard()
    words = {" ".join(phrase) for phrase in lexicon.names}
    words |= {hint for category in lexicon.categories.values() for hint in category.hints}
    assert {word for word in words if word != " ".join(Caption(word).lower)} == set()


def test_colours_are_in_the_lab_space():
    for name, colour in standard().colours.items():
        lightness, a, b = colour["lab"]
        assert 0 <= lightness <= 100, name
        assert max(abs(a), abs(b)) <= 128, name
        assert name not in colour["alike"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dog", ("dog", "dogs")),
        ("bus/buses", ("bus", "buses")),
        ("knife", ("knife", "knives")),
        ("traffic light", ("traffic light", "traffic lights")),
        ("sheep/sheep", ("sheep", "sheep")),
    ],
)
def test_numbers_of_a_noun(name, expected):
    assert numbers(name) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Two Dogs and a man", [(1, 1, Name("dog", "dog", True)), (4, 4, Name("person", "man", False))]),
        ("a Traffic Light", [(1, 2, Name("traffic light", "traffic light", False))]),
        ("a hot dog", [(1, 2, Name("hot dog", "hot dog", False))]),  # no dog
        ("women on bikes", [(0, 0, Name("person", "woman", True)), (2, 2, Name("bicycle", "bike", True))]),
        ("nothing of it", []),
        ("", []),
    ],
)
def test_mentions(text, found):
    assert standard().mentions(Caption(text)) == found


@pytest.mark.parametrize(
    ("text", "blocked"),
    [
        ("a train station", {1, 2}),
        ("A Hot Dog on a bus", {1, 2}),
        ("one of the men", {0, 1}),
        ("a train in a station", set()),
        ("train", set()),
    ],
)
def test_fixed_expressions(text, blocked):
    assert standard().blocked(Caption(text)) == blocked


@pytest.mark.parametrize(
    ("captions", "shown"),
    [
        (["A DOG", "two puppies"], {"dog"}),
        (["a stop sign"], {"stop sign"}),
        (["a horse-drawn thing"], {"horse"}),
        (["the cat’s bowl"], {"cat", "bowl", "cup"}),  # a bowl may be a cup
        (["nothing"], set()),
        ([], set()),
    ],
)
def test_what_captions_show(captions, shown):
    assert standard().shown(map(Caption, captions)) == shown


@pytest.mark.parametrize(
    ("word", "plural"),
    [("dogs", True), ("men", True), ("things", True), ("bus", False), ("dog's", False), ("grass", False), ("this", False)],
)  # fmt: skip
def test_plurals(word, plural):
    assert standard().is_plural(word) == plural
