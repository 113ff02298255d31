"""Loading checkpoints strictly, and towers that compute what the library computes."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest

torch = pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from checkpoints import clip_folder, open_clip_spec, random_spec, siglip_folder  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from exporter.load import embed_ids, embed_images, load_original, weights_sha256  # noqa: E402
from exporter.towers import towers_of  # noqa: E402
from lgip_ort.errors import UsageFault  # noqa: E402
from models import zoo  # noqa: E402


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return clip_folder(tmp_path_factory.mktemp("clip") / "weights")


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    return siglip_folder(tmp_path_factory.mktemp("siglip") / "weights")


@pytest.fixture(scope="module")
def open_clip_toy(tmp_path_factory):
    return open_clip_spec(tmp_path_factory.mktemp("open_clip"))


def _ids(spec, rows=3):
    torch.manual_seed(1)
    return torch.randint(3, 30, (rows, spec.context_length))


@pytest.mark.parametrize("key", ["tiny_clip", "tiny_siglip", "open_clip"])
def test_towers_equal_the_library(key, clip, siglip, open_clip_toy):
    spec = open_clip_toy if key == "open_clip" else zoo.get(key)
    original = load_original(spec, {"tiny_clip": str(clip), "tiny_siglip": str(siglip), "open_clip": "random"}[key])
    torch.manual_seed(0)
    pixels, ids = torch.randn(3, 3, spec.image_size, spec.image_size), _ids(spec)
    if key != "tiny_siglip":
        end = 49407 if key == "open_clip" else original.model.config.text_config.eos_token_id
        ids[:, 9] = end
    images, texts = embed_images(original, pixels), embed_ids(original, ids)
    pair = towers_of(original)
    assert images.shape == texts.shape == (3, pair.dim)
    with torch.inference_mode():
        torch.testing.assert_close(pair.vision(pixels), images, atol=2e-6, rtol=0)
        torch.testing.assert_close(pair.text(ids), texts, atol=2e-6, rtol=0)
    assert (texts[0] - texts[1]).abs().max() > 1e-3, "texts that differ must have vectors that differ"
    assert pair.text.any_length == (key != "tiny_siglip")


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


def test_gelu_for_weights_that_want_quick_gelu_is_refused():
    plain = dataclasses.replace(zoo.get("clip_vit_b16"), name="ViT-B-16")
    with pytest.raises(UsageFault, match=r"ViT-B-16.*'openai'.*computes GELU.*trained with QuickGELU"):
        load_original(plain, "random")


def test_the_configuration_beside_a_checkpoint_is_heard(tmp_path, open_clip_toy):
    file = tmp_path / "open_clip_model.safetensors"
    save_file(load_original(open_clip_toy, "random").model.state_dict(), file)
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"quick_gelu": True}}))
    with pytest.raises(UsageFault, match=r"open_clip_config\.json.*QuickGELU"):
        load_original(open_clip_toy, str(file))


def test_random_weights_are_seeded_and_quiet(open_clip_toy, caplog):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    with caplog.at_level(logging.WARNING):
        first, again, other = (load_original(open_clip_toy, "random", seed).weights for seed in (0, 0, 1))
    assert first == again and first.sha256 != other.sha256
    assert (first.source, first.name, other.name) == ("random", "seed 0", "seed 1")
    assert torch.equal(before, torch.random.get_rng_state()), "the caller's random stream is left alone"
    assert not caplog.records


def test_random_needs_an_architecture():
    with pytest.raises(UsageFault, match="tiny_clip has no architecture"):
        load_original(zoo.get("tiny_clip"), "random")


def test_sha256_does_not_depend_on_the_file_format(tmp_path, open_clip_toy):
    state = load_original(open_clip_toy, "random").model.state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pt")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "c.bin")
    found = {load_original(open_clip_toy, str(tmp_path / n)).weights.sha256 for n in ("a.safetensors", "b.pt", "c.bin")}
    assert found == {weights_sha256(state)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("ln_final.weight"), r"1 missing tensors: ln_final\.weight"),
        (lambda s: s.update(extra=torch.zeros(1)), "1 unexpected tensors: extra"),
        (
            lambda s: s.update(text_projection=torch.zeros(32, 31)),
            r"text_projection has shape \(32, 31\), \(32, 32\) expected",
        ),
        (
            # open_clip itself interpolates these without a word
            lambda s: s.update(positional_embedding=torch.zeros(64, 32)),
            r"positional_embedding has shape \(64, 32\), \(77, 32\) expected",
        ),
    ],
)
def test_open_clip_tensors_must_fit(change, message, tmp_path, open_clip_toy):
    state = dict(load_original(open_clip_toy, "random").model.state_dict())
    change(state)
    save_file(state, tmp_path / "x.safetensors")
    with pytest.raises(UsageFault, match=message):
        load_original(open_clip_toy, str(tmp_path / "x.safetensors"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("text_projection.weight"), "missing tensors: text_projection.weight"),
        (lambda s: s.update(extra=torch.zeros(1)), "unexpected tensors: extra"),
        (lambda s: s.update({"text_projection.weight": torch.zeros(24, 31)}), "text_projection.weight|mismatch"),
    ],
)
def test_transformers_tensors_must_fit(change, message, tmp_path):
    folder = clip_folder(tmp_path / "weights")
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageFault, match=message):
        load_original(zoo.get("tiny_clip"), str(folder))


def test_a_folder_of_another_size_is_refused(siglip):
    with pytest.raises(UsageFault, match="64 px and 24 tokens found, 64 px and 32 tokens expected of tiny_clip"):
        load_original(zoo.get("tiny_clip"), str(siglip))


def test_a_pickle_with_code_is_refused(tmp_path, open_clip_toy):
    torch.save({"x": random_spec}, tmp_path / "evil.pt")
    with pytest.raises(UsageFault, match=r"evil\.pt: can't be read as plain tensors"):
        load_original(open_clip_toy, str(tmp_path / "evil.pt"))


@pytest.mark.parametrize("key", ["clip_vit_b16", "siglip_base"])
def test_a_missing_path_is_named(key, tmp_path):
    with pytest.raises(UsageFault, match="nowhere"):
        load_original(zoo.get(key), str(tmp_path / "nowhere"))


def test_half_precision_files_load_as_fp32(tmp_path, clip):
    from transformers import CLIPModel

    CLIPModel.from_pretrained(clip).half().save_pretrained(tmp_path)
    model = load_original(zoo.get("tiny_clip"), str(tmp_path)).model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
