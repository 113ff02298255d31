"""tokenizer.json against the original tokenizer, id for id."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from checkpoints import CAPTIONS, clip_folder, open_clip_spec, random_spec, siglip_folder, siglip_tokenizer
from originals import IGNORES, KINDS, LENGTH, Made, plain

from exporter.canonical import lower_case, open_clip_cleaning
from exporter.golden import GOLDEN
from exporter.inputs import OriginalText, original_text
from exporter.load import load_original
from exporter.tokenizer import prove_tokens, write_tokenizer
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.text import TextEncoder
from models import zoo

# Words, white space and letters that tokenizers have been wrong about; special tokens by name are another matter.
PARTS = [
    *(
        "a",
        "Dog",
        "cats",
        "it's",
        "DON'T",
        "12",
        "x_y",
        "--",
        "...",
        '"',
        "(",
        "]",
        "{",
        "@",
        "—",
        "…",
        "’",
        "&amp;",
        "Ã©",
    ),
    *(
        "ΟΔΟΣ",
        "Σ",
        "αΣ.",
        "ὈΔΥΣΣΕΎΣ",
        "İ",
        "ß",
        "ﬁ",
        "e\u0301",
        "É",
        "Å",
        "ａＢ",
        "½",
        "Ⅳ",
        "日本",
        "🐈",
        "кот",
        "قطة",
        "एक",
    ),
    *(" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\x0b", "\x1c", "\x85", "\u200b", "\u2028", "\ufeff", "\x7f"),
]


def _encoder(text, length, folder, any_length=False, **changes):
    path = folder / "tokenizer.json"
    spec = write_tokenizer(text, length, any_length, path)
    for name, value in changes.items():
        object.__setattr__(spec, name, value)
    return TextEncoder(SimpleNamespace(manifest=SimpleNamespace(text=spec), path=lambda name: folder / name))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    return {
        "open_clip": load_original(open_clip_spec(folder), "random"),
        "clip": load_original(zoo.get("tiny_clip"), str(clip_folder(folder / "clip"))),
        "siglip": load_original(zoo.get("tiny_siglip"), str(siglip_folder(folder / "siglip"))),
        "stand-in": load_original(random_spec(), "random"),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("made"), CAPTIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_original(kind, made, tmp_path):
    """Golden texts, and texts put together of odd parts; what is ignored; what is kept when a text is cut."""
    text, length = made.text(kind), LENGTH[KINDS[kind][0]]
    encoder = _encoder(text, length, tmp_path)
    draw = random.Random(0)
    odd = ["".join(draw.choices(PARTS, k=draw.randint(1, 9))) for _ in range(600)]
    assert prove_tokens(text, encoder, odd)["differences"] == 0
    assert encoder.spec.ignores == IGNORES[kind]
    same = encoder.ids(["A Dog"]) == encoder.ids(["a dog"]), encoder.ids(["a dog."]) == encoder.ids(["a dog"])
    assert same == ("case" in IGNORES[kind], "punctuation" in IGNORES[kind])
    for ids in (encoder.ids(["a dog and a cat " * 60])[0], text.encode(["a dog and a cat " * 60])[0]):
        assert len(ids) == length and ids[-1] == encoder.spec.eot_id, "truncation keeps the end-of-text token"


@pytest.fixture(scope="module")
def made_of_coco(val2017, tmp_path_factory):
    return Made(tmp_path_factory.mktemp("made"), val2017.captions["text"].to_list()[:12_000])


IN_USE = [
    "open_clip SimpleTokenizer",
    "CLIPTokenizerFast",
    "CLIPTokenizer",
    "SiglipTokenizer",
    "GemmaTokenizerFast",
    "open_clip HFTokenizer of T5, canonicalize",
    "open_clip HFTokenizer of Gemma, canonicalize",
]


@pytest.mark.parametrize("kind", IN_USE)
def test_every_caption_of_coco(kind, val2017, made_of_coco, tmp_path):
    captions = val2017.captions["text"].to_list()
    assert len(captions) == 25_014
    text = made_of_coco.text(kind)
    encoder = _encoder(text, LENGTH[KINDS[kind][0]], tmp_path)
    assert prove_tokens(text, encoder, captions) == {
        "golden": len(GOLDEN),
        "captions": len(set(captions)),
        "differences": 0,
    }


@pytest.mark.parametrize("kind", ["open_clip", "clip", "siglip", "stand-in"])
def test_ids_of_a_model_s_own_tokenizer(kind, originals, tmp_path):
    original = originals[kind]
    text = original_text(original)
    encoder = _encoder(text, original.spec.context_length, tmp_path)
    assert prove_tokens(text, encoder, CAPTIONS)["captions"] == len(set(CAPTIONS))
    assert encoder.spec.source == ("stand-in" if kind == "stand-in" else "original")


def test_known_ids(originals, tmp_path):
    """CLIP's ids of "a cat", as its authors' own tokenizer has given them since 2021."""
    encoder = _encoder(original_text(originals["open_clip"]), 77, tmp_path)
    assert encoder.ids(["a cat", "A  CAT"]) == [[49406, 320, 2368, 49407]] * 2
    assert encoder.pad(encoder.ids(["a cat"]), 6).tolist() == [[49406, 320, 2368, 49407, 0, 0]]


def test_libraries_pad_clip_differently_and_agree_up_to_the_end(made, tmp_path):
    """open_clip fills up with 0, transformers with the end-of-text token; what a causal tower reads is the same."""
    (tmp_path / "a").mkdir()
    ours = [_encoder(made.text(kind), 77, tmp_path) for kind in ("open_clip SimpleTokenizer", "CLIPTokenizerFast")]
    assert [encoder.spec.pad_id for encoder in ours] == [0, 49407]
    texts = ["a cat", "a red bus, next to two dogs."]
    assert ours[0].ids(texts) == ours[1].ids(texts)
    first, second = (encoder.pad(encoder.ids(texts), 77) for encoder in ours)
    ends = np.array(list(map(len, ours[0].ids(texts))))
    assert ((first == second).sum(axis=1) == ends).all()


def test_both_paddings_give_the_same_vector(originals):
    import torch

    from exporter.load import embed_ids
    from exporter.towers import towers_of

    original = originals["open_clip"]
    ids = original_text(original).encode(["a cat", "a red bus, next to two dogs."])
    other = np.where(np.cumsum(ids == 49407, axis=1) > 0, 49407, ids)  # padded as transformers does
    assert (ids != other).any(axis=1).all()
    ours, theirs = (embed_ids(original, torch.from_numpy(rows)) for rows in (ids, other))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    tower = towers_of(load_original(original.spec, "random")).text
    with torch.inference_mode():
        torch.testing.assert_close(tower(torch.from_numpy(other)), ours, atol=2e-6, rtol=0)


def test_special_ids_of_the_stand_in(originals, tmp_path):
    encoder = _encoder(original_text(originals["stand-in"]), 24, tmp_path)
    assert (encoder.spec.pad_id, encoder.spec.eot_id, encoder.spec.lengths) == (1, 1, "trained")
    assert encoder.ids(["A Dog."]) == encoder.ids(["a dog"]), "SigLIP lower-cases and drops punctuation"


def test_siglip2_pads_with_its_own_token(tmp_path):
    spec = random_spec()
    config = {**spec.config, "text_config": {**spec.config["text_config"], "pad_token_id": 0, "bos_token_id": 2}}
    spec.config.update(config)
    text = original_text(load_original(spec, "random"))
    encoder = _encoder(text, 24, tmp_path)
    assert (encoder.spec.pad_id, encoder.spec.eot_id) == (0, 1)
    assert prove_tokens(text, encoder, CAPTIONS)["differences"] == 0


def test_lower_case_is_python_s():
    """The final sigma is one letter that Unicode's plain lower-casing has wrong."""
    from tokenizers import normalizers

    steps, draw = normalizers.Sequence(lower_case()), random.Random(0)
    for _ in range(5000):
        text = "".join(draw.choices("ΣΣ AaαΑ1.'·\u0301Ⅳⓐª日-İß\u00ad:", k=draw.randint(1, 7)))
        assert steps.normalize_str(text) == text.lower(), repr(text)


def test_cleaning_that_is_left_out_is_found(originals, tmp_path):
    text = original_text(originals["open_clip"])
    with pytest.raises(RunFault, match=r"tokenizer: 'cafe\u0301 in(?s:.*)found(?s:.*)expected"):
        prove_tokens(text, _encoder(text, 77, tmp_path, clean=["html"]), [])


def test_a_caption_that_comes_out_otherwise_stops_the_export(originals, tmp_path):
    text = original_text(originals["clip"])
    _encoder(text, 32, tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    data["normalizer"] = None  # a tokenizer that does not lower-case
    path.write_text(json.dumps(data))
    spec = write_tokenizer(text, 32, True, tmp_path / "other.json")
    encoder = TextEncoder(SimpleNamespace(manifest=SimpleNamespace(text=spec), path=lambda name: path))
    with pytest.raises(RunFault, match=r"found +.*\n.*expected"):
        prove_tokens(text, encoder, ["A Dog"])


def test_the_first_difference_is_shown_with_its_ids(made, tmp_path):
    right = made.simple()

    def wrong(texts):
        ids = right.encode(texts)
        ids[[text == "a red dog" for text in texts], 2] = 7
        return ids

    text = OriginalText(right.tokenizer, wrong, right.pad_id, right.eot_id, right.reference)
    with pytest.raises(RunFault) as fault:
        prove_tokens(text, _encoder(right, 77, tmp_path), ["a cat", "a red dog", "a dog"])
    shown = "tokenizer: 'a red dog'\n  found    [49406, 320, 736, 1929, 49407, 0]\n  expected [49406, 320, 7, 1929, 49407, 0]"
    assert str(fault.value).startswith(shown)


def test_wrong_padding_is_found(originals, tmp_path):
    text = original_text(originals["siglip"])
    with pytest.raises(RunFault, match="tokenizer: ''"):
        prove_tokens(text, _encoder(text, 24, tmp_path, pad_id=0), [])


def test_another_length_is_found(made, tmp_path):
    text = made.simple()
    with pytest.raises(RunFault, match=r"ids \(\d+, 64\) found, \(\d+, 77\) expected"):
        prove_tokens(text, _encoder(text, 64, tmp_path), [])


def test_an_original_that_cuts_off_the_end_of_text_is_found(made, tmp_path):
    text = made.text("GemmaTokenizerFast")

    def cut(texts):
        ids = text.tokenizer(list(texts), padding="max_length", max_length=200)["input_ids"]
        return np.array([row[:64] for row in ids])

    careless = OriginalText(text.tokenizer, cut, text.pad_id, text.eot_id, text.reference)
    long = "a dog and a cat on a boat " * 7
    with pytest.raises(RunFault, match="tokenizer: ") as fault:
        prove_tokens(careless, _encoder(text, 64, tmp_path), [long])
    assert str(fault.value).splitlines()[1].endswith(", 1]"), "ours ends"


def _fast(made, **changes):
    tokenizer = made.transformers("GemmaTokenizerFast")
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return plain(tokenizer, 64)


class OddTokenizer:
    padding_side = truncation_side = "right"
    is_fast = False


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda made: _fast(made, padding_side="left"), "pads on the left and cuts on the right, right expected"),
        (lambda made: _fast(made, truncation_side="left"), "pads on the right and cuts on the left, right expected"),
        (lambda made: made.simple(reduction_mask="simple"), "drops words at random"),
        (
            lambda made: made.hf(made.transformers("T5TokenizerFast"), strip_sep_token=True),
            "strip_sep_token True, mode '' found",
        ),
        (
            lambda made: made.hf(made.transformers("T5TokenizerFast"), tokenizer_mode="clips"),
            "strip_sep_token False, mode 'clips' found",
        ),
        (
            lambda made: OriginalText(OddTokenizer(), lambda _: np.zeros((1, 64)), 0, 1, "somebody.OddTokenizer"),
            r"somebody\.OddTokenizer: no way to write it as a tokenizer\.json is known",
        ),
    ],
)
def test_what_no_tokenizer_json_can_say_is_refused(make, message, made, tmp_path):
    with pytest.raises(UsageFault, match=message):
        write_tokenizer(make(made), 64, False, tmp_path / "x.json")


def test_a_siglip_tokenizer_of_another_model_type_is_refused(made, tmp_path):
    (tmp_path / "t").mkdir()
    text = plain(siglip_tokenizer(tmp_path / "t"), 24)
    text.tokenizer.vocab_file = made.pieces("bpe")
    with pytest.raises(UsageFault, match=r"bpe\.model: model type 2 found, 1 \(unigram\) expected"):
        write_tokenizer(text, 24, False, tmp_path / "x.json")


def test_unknown_cleaning_is_refused(made, tmp_path):
    def shout(text):
        return text.upper()

    with pytest.raises(UsageFault, match="cleaning 'shout' found"):
        open_clip_cleaning(shout)
    text = made.simple()
    text.tokenizer.clean_fn = shout
    with pytest.raises(UsageFault, match="cleaning 'shout' found"):
        write_tokenizer(text, 77, True, tmp_path / "x.json")


def test_a_clip_tokenizer_without_ftfy_is_refused(made, tmp_path):
    text = made.text("CLIPTokenizer")
    text.tokenizer.fix_text = None
    with pytest.raises(UsageFault, match="CLIPTokenizer without ftfy"):
        write_tokenizer(text, 77, True, tmp_path / "x.json")
