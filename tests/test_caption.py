from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lgip_ort.perturb.caption import Caption, Edit, apply, article, capital, fitted, like, small


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A dog's red-haired owner.", "A dog's red-haired owner"),
        ("“Two” cats,a T.V. <b>x</b>", "Two cats a T.V b x b"),
        ("naïve 犬 👍 x_y", "naïve 犬 x y"),
        ("", ""),
        ("...", ""),
    ],
)
def test_words(text, words):
    caption = Caption(text)
    assert [word.text for word in caption.words] == words.split()
    assert [text[word.start : word.end] for word in caption.words] == words.split()
    assert caption.lower == words.lower().split()


def test_neighbours_end_at_punctuation():
    caption = Caption("A dog, two\n cats")
    assert [caption.before(i) for i in range(4)] == [None, "a", None, "two"]
    assert [caption.after(i) for i in range(4)] == ["dog", None, "cats", None]
    assert caption.span(0, 1) == (0, 5)


def test_vocabulary_has_the_parts_of_compounds():
    assert Caption("A Red-haired dog’s T.V").vocabulary() == {
        "a", "red-haired", "red", "haired", "dog’s", "dog", "s", "t.v", "t", "v",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("A red bus", "red", "orange", "An orange bus"),
        ("An orange bus", "orange", "red", "A red bus"),
        ("an  orange bus", "orange", "red", "a  red bus"),
        ("In a\nred bus", "red", "orange", "In an\norange bus"),
        ("the red bus", "red", "orange", "the orange bus"),
        ("banana red bus", "red", "orange", "banana orange bus"),
        ("A, red bus", "red", "orange", "A, orange bus"),
        ("A cat", "cat", "umbrella stand", "An umbrella stand"),
        ("A red bus and a cat", "bus", "owl", "A red owl and a cat"),
        ("Red bus", "Red", "orange", "Orange bus"),
        ("A Red Bus", "Red", "orange", "An Orange Bus"),
        ("A RED BUS", "RED", "orange", "AN ORANGE BUS"),
        ("AN ORANGE BUS", "ORANGE", "red", "A RED BUS"),
        ("A TV in a room", "TV", "cat", "A cat in a room"),
        ("TV in a room", "TV", "cat", "Cat in a room"),
        ("A television", "television", "TV", "A TV"),
        ("2 DOGS", "2", "three", "THREE DOGS"),
    ],
)
def test_apply(text, old, new, expected):
    start = text.index(old)
    edit = Edit(start, start + len(old), new)
    assert apply(text, [edit]) == expected
    assert fitted(text, edit) in expected


def test_several_edits_in_any_order():
    edits = [Edit(2, 5, "elephant"), Edit(20, 23, "ox"), Edit(12, 16, "mice")]
    for order in (edits, edits[::-1]):
        assert apply("A cat, some cats, a cat!", order) == "An elephant, some mice, an ox!"
    assert apply("A cat, some cats, a cat!", []) == "A cat, some cats, a cat!"


@pytest.mark.parametrize(
    ("word", "expected"),
    [("dog", "a"), ("elephant", "an"), ("umbrella", "an"), ("uniform", "a"), ("hour", "an"), ("Orange", "an"), ("TV", "a")],
)  # fmt: skip
def test_article_follows_the_sound(word, expected):
    assert article(word) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [("dog", "cat", "cat"), ("Dog", "cat", "Cat"), ("DOG", "cat", "CAT"), ("A", "the", "The"), ("", "cat", "cat")],
)
def test_like(old, new, expected):
    assert like(old, new) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog", "a dog"),
        ("I see", "I see"),
        ("TV on", "TV on"),
        ("U.S. flag", "U.S. flag"),
        ("Élan", "élan"),
        ("", ""),
        (" ", " "),
    ],
)
def test_small(text, expected):
    assert small(text) == expected
    assert capital("") == ""


@given(st.text())
def test_words_are_what_stands_there(text):
    """Parsing takes nothing away: the words lie in order where they say, and what is parsed again is the same."""
    caption = Caption(text)
    assert [text[w.start : w.end] for w in caption.words] == [w.text for w in caption.words]
    assert all(a.end <= b.start for a, b in zip(caption.words, caption.words[1:], strict=False))
    assert len(caption.joined) in (len(caption.words), 1)
    assert Caption(" ".join(w.text for w in caption.words)).lower == caption.lower
