from __future__ import annotations

import pytest

from lgip_ort.perturb.caption import Caption
from lgip_ort.perturb.lexicon import standard
from lgip_ort.perturb.paraphrase import FAMILIES, Paraphrase


def reworded(family, caption, draws=40):
    """What many draws make of a caption."""
    parsed = Caption(caption)
    return {made for seed in range(draws) for made in FAMILIES[family](parsed, standard(), (seed,))}


def texts(family, caption):
    return {made.text for made in reworded(family, caption)}


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A dog on a bed.", {"A photo of a dog on a bed.", "This image shows a dog on a bed."}),
        ("two dogs", {"A photo of two dogs", "This image shows two dogs"}),
        ("A dog is on a bed.", {"In this image, a dog is on a bed.", "In the picture, a dog is on a bed."}),
        ("There are two dogs", {"In this image, there are two dogs"}),
    ],
)
def test_wrapper(caption, expected):
    """A clause is no noun phrase: each has its own wrappers; the caption's capital goes, its full stop stays."""
    made = reworded("wrapper", caption)
    assert {m.text for m in made} >= expected
    small = caption[0].lower() + caption[1:]
    assert all(m == Paraphrase(m.target.format(small), None, m.target) for m in made)
    assert all(m.text.startswith("In th") == (" is " in caption or "There" in caption) for m in made)


def test_two_wrappers_are_drawn():
    parsed = Caption("A dog on a bed.")
    made = [list(FAMILIES["wrapper"](parsed, standard(), (seed,))) for seed in range(40)]
    assert all(len(set(pair)) == 2 for pair in made)
    assert len({m.target for pair in made for m in pair}) > 3


@pytest.mark.parametrize(
    "caption",
    [
        "a dog jumps over a bed",  # a finite verb: "a photo of a dog jumps" is no English
        "A man rides a horse",
        "someone is on a bus",
        "A photo of a dog",  # a photo of a photo
        "A close up of a dog",
        "This is a dog",
        "A DOG ON A BED",
        "Dogs",
        "犬がいます",
        "",
    ],
)
def test_captions_that_are_not_wrapped(caption):
    assert texts("wrapper", caption) == set()


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A man on a couch", {"A man on a sofa"}),
        ("Two couches", {"Two sofas"}),
        ("A COUCH", {"A SOFA"}),
        ("Couches and a dog", {"Sofas and a dog"}),
        ("A plane", {"An airplane"}),  # with its article
        ("An airplane", {"A plane"}),
        ("A dog next to a cat", {"A dog beside a cat"}),
        ("A small dog", {"A little dog"}),
        ("a grey cat", {"a gray cat"}),
        ("A bicycle near a refrigerator", {"A bike near a refrigerator", "A bicycle near a fridge",
                                           "A bicycle close to a refrigerator"}),
    ],
)  # fmt: skip
def test_synonym(caption, expected):
    assert texts("synonym", caption) == expected


def test_synonym_says_what_it_exchanged():
    assert reworded("synonym", "Couches next to a plane") == {
        Paraphrase("Sofas next to a plane", "Couches", "Sofas"),
        Paraphrase("Couches beside a plane", "next to", "beside"),
        Paraphrase("Couches next to an airplane", "plane", "airplane"),
    }


@pytest.mark.parametrize(
    "caption",
    [
        "A person with a dog",  # man, puppy: narrower
        "A couch cushion",
        "a small of a thing",
        "The several dogs",
        "A large number of things",
        "near",
        "",
    ],
)
def test_no_synonym(caption):
    assert texts("synonym", caption) == set()


@pytest.mark.parametrize(
    ("family", "caption", "expected"),
    [
        ("voice", "A man riding a horse", "A horse being ridden by a man"),
        ("voice", "A man riding a horse on the beach.", "A horse being ridden by a man on the beach."),
        ("voice", "two men riding a brown horse", "a brown horse being ridden by two men"),
        ("order", "A cat sitting on a couch.", "Sitting on a couch is a cat."),
        ("order", "a cat is sitting on a couch", "sitting on a couch is a cat"),
        ("order", "Two cats sitting on a couch", "Sitting on a couch are two cats"),
        ("existential", "A man riding a wave.", "There is a man riding a wave."),
        ("existential", "Two men are riding a wave", "There are two men riding a wave"),
        ("existential", "several dogs on a bed", "there are several dogs on a bed"),
        ("existential", "A group of people on a bus", "There is a group of people on a bus"),
    ],
)
def test_sentence_that_is_turned(family, caption, expected):
    assert reworded(family, caption) == {Paraphrase(expected, None, None)}


@pytest.mark.parametrize(
    ("family", "caption"),
    [
        ("voice", "A man holding a bat in the air"),  # nobody is in the air
        ("voice", "A man riding a horse and smiling"),
        ("voice", "A man riding his horse"),
        ("voice", "A man riding a wave"),
        ("voice", "A MAN RIDING A HORSE"),
        ("voice", '"A man riding a horse"'),
        ("voice", "riding a horse"),
        ("order", "A cat sitting on another couch"),  # another than which?
        ("order", "A cat sitting on its bed"),
        ("order", "A cat sitting on a couch with a dog"),
        ("order", "A cat sitting on a couch watching TV"),
        ("order", "A cat sitting, on a couch"),
        ("order", "A CAT SITTING ON A COUCH"),
        ("order", '"A cat sitting on a couch"'),
        ("order", "A cat sitting"),
        ("existential", "The dog on the bed"),
        ("existential", "someone is on a bus"),
        ("existential", "A dog jumps over a bed"),
        ("existential", "A man that is riding a wave"),
        ("existential", "A photo of a dog on a bed"),
        ("existential", "A DOG ON A BED"),
        ("existential", '"A dog on a bed"'),
        ("existential", "There is a dog"),
    ],
)
def test_sentence_that_is_not_turned(family, caption):
    assert reworded(family, caption) == set()


@pytest.mark.parametrize(
    ("caption", "expected", "source", "target"),
    [
        ("Two dogs", "2 dogs", "Two", "2"),
        ("2 dogs.", "Two dogs.", "2", "Two"),
        ("A man with 3 dogs", "A man with three dogs", "3", "three"),
        ("A man with three dogs", "A man with 3 dogs", "three", "3"),
        ("2 DOGS ON A BED", "TWO DOGS ON A BED", "2", "TWO"),
        ("TWO DOGS", "2 DOGS", "TWO", "2"),
    ],
)
def test_number_style(caption, expected, source, target):
    assert reworded("number style", caption) == {Paraphrase(expected, source, target)}


@pytest.mark.parametrize("caption", ["One dog", "one of the men", "A two story bus", "12 dogs", "2² dogs", ""])
def test_no_number_style(caption):
    assert reworded("number style", caption) == set()
