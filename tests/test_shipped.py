"""The tokenizer, preprocessing and configuration of an export in the manifest's terms; what is missing is the original's."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

import exports

from exporter import shipped
from exporter.inputs import original_images, original_text
from lgip_ort.errors import RunFault, UsageFault
from models import zoo

SPEC = zoo.get("tiny_clip")


def _tokenizer(folder, end=True, pad="<pad>", **files):
    """A tokenizer.json with ids 0 <pad>, 1 <end>, 2 <unk>, and files beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["<pad>", "<end>", "<unk>", "a", "two", "dogs"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if end:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 1)])
    if pad is None:
        tokenizer.enable_padding(pad_id=2, pad_token="<unk>", length=12)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in {"tokenizer_config": {"pad_token": pad}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _write_text(folder, work, original=None, any_length=False, beside=None):
    work.mkdir(exist_ok=True)
    return shipped.write_text(folder, beside or folder, SPEC, original, any_length, work)


def test_a_tokenizer_as_its_files_say(tmp_path):
    folder = _tokenizer(
        tmp_path / "export", tokenizer_config={"pad_token": {"content": "<unk>"}, "tokenizer_class": "CLIPTokenizer"}
    )
    spec = _write_text(folder, tmp_path / "work")
    assert (spec.context_length, spec.pad_id, spec.eot_id, spec.lengths) == (32, 2, 1, "trained")
    assert spec.reference == "transformers.CLIPTokenizer"
    assert (tmp_path / "work/tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("files", "pad", "any_length", "expected"),
    [
        ({}, "<pad>", False, 0),
        ({"tokenizer_config": {}, "special_tokens_map": {"pad_token": "<unk>"}}, "<pad>", False, 2),
        ({"tokenizer_config": {"pad_token": "<other>"}}, None, False, 2),  # what tokenizer.json pads with
        ({"tokenizer_config": {}}, "<pad>", True, 1),  # any will do: the end of text
    ],
)
def test_where_the_padding_id_is_from(files, pad, any_length, expected, tmp_path):
    folder = _tokenizer(tmp_path / "export", pad=pad, **files)
    assert _write_text(folder, tmp_path / "work", any_length=any_length).pad_id == expected


def test_no_padding_id(tmp_path):
    folder = _tokenizer(tmp_path / "export", tokenizer_config={})
    with pytest.raises(UsageFault, match=r"tokenizer\.json: no pad_token beside it"):
        _write_text(folder, tmp_path / "work")


def test_texts_must_end(tmp_path):
    with pytest.raises(
        RunFault, match=r"tokenizer\.json: texts that end with tokens .* found, one end-of-text token expected"
    ):
        _write_text(_tokenizer(tmp_path / "export", end=False), tmp_path / "work")


def test_a_tokenizer_beside_the_text_graph(tmp_path):
    beside = _tokenizer(tmp_path / "export/textual")
    assert _write_text(tmp_path / "export", tmp_path / "work", beside=beside).eot_id == 1


def test_an_original_says_what_files_can_t(tmp_path):
    original = dataclasses.replace(original_text(exports.original("tiny_clip")), pad_id=7)
    folder = exports.transformers_js("tiny_clip")
    end = original.eot_id
    spec = _write_text(folder, tmp_path / "work", original, any_length=True)
    assert (spec.eot_id, spec.pad_id, spec.reference) == (end, 7, original.reference)  # any padding: the original's
    assert _write_text(folder, tmp_path / "work", original, any_length=False).pad_id == end  # padding matters: theirs
    (tmp_path / "empty").mkdir()
    assert _write_text(tmp_path / "empty", tmp_path / "work", original, any_length=True).eot_id == end
    with pytest.raises(UsageFault, match=r"tokenizer\.json is missing, and there is no original to take it from"):
        _write_text(tmp_path / "empty", tmp_path / "work")


@pytest.mark.parametrize("content", ["", "{}", "not json"])
def test_a_damaged_tokenizer(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UsageFault, match=r"tokenizer\.json: not a tokenizer"):
        _write_text(tmp_path, tmp_path / "work")


PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 64},
    "resample": 2,
    "do_center_crop": True,
    "crop_size": {"height": 64, "width": 64},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.4, 0.5, 0.6],
}


def _write_images(folder, work, original=None, **changes):
    work.mkdir(exist_ok=True)
    if changes:
        (folder / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **changes}))
    return shipped.write_images(folder, folder, SPEC, original, work)


def test_preprocessing_as_its_file_says(tmp_path):
    spec = _write_images(tmp_path, tmp_path / "work", do_convert_rgb=True)
    assert (spec.size, spec.resize, spec.interpolation) == (64, "shortest", "bilinear")
    assert (spec.mean, spec.std, spec.convert, spec.arithmetic) == (
        [0.1, 0.2, 0.3],
        [0.4, 0.5, 0.6],
        "before",
        "transformers",
    )
    written = json.loads((tmp_path / "work/preprocessor_config.json").read_text())
    assert written["image_mean"] == [0.1, 0.2, 0.3] and written["resample"] == 2


@pytest.mark.parametrize("name", ["CLIPFeatureExtractor", "CLIPImageProcessorFast"])
def test_old_and_fast_names_of_the_processor(name, tmp_path):
    plain = {"size": 64, "crop_size": 64}  # as old configurations have them
    spec = _write_images(tmp_path, tmp_path / "work", image_processor_type=name, **plain)
    assert (spec.mean, spec.size, spec.resize) == ([0.1, 0.2, 0.3], 64, "shortest")


@pytest.mark.parametrize(
    ("changes", "fault", "message"),
    [
        (
            {"image_processor_type": "ViTImageProcessor"},
            UsageFault,
            "'ViTImageProcessor' found, CLIP's or SigLIP's expected",
        ),
        ({"size": {"shortest_edge": 224}, "crop_size": 224}, RunFault, "224 px found, 64 px expected of tiny_clip"),
        ({"do_center_crop": False}, UsageFault, "unknown resizing"),
    ],
)
def test_preprocessing_that_can_t_be_taken(changes, fault, message, tmp_path):
    with pytest.raises(fault, match=message):
        _write_images(tmp_path, tmp_path / "work", **changes)


def test_preprocessing_of_the_original(tmp_path):
    original = original_images(exports.original("tiny_clip"))
    assert _write_images(tmp_path, tmp_path / "work", original).mean == [0.5, 0.5, 0.5]
    with pytest.raises(
        UsageFault, match=r"preprocessor_config\.json is missing, and there is no original to take it from"
    ):
        _write_images(tmp_path, tmp_path / "work")


def test_configuration(tmp_path):
    assert shipped.read_config(tmp_path) == {}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip", "_name_or_path": "/home/somebody"}))
    assert shipped.read_config(tmp_path) == {"model_type": "clip"}
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UsageFault, match=r"config\.json: .*object"):
        shipped.read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageFault, match=r"config\.json"):
        shipped.read_config(tmp_path)
    assert shipped.activations({"text_config": {"hidden_act": "gelu"}}) == {"vision": "unknown", "text": "gelu"}


@pytest.mark.parametrize(
    ("key", "found", "family"),
    [
        ("tiny_clip", {}, "clip"),
        ("tiny_siglip", {}, "siglip"),
        ("siglip_base", {}, "siglip"),
        ("siglip_base", {"model_type": "siglip"}, "siglip"),
        ("clip_vit_b16", {"model_type": "clip"}, "clip"),
        ("clip_vit_b16", {}, "clip"),
        ("clip_vit_b16", {"model_type": "siglip"}, "siglip"),  # transformers' form of an open_clip model
    ],
)
def test_family(key, found, family):
    assert shipped.family_of(zoo.get(key), found) == family


def test_family_that_contradicts(tmp_path):
    with pytest.raises(UsageFault, match="model_type 'siglip' found, 'clip' expected of tiny_clip"):
        shipped.family_of(SPEC, {"model_type": "siglip"})
    unknown = dataclasses.replace(SPEC, weights="hub", config={})
    with pytest.raises(UsageFault, match="model_type 'blip' found, 'clip or siglip' expected"):
        shipped.family_of(unknown, {"model_type": "blip"})
    assert shipped.family_of(unknown, {"model_type": "siglip"}) == "siglip"
