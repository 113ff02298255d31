"""Towers that compute what the library computes."""

from __future__ import annotations

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from checkpoints import open_clip_siglip_spec, open_clip_spec  # noqa: E402

from exporter.load import embed_ids, embed_images, load_original, sees_padding  # noqa: E402
from exporter.towers import towers_of  # noqa: E402
from lgip_ort.errors import UsageFault  # noqa: E402
from models import zoo  # noqa: E402


def _ids(spec, rows=3):
    torch.manual_seed(1)
    return torch.randint(3, 30, (rows, spec.context_length))


@pytest.mark.parametrize("key", ["tiny_clip", "tiny_siglip", "open_clip", "open_clip siglip"])
def test_towers_equal_the_library(key, clip, siglip, open_clip_toy, tmp_path):
    spec, weights = {
        "tiny_clip": (zoo.get("tiny_clip"), str(clip)),
        "tiny_siglip": (zoo.get("tiny_siglip"), str(siglip)),
        "open_clip": (open_clip_toy, "random"),
        "open_clip siglip": (open_clip_siglip_spec(tmp_path), "random"),
    }[key]
    original = load_original(spec, weights)
    torch.manual_seed(0)
    pixels, ids = torch.randn(3, 3, spec.image_size, spec.image_size), _ids(spec)
    if "siglip" not in key:
        end = 49407 if key == "open_clip" else original.model.config.text_config.eos_token_id
        ids[:, 9] = end
    images, texts = embed_images(original, pixels), embed_ids(original, ids)
    pair = towers_of(original)
    assert images.shape == texts.shape == (3, pair.dim)
    with torch.inference_mode():
        torch.testing.assert_close(pair.vision(pixels), images, atol=2e-6, rtol=0)
        torch.testing.assert_close(pair.text(ids), texts, atol=2e-6, rtol=0)
    assert (texts[0] - texts[1]).abs().max() > 1e-3, "texts that differ must have vectors that differ"
    assert pair.text.any_length == (not sees_padding(original)) == ("siglip" not in key)
    ids[:, 12:] = 2  # behind the end of the text
    moved = (embed_ids(original, ids) - texts).abs().max()
    assert moved > 1e-4 if sees_padding(original) else moved < 1e-6


def test_causal_text_is_exact_at_its_own_length(open_clip_toy):
    pair = towers_of(load_original(open_clip_toy, "random"))
    ids = torch.zeros(2, 77, dtype=torch.int64)
    ids[:, :5] = torch.tensor([[49406, 320, 2368, 49407, 0], [49406, 320, 1929, 49407, 0]])
    with torch.inference_mode():
        torch.testing.assert_close(pair.text(ids[:, :4]), pair.text(ids), atol=1e-6, rtol=0)
        ids[:, 4] = 7  # what follows the end of the text
        torch.testing.assert_close(pair.text(ids[:, :4]), pair.text(ids), atol=1e-6, rtol=0)


def test_the_first_end_of_text_is_pooled(open_clip_toy):
    pair = towers_of(load_original(open_clip_toy, "random"))
    once = torch.tensor([[49406, 320, 2368, 49407, 0, 0]])
    twice = torch.tensor([[49406, 320, 2368, 49407, 320, 49407]])
    with torch.inference_mode():
        torch.testing.assert_close(pair.text(twice), pair.text(once), atol=1e-6, rtol=0)


def test_activation_is_named(tmp_path):
    assert towers_of(load_original(open_clip_spec(tmp_path), "random")).activation["text"] == "GELU"
    quick = open_clip_spec(tmp_path, quick_gelu=True)
    assert towers_of(load_original(quick, "random")).activation == {"vision": "QuickGELU", "text": "QuickGELU"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool_type": "first"}, "not causal text tower TextTransformer pooled by 'first' found"),
        ({"pool_type": "argmax"}, "not causal text tower TextTransformer pooled by 'argmax' found"),
        ({"no_causal_mask": False}, "causal text tower TextTransformer pooled by 'last' found"),
        ({"embed_cls": True}, "text tower TextTransformer"),
    ],
)
def test_a_text_tower_of_another_kind_is_refused(change, message, tmp_path):
    import open_clip

    spec = open_clip_siglip_spec(tmp_path)
    config = open_clip.get_model_config(spec.name)
    config["text_cfg"] |= change
    (tmp_path / "toy-other.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "toy-other.json")
    original = load_original(dataclasses.replace(spec, name="toy-other"), "random")
    with pytest.raises(UsageFault, match=message):
        towers_of(original)


def test_a_text_tower_that_masks_its_padding_is_refused(tmp_path):
    original = load_original(open_clip_siglip_spec(tmp_path), "random")
    original.model.text.use_pad_mask = True
    with pytest.raises(UsageFault, match="not causal text tower TextTransformer pooled by 'last' found"):
        towers_of(original)
