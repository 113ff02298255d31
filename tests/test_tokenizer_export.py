"""tokenizer.json against the original tokenizer, id for id."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from checkpoints import CAPTIONS, clip_folder, open_clip_spec, random_spec, siglip_folder

from exporter.golden import GOLDEN
from exporter.inputs import original_text
from exporter.load import load_original
from exporter.tokenizer import prove_tokens, write_tokenizer
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.text import TextEncoder
from models import zoo


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


@pytest.mark.parametrize("kind", ["open_clip", "clip", "siglip", "stand-in"])
def test_ids_are_the_original_s(kind, originals, tmp_path):
    original = originals[kind]
    text = original_text(original)
    encoder = _encoder(text, original.spec.context_length, tmp_path)
    assert prove_tokens(text, encoder, CAPTIONS) == {
        "golden": len(GOLDEN),
        "captions": len(set(CAPTIONS)),
        "differences": 0,
    }
    assert encoder.spec.source == ("stand-in" if kind == "stand-in" else "original")
    length = original.spec.context_length
    cut = encoder.ids(["a dog and a cat " * 60])[0]
    assert len(cut) == length and cut[-1] == encoder.spec.eot_id, "truncation keeps the end-of-text token"


def test_known_ids(originals, tmp_path):
    """CLIP's ids of "a cat", as its authors' own tokenizer has given them since 2021."""
    encoder = _encoder(original_text(originals["open_clip"]), 77, tmp_path)
    assert encoder.ids(["a cat", "A  CAT"]) == [[49406, 320, 2368, 49407]] * 2
    assert encoder.pad(encoder.ids(["a cat"]), 6).tolist() == [[49406, 320, 2368, 49407, 0, 0]]


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


def test_wrong_padding_is_found(originals, tmp_path):
    text = original_text(originals["siglip"])
    with pytest.raises(RunFault, match="tokenizer: ''"):
        prove_tokens(text, _encoder(text, 24, tmp_path, pad_id=0), [])


def test_an_unknown_tokenizer_is_refused(originals, tmp_path):
    text = original_text(originals["siglip"])
    object.__setattr__(text, "tokenizer", object())
    with pytest.raises(UsageFault, match="no way to write it"):
        write_tokenizer(text, 24, False, tmp_path / "x.json")
