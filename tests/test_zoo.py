from __future__ import annotations

import pytest

from lgip_ort.errors import UsageFault
from models import zoo

# arXiv 2511.13494 and its released code: key -> library, architecture or hub id, weights tag, pixels, text length.
PAPER = {
    "clip_vit_b16": ("open_clip", "ViT-B-16-quickgelu", "openai", 224, 77),
    "clip_vit_l14": ("open_clip", "ViT-L-14-quickgelu", "openai", 224, 77),
    "openclip_vit_l14": ("open_clip", "ViT-L-14", "laion2b_s32b_b82k", 224, 77),
    "openclip_vit_h14": ("open_clip", "ViT-H-14", "laion2b_s32b_b79k", 224, 77),
    "eva02_l14": ("open_clip", "EVA02-L-14", "merged2b_s4b_b131k", 224, 77),
    "siglip_base": ("transformers", "google/siglip-base-patch16-224", None, 224, 64),
    "siglip_base_384": ("transformers", "google/siglip-base-patch16-384", None, 384, 64),
    "siglip_large": ("transformers", "google/siglip-large-patch16-384", None, 384, 64),
    "siglip2_base": ("transformers", "google/siglip2-base-patch16-224", None, 224, 64),
}


def test_models_of_the_paper_and_of_the_demo():
    models = zoo.load()
    assert list(models) == ["tiny_clip", "tiny_siglip", *PAPER]
    assert {
        k: (m.library, m.name, m.tag, m.image_size, m.context_length) for k, m in models.items() if k in PAPER
    } == PAPER
    assert {key for key, model in models.items() if model.weights == "demo"} == {"tiny_clip", "tiny_siglip"}


def test_random_weights_of_a_transformers_model_need_its_configuration():
    for model in zoo.load().values():
        assert bool(model.config) == (model.library == "transformers" and model.weights == "hub"), model.key


def test_unknown_model():
    with pytest.raises(UsageFault, match=r"unknown model 'siglip_larg'; did you mean 'siglip_large'\?"):
        zoo.get("siglip_larg")


def test_bundle_of_a_model(tmp_path, monkeypatch):
    """The exported one first, then the committed one of a demo model."""
    monkeypatch.setattr(zoo, "DEMO", tmp_path / "demo")
    with pytest.raises(
        UsageFault, match=r"no bundle of tiny_clip in .*; make one: python exporter/export.py --model tiny_clip"
    ):
        zoo.find_bundle("tiny_clip", tmp_path)
    committed = tmp_path / "demo/tiny_clip/bundle"
    committed.mkdir(parents=True)
    assert zoo.find_bundle("tiny_clip", tmp_path) == committed
    (tmp_path / "tiny_clip").mkdir()  # nothing in it: no bundle
    assert zoo.find_bundle("tiny_clip", tmp_path) == committed
    (tmp_path / "tiny_clip/manifest.json").touch()
    assert zoo.find_bundle("tiny_clip", tmp_path) == tmp_path / "tiny_clip"
    with pytest.raises(UsageFault, match="no bundle of siglip_base"):
        zoo.find_bundle("siglip_base", tmp_path)
