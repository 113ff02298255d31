from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from lgip_ort.perturb.draw import draw
from lgip_ort.perturb.flip import word_flip
from lgip_ort.perturb.paraphrase import wrappers
from lgip_ort.perturb.suites import SUITES, paper

GOLDEN = json.loads((Path(__file__).parent / "golden/paper_suite.json").read_text(encoding="utf-8"))
TEMPLATES = ["a photo of {}", "{}", "{} in the scene", "In this image, {}"]
COLOURS = ["red", "blue", "green"]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['caption'][:20]!r} {case['seed']}")
def test_golden(case):
    """The words of a published table never change silently."""
    found = paper(case["image_id"], case["caption_index"], case["caption"], case["seed"])
    assert [list(p) for p in found] == case["perturbations"]


def test_draw_is_without_replacement():
    for n in range(200):
        assert sorted(draw("abcdef", 6, n)) == list("abcdef")
        assert len(set(draw("abcdef", 4, n))) == 4
    assert sorted(draw("ab", 5, "more than there are")) == ["a", "b"]
    assert draw([], 3, "none") == []


def test_draw_depends_on_the_whole_key():
    keys = [(seed, image, index, kind) for seed in (0, 1) for image in ("1", "2") for index in (0, 1) for kind in "ab"]
    assert len({tuple(draw(range(20), 20, *key)) for key in keys}) == len(keys)
    assert draw(range(20), 20, "ab", "c") != draw(range(20), 20, "a", "bc")
    assert draw(range(20), 5, 0, "1") == draw(range(20), 20, 0, "1")[:5]


def test_draw_is_uniform():
    """Chi-squared of pairs of places over 9,000 keys; 71 degrees of freedom, 120 is beyond the 0.9998 quantile."""
    seen = Counter(tuple(draw(range(9), 2, "key", i)) for i in range(9000))
    expected = 9000 / 72
    assert len(seen) == 72
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 120


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
    assert {word_flip("a red dog", COLOURS, 5, (seed,))[2] for seed in range(40)} == {"blue", "green"}


def test_wrappers():
    made = dict(wrappers(" A dog.\n", TEMPLATES, 9, 5, (0,)))
    assert made == {
        "a photo of A dog.": "a photo of {}",
        "A dog. in the scene": "{} in the scene",
        "In this image, A dog.": "In this image, {}",
    }


def test_wrappers_are_drawn():
    sets = {frozenset(template for _, template in wrappers("A dog.", TEMPLATES, 2, 5, (seed,))) for seed in range(60)}
    assert len(sets) == 3
    assert all(len(chosen) == 2 for chosen in sets)


def test_wrappers_that_are_too_short_or_twice():
    assert list(wrappers("", ["{}", "x {}", "a photo of {}"], 9, 5, (0,))) == [("a photo of", "a photo of {}")]
    assert len(list(wrappers("dog", ["a {}", "a {}", "{} "], 9, 5, (0,)))) == 1


def test_braces_in_a_caption_are_text():
    assert [text for text, _ in wrappers("a {red} {} {0} dog", ["a photo of {}"], 1, 5, (0,))] == [
        "a photo of a {red} {} {0} dog"
    ]


@pytest.mark.parametrize("caption_index", [0, 1])
def test_paper_suite(caption_index):
    made = list(paper("12", caption_index, "two red dogs and one dog on a train.\n", 3))
    assert [p.kind for p in made] == ["paraphrase"] * 6 + ["flip"] * 3 + ["identity"] * (caption_index == 0)
    assert [(p.family, p.source_word) for p in made[6:9]] == [("colour", "red"), ("count", "two"), ("object", "dog")]
    assert len({p.perturbed for p in made}) == len(made)
    assert all("\n" not in p.perturbed for p in made[:9])
    for p in made[:6]:
        assert p.perturbed == p.target_word.format("two red dogs and one dog on a train.")
    if caption_index == 0:
        assert made[9].perturbed == "two red dogs and one dog on a train.\n"


def test_paper_words():
    """The lists of the paper: 8 wrappers beside the caption itself, 11 colours, 5 counts, 11 objects."""
    templates, targets = set(), {"colour": set(), "count": set(), "object": set()}
    for image in range(300):
        for p in SUITES["paper"](str(image), 1, "one red dog here", 0):
            templates |= {p.target_word} if p.kind == "paraphrase" else set()
            if p.kind == "flip":
                targets[p.family].add(p.target_word)
    assert templates == {
        "a photo of {}",
        "an image of {}",
        "a picture of {}",
        "{} in the scene",
        "a scene showing {}",
        "In this image, {}",
        "In the picture, {}",
        "This image shows {}",
    }
    assert {family: " ".join(sorted(words)) for family, words in targets.items()} == {
        "colour": "black blue brown gray green orange pink purple white yellow",
        "count": "five four three two",
        "object": "bicycle bird boat bus car cat horse person train truck",
    }
