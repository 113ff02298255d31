"""TorchEngine: the original itself, and the same vectors as the bundle made from it."""

from __future__ import annotations

import dataclasses
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from checkpoints import CAPTIONS, clip_folder, exported, open_clip_spec  # noqa: E402

from exporter.load import load_original  # noqa: E402
from exporter.probes import CAPTIONS as PROBES  # noqa: E402
from exporter.probes import pictures  # noqa: E402
from exporter.reference import TorchEngine  # noqa: E402
from lgip_ort.bundle import open_bundle, write_manifest  # noqa: E402
from lgip_ort.encode import encode_images, encode_texts  # noqa: E402
from lgip_ort.engine import OrtEngine  # noqa: E402
from lgip_ort.errors import UsageFault  # noqa: E402
from models import zoo  # noqa: E402


@pytest.mark.parametrize("kind", ["tiny_clip", "tiny_siglip"])
def test_both_engines_agree(kind):
    bundle = open_bundle(exported(kind)[0])
    original, ours = TorchEngine.from_bundle(bundle, 3, "cpu"), OrtEngine(bundle, "cpu", 4)
    images, texts = pictures(), [*PROBES, *CAPTIONS[:5]]
    for a, b in (
        (encode_images(original, images), encode_images(ours, images)),
        (encode_texts(original, texts), encode_texts(ours, texts)),
    ):
        assert a.dtype == np.float32 and a.shape == (len(a), original.dim) == b.shape
        np.testing.assert_allclose(np.linalg.norm(a, axis=1), 1, atol=1e-5)
        assert (a * b).sum(1).min() > 0.9999


@pytest.mark.parametrize("kind", ["tiny_clip", "tiny_siglip"])
@pytest.mark.parametrize("size", [(1, 1), (3, 1), (1, 3), (3, 3), (5, 3), (100, 3), (100, 1)])
def test_pictures_of_few_rows(kind, size):
    """One or three rows are not one or three channels."""
    bundle = open_bundle(exported(kind)[0])
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    images = [Image.fromarray(pixels)]
    a, b = (encode_images(engine, images) for engine in (TorchEngine.from_bundle(bundle, 1, "cpu"), OrtEngine(bundle)))
    assert (a * b).sum() > 0.9999


def test_stamp_says_what_ran():
    bundle = open_bundle(exported("tiny_clip")[0])
    stamp = TorchEngine.from_bundle(bundle, 8, "cpu").stamp
    assert (stamp.engine, stamp.model, stamp.padding) == ("torch", "tiny_clip", "trained")
    assert stamp.weights == dataclasses.asdict(bundle.manifest.weights)
    assert stamp.artifact == bundle.manifest.weights.sha256
    assert stamp.precision == {"asked": "fp32", "executed": "fp32"}
    assert stamp.provider["active"] == "cpu"
    assert {"torch", "transformers", "tokenizers", "pillow"} <= set(stamp.versions)


def test_it_is_the_library_s_own_computation(tmp_path):
    """Vectors equal what transformers' documentation says to call, bit for bit."""
    from transformers import AutoModel, AutoTokenizer

    from exporter.inputs import pil_processor

    folder = clip_folder(tmp_path / "weights")
    engine = TorchEngine(load_original(zoo.get("tiny_clip"), str(folder)), 64, "cpu")
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = AutoTokenizer.from_pretrained(folder)(
        ["a red dog"], padding="max_length", max_length=32, return_tensors="pt"
    )
    pixels = pil_processor("CLIP").from_pretrained(folder)(images=pictures()[:1], return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        out = model(input_ids=tokens["input_ids"], pixel_values=pixels)
    torch.testing.assert_close(
        torch.from_numpy(encode_texts(engine, ["a red dog"])), out.text_embeds, atol=1e-7, rtol=0
    )
    torch.testing.assert_close(
        torch.from_numpy(encode_images(engine, pictures()[:1])), out.image_embeds, atol=1e-7, rtol=0
    )


def test_open_clip_random_weights_are_rebuilt(tmp_path, monkeypatch):
    folder, _ = exported("open_clip")
    known = zoo.load()
    monkeypatch.setattr(zoo, "load", lambda: {**known, "toy_open_clip": open_clip_spec(tmp_path)})
    bundle = open_bundle(folder)
    engine = TorchEngine.from_bundle(bundle, 4, "cpu")
    assert engine.stamp.weights["name"] == "seed 0" and "open_clip_torch" in engine.stamp.versions
    texts = ["a cat", "a red dog on a boat"]
    assert (encode_texts(engine, texts) * encode_texts(OrtEngine(bundle, "cpu"), texts)).sum(1).min() > 0.9999
    np.testing.assert_array_equal(encode_texts(engine, texts), encode_texts(engine, texts, pad_to=12))


def test_padding_changes_siglip_and_not_clip():
    bundles = {kind: open_bundle(exported(kind)[0]) for kind in ("tiny_clip", "tiny_siglip")}
    engines = {kind: TorchEngine.from_bundle(bundle, 8, "cpu", "paper") for kind, bundle in bundles.items()}
    apart = {
        k: np.abs(encode_texts(e, ["a dog"]) - encode_texts(e, ["a dog"], pad_to=12)).max() for k, e in engines.items()
    }
    assert apart["tiny_clip"] < 1e-6 < 1e-4 < apart["tiny_siglip"]
    with pytest.raises(ValueError, match="does not fit the padded length 3"):
        encode_texts(engines["tiny_siglip"], ["a red dog on a boat"], pad_to=3)
    trained = TorchEngine.from_bundle(bundles["tiny_siglip"], 8, "cpu")
    np.testing.assert_array_equal(encode_texts(trained, ["a dog"], pad_to=24), encode_texts(trained, ["a dog"]))
    with pytest.raises(ValueError, match="padded length 12 found, 24 expected where texts are padded as trained"):
        encode_texts(trained, ["a dog"], pad_to=12)


@pytest.mark.parametrize("length", [8, 13, 24])
def test_both_engines_agree_at_a_padded_length(length):
    bundle = open_bundle(exported("tiny_siglip")[0])
    original, ours = TorchEngine.from_bundle(bundle, 3, "cpu", "paper"), OrtEngine(bundle, "cpu", 4, "paper")
    assert (original.stamp.padding, ours.stamp.padding) == ("paper", "paper")
    a, b = (
        encode_texts(engine, ["a dog", "a red cat", "", *["two dogs"] * 4], pad_to=length)
        for engine in (original, ours)
    )
    assert (a * b).sum(1).min() > 0.9999
    with pytest.raises(UsageFault, match="unknown padding 'papers'; did you mean 'paper'"):
        TorchEngine.from_bundle(bundle, 3, "cpu", "papers")


def test_other_weights_than_the_bundle_s_are_refused(tmp_path):
    copy = shutil.copytree(exported("tiny_clip")[0], tmp_path / "bundle")
    other = clip_folder(tmp_path / "other", seed=1)
    manifest = open_bundle(copy).manifest
    weights = dataclasses.replace(manifest.weights, name=str(other))
    write_manifest(copy, dataclasses.replace(manifest, weights=weights))
    with pytest.raises(
        UsageFault, match=f"exported from weights {manifest.weights.sha256[:12]}, but path .*export again"
    ):
        TorchEngine.from_bundle(open_bundle(copy), 8, "cpu")


def test_devices():
    bundle = open_bundle(exported("tiny_clip")[0])
    with pytest.raises(UsageFault, match="no provider 'cudo'; did you mean 'cuda'"):
        TorchEngine.from_bundle(bundle, 8, "cudo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a driver that is too old warns
        there = torch.cuda.is_available()
    if not there:
        with pytest.raises(UsageFault, match="no CUDA device"):
            TorchEngine.from_bundle(bundle, 8, "cuda")
