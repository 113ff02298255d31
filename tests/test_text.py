from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from toy import CONTEXT, EOT, PAD, UNKNOWN, rehash

from lgip_ort.bundle import open_bundle
from lgip_ort.text import TextEncoder, clean


@pytest.fixture
def encoder(toy, tmp_path):
    """Makes the toy's encoder with other fields of its TextSpec."""

    def make(**changes):
        folder = shutil.copytree(toy, tmp_path / f"b{len(list(tmp_path.iterdir()))}")
        rehash(folder, text=changes)
        return TextEncoder(open_bundle(folder))

    return make


def test_ids_end_with_end_of_text(encoder):
    first, second, empty = encoder().ids(["A red dog.", "a red dog .", ""])
    assert first == second
    assert first[-1] == EOT
    assert len(first) == 5
    assert empty == [EOT]


def test_truncation_keeps_end_of_text(encoder):
    (ids,) = encoder().ids(["dog " * 100])
    assert len(ids) == CONTEXT
    assert ids[-1] == EOT
    assert EOT not in ids[:-1]


def test_trained_length(encoder):
    texts = encoder(lengths="trained", pad_id=7)
    ((_, alone),) = texts.batches(["a cat"], 1000)
    ((_, beside),) = texts.batches(["a cat", "a dog on a bus " * 10], 1000)
    assert alone.shape == (1, CONTEXT)
    assert alone.dtype == np.int64
    assert (alone[0, 3:] == 7).all()
    assert (beside[0] == alone[0]).all()


@pytest.mark.parametrize(
    ("words", "step", "length"),
    [(0, 8, 8), (7, 8, 8), (8, 8, 16), (15, 8, 16), (16, 8, 20), (40, 8, 20), (0, 1, 1), (7, 1, 8), (40, 1, 20)],
)  # one token more than words; 20 is the context
def test_any_length_is_the_next_step(encoder, words, step, length):
    texts = encoder(context_length=20)
    ((rows, ids),) = texts.batches(["dog " * words], 1000, step=step)
    assert (rows, ids.shape) == ([0], (1, length))
    assert (ids[0, min(words, 19) + 1 :] == PAD).all()


def test_batches_are_of_one_length_and_within_the_budget(encoder):
    """Each text is at its own length, whatever stands beside it; a text longer than the budget goes alone."""
    texts = encoder()
    given = ["dog " * n for n in (1, 5, 1, 12, 1, 5, 1)]
    found = list(texts.batches(given, budget=6))
    assert [(rows, ids.shape) for rows, ids in found] == [
        ([0, 2, 4], (3, 2)),
        ([6], (1, 2)),
        ([1], (1, 6)),
        ([5], (1, 6)),
        ([3], (1, 13)),
    ]
    for rows, ids in found:
        assert ids.tolist() == texts.ids([given[row] for row in rows])


def test_length_that_is_asked_for(encoder):
    texts = encoder()
    ((_, ids),) = texts.batches(["a dog"], 1000, pad_to=5)
    assert ids.tolist()[0][2:] == [EOT, PAD, PAD]
    with pytest.raises(ValueError, match="a text of 3 tokens does not fit the padded length 2"):
        list(texts.batches(["dog", "a dog"], 1000, pad_to=2))


def test_padding_of_the_tokenizer_file_is_not_used(encoder, toy, tmp_path):
    """A tokenizer.json from elsewhere may pad and truncate on its own."""
    bundle = open_bundle(toy)
    other = shutil.copytree(toy, tmp_path / "padded")
    tokenizer = TextEncoder(bundle)._tokenizer
    tokenizer.enable_padding(length=12, pad_id=UNKNOWN)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(other / "tokenizer.json"))
    rehash(other)
    assert TextEncoder(open_bundle(other)).ids(["a red dog on a boat"]) == encoder().ids(["a red dog on a boat"])


BOTH = ["ftfy", "html"]


@pytest.mark.parametrize(
    ("text", "steps", "expected"),
    [
        ("a dog", BOTH, "a dog"),
        ("a cat &amp; a dog", BOTH, "a cat & a dog"),
        ("&amp;lt;b&amp;gt;", BOTH, "<b>"),
        ("&amp;amp;lt;", ["html"], "&lt;"),
        ("it’s a “dog”", BOTH, 'it\'s a "dog"'),
        ("cafÃ©", BOTH, "café"),
        ("cafÃ©", ["html"], "cafÃ©"),
        ("ﬁsh 👍", BOTH, "fish 👍"),
        ("it’s &amp; cafÃ©", [], "it’s &amp; cafÃ©"),
        ("a\u00a0dog\r\n", ["html"], "a\u00a0dog\r\n"),
    ],
)
def test_cleaning(text, steps, expected):
    assert clean(text, steps) == expected


def test_cleaning_is_the_original_s(shared):
    """What the short cut for plain captions leaves alone, the original leaves alone, too."""
    tokenizer = pytest.importorskip(
        "open_clip.tokenizer", reason="open_clip, whose cleaning is repeated, is not installed"
    )
    data = json.loads((shared / "coco/annotations/captions_val2017.json").read_bytes())
    plain = [row["caption"] for row in data["annotations"][:3000]]
    odd = [
        "“a dog”",
        "Ã©",
        "&lt;b&gt; &amp;quot;",
        "ﬀ &eacute;",
        "tab\there",
        "\x1b[31mred",
        "a&nbsp;b",
        "𝓓og",
        "ｄｏｇ",
    ]
    for text in [*plain, *odd]:
        assert clean(text, BOTH).strip() == tokenizer.basic_clean(text), text
