from __future__ import annotations

import polars as pl
import pytest

from lgip_ort.metrics import with_simple
from lgip_ort.perturb.paper import (
    advanced,
    combined,
    flips,
    paraphrases,
    passive,
    synonyms,
    word_flip,
    wrappers,
)

COLOURS = ["red", "blue", "green"]
TEMPLATES = {
    "a photo of {}",
    "an image of {}",
    "a picture of {}",
    "{} in the scene",
    "a scene showing {}",
    "In this image, {}",
    "In the picture, {}",
    "This image shows {}",
}


@pytest.mark.parametrize(
    ("caption", "source", "before", "after"),
    [
        ("a red dog", "red", "a ", " dog"),
        ("a red dog and a blue cat", "red", "a ", " dog and a blue cat"),
        ("a blue dog and a red cat", "blue", "a ", " dog and a red cat"),
        ("a redder dog, a Red one, red", "red", "a redder dog, a Red one, ", ""),
        ("red-haired dog", "red", "", "-haired dog"),
        ("is it red?", "red", "is it ", "?"),
        ("  a red dog. \n", "red", "a ", " dog."),
    ],
)
def test_flip_of_the_first_whole_word(caption, source, before, after):
    for seed in range(8):
        text, word, target = word_flip(caption, COLOURS, 5, (seed,))
        assert word == source
        assert target in {"red", "blue", "green"} - {source}
        assert text == before + target + after


@pytest.mark.parametrize("caption", ["", "a dog", "a Red dog", "a redder dog", "an infrared dog", "red_dog"])
def test_no_flip(caption):
    assert word_flip(caption, COLOURS, 5, (0,)) is None


def test_flip_that_is_too_short():
    made = [word_flip("red", COLOURS, 5, (seed,)) for seed in range(20)]
    assert set(made) == {None, ("green", "red", "green")}


def test_every_other_word_is_drawn():
    """The lists of the paper: 11 colours, 5 counts, 11 objects, of which the word that stands there is none."""
    targets = {"colour": set(), "count": set(), "object": set()}
    for seed in range(300):
        for family, flip in flips("one red dog here", (seed,)):
            targets[family].add(flip.target)
    assert {family: " ".join(sorted(words)) for family, words in targets.items()} == {
        "colour": "black blue brown gray green orange pink purple white yellow",
        "count": "five four three two",
        "object": "bicycle bird boat bus car cat horse person train truck",
    }


def test_flips_repair_nothing():
    """Neither articles nor plurals, and what is no list's word in this very form is left alone."""
    made = {flip.text for seed in range(60) for _, flip in flips("a red person", (seed,))}
    assert {"a orange person", "a red bicycle"} <= made
    assert list(flips("Two dogs, a grey cats, RED", (0,))) == []


@pytest.mark.parametrize("caption", ["A dog.", " A dog.\n"])
def test_wrappers(caption):
    made = wrappers(caption)
    assert set(made.values()) == TEMPLATES
    assert all(text == template.format("A dog.") for text, template in made.items())


def test_wrappers_of_nothing():
    assert wrappers(" ") == {template.replace("{}", "").strip(): template for template in TEMPLATES}


def test_braces_in_a_caption_are_text():
    assert "a photo of a {red} {} {0} dog" in wrappers("a {red} {} {0} dog")


def test_wrappers_are_drawn():
    """Six of eight, in every combination."""
    drawn = [paraphrases("A dog.", "wrappers", (seed,)) for seed in range(300)]
    assert all(len(set(made)) == 6 for made in drawn)
    assert len({frozenset(template for _, template in made) for made in drawn}) == 28
    assert all(text == template.format("A dog.") for made in drawn for text, template in made)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A red Dog", "A crimson dog|A scarlet dog|A red canine|A red puppy|A red hound|A crimson canine|A crimson puppy"
                      "|A crimson hound|A scarlet canine|A scarlet puppy|A scarlet hound"),
        ("cat  cat", "Feline cat|Kitty cat|Cat feline|Cat kitty|Feline feline|Feline kitty|Kitty feline|Kitty kitty"),
        ("a blue sky.", "A azure sky.|A navy sky."),
        ("A dog.", ""),
        ("“dog” red-ish dogs", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_synonyms(caption, expected):
    assert sorted(synonyms(caption)) == sorted(filter(None, expected.split("|")))


def test_three_words_are_never_exchanged_at_once():
    made = set(synonyms("small red cat"))
    assert {"Tiny crimson cat", "Tiny red kitty", "Small scarlet feline"} <= made
    assert len(made) == 3 + 2 + 2 + 3 * 2 + 3 * 2 + 2 * 2
    assert not any(text.startswith("Tiny crimson f") for text in made)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A cat sits on a computer.", "A a computer sits on cat."),
        ("a CAT  Sitting next to the TV.\n", "A the tv sitting next to cat."),
        ("A cat sits in front of a TV.", "A front of a tv sits in cat."),  # "in" is tried first
        ("Dogs are in a Car on a road.", "A car on a road are in dogs."),
        ("Someone standing next to me.", "Me standing next to someone."),
        ("A train is going down the tracks.", "The tracks is going train down them."),
        ("A duck are moving through Water.", "Water are moving duck through them."),
        ("A cat sits on a computer", None),  # no full stop
        ("A small cat sits on a computer.", None),  # two words
        ("Trains are going down the tracks.", None),  # the third pattern wants an "A"
        ("A cat runs on a computer.", None),
        ("A cat sits under a computer.", None),
        ("", None),
    ],
)
def test_passive(caption, expected):
    assert passive(caption) == expected


def test_advanced_pool():
    made = advanced("A cat sits on a computer.")
    assert made["A a computer sits on cat."] == "passive"
    assert made["A kitty perches on a computer."] == "synonym"
    assert {rule for rule in made.values() if "{}" in rule} == TEMPLATES
    assert len(made) == 8 + 1 + 2 + 2 + 4


@pytest.mark.parametrize("caption", ["a man STANDS", "A man stands\n"])
def test_advanced_pool_has_no_equal_of_the_caption_but_for_case(caption):
    """`stands` is a synonym of itself."""
    assert "A man stands" in set(synonyms(caption))
    assert {text for text, rule in advanced(caption).items() if rule == "synonym"} == {"A man poses"}


def test_advanced_pool_has_nothing_short():
    assert {text for text, rule in advanced("cat").items() if rule == "synonym"} == {"Feline", "Kitty"}
    assert {text for text, rule in advanced("blue").items() if rule == "synonym"} == {"Azure"}


def test_advanced_draws_come_from_the_whole_pool():
    pool = advanced("A red cat")
    drawn = [paraphrases("A red cat", "advanced", (seed,)) for seed in range(200)]
    assert all(len(set(made)) == 6 for made in drawn)
    assert {pair for made in drawn for pair in made} == set(pool.items())


def test_combined():
    """Every pair is a flip of an advanced paraphrase, typed by what was flipped; six are kept."""
    pool = set(advanced("one red cat with two boats"))
    families = set()
    for seed in range(60):
        made = combined("one red cat with two boats", (seed,))
        assert len({flip.text for _, flip in made}) == len(made) == 6
        for family, flip in made:
            families.add(family)
            places = flip.text.count(flip.target)
            undone = {undo(flip.text, flip.target, flip.source, place) for place in range(places)}
            assert undone & pool
        assert made[0][0] == "colour" or "red" not in made[0][1].text
    assert families == {"colour", "count", "object"}


def undo(text, new, old, place):
    """`text` with one occurrence of `new` turned back into `old`."""
    parts = text.split(new)
    return new.join(parts[: place + 1]) + old + new.join(parts[place + 1 :])


def test_combined_are_of_five_paraphrases():
    """With one flip a paraphrase, five are made."""
    assert len(combined("a red thing of some kind", (0,))) <= 5
    assert combined("a cloth of some kind", (0,)) == []


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("a photo of A dog.", True),
        ("AN IMAGE OF A DOG", True),
        ("a picture of x", True),
        ("In this image, a dog", True),
        ("In the picture, a dog", True),
        ("This image shows a dog", True),
        ("A dog beside a photo of a cat", True),  # wherever the phrase stands
        ("A dog. in the scene", False),
        ("a scene showing A dog.", False),
        ("A canine", False),
        ("a photograph of a dog", False),
        ("", False),
    ],
)
def test_simple_by_the_published_rule(text, simple):
    pairs = pl.DataFrame({"kind": ["paraphrase", "flip"], "perturbed": [text, text]})
    assert with_simple(pairs)["simple"].to_list() == [simple, None]
