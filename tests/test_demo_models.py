"""The demo models: weights that transformers loads whole, tokenizers with the ids they were trained on, training that repeats."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the export extra: torch")
pytest.importorskip("transformers", reason="needs the export extra: transformers")
pytest.importorskip("sentencepiece", reason="needs the export extra: sentencepiece")

from safetensors import safe_open  # noqa: E402
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel, SiglipModel  # noqa: E402

from models import demo  # noqa: E402
from models.demo import corpus, evaluate, recipe, towers, train, vocab  # noqa: E402

MODELS = {"tiny_clip": CLIPModel, "tiny_siglip": SiglipModel}
MEGABYTE = 1_000_000


def weights(key: str) -> Path:
    return demo.ROOT / key / "weights"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads, and sums over several need not repeat."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=MODELS)
def key(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tokenizer(key: str) -> Any:
    return AutoTokenizer.from_pretrained(weights(key))


@pytest.fixture(scope="module")
def model(key: str) -> Any:
    return MODELS[key].from_pretrained(weights(key)).float().eval()


def test_weights_load_with_nothing_missing_and_nothing_left_over(key: str) -> None:
    _, info = MODELS[key].from_pretrained(weights(key), output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]


def test_weights_are_small_finite_half_floats(key: str) -> None:
    path = weights(key) / "model.safetensors"
    assert path.stat().st_size <= 4 * MEGABYTE
    with safe_open(path, framework="np") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a dictionary
            tensor = tensors.get_tensor(name)
            assert tensor.dtype == np.float16 and np.isfinite(tensor).all(), name


def test_tokenizer_and_configuration_name_the_same_ids(key: str, tokenizer: Any, model: Any) -> None:
    plan, text = recipe.load()[key], model.config.text_config
    assert type(tokenizer).__name__ == {"tiny_clip": "CLIPTokenizerFast", "tiny_siglip": "SiglipTokenizer"}[key]
    assert tokenizer.model_max_length == plan.length == text.max_position_embeddings
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == text.eos_token_id == text.pad_token_id
    assert len(tokenizer) == text.vocab_size
    # The text or image tower loaded by itself reads the width of its projection here.
    if key == "tiny_clip":
        assert text.projection_dim == model.config.vision_config.projection_dim == model.config.projection_dim
    if key == "tiny_clip":
        # 2 would select the library's older pooling, at the highest id.
        assert tokenizer.eos_token == "<|endoftext|>" and text.eos_token_id == len(tokenizer) - 1 != 2
        assert tokenizer.bos_token_id == text.bos_token_id == len(tokenizer) - 2
    else:
        assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.unk_token_id) == ("</s>", 1, 2)
        assert tokenizer.sp_model.pad_id() == 0 and tokenizer.sp_model.bos_id() == -1


def test_texts_are_padded_and_cut_to_the_trained_length(key: str, tokenizer: Any) -> None:
    length = recipe.load()[key].length
    short, long = vocab.encode(tokenizer, ["a red dog", "a red dog and " * 20])
    assert short.shape == long.shape == (length,)
    end = tokenizer.eos_token_id
    assert (short == end).sum() > 1 and (np.flatnonzero(short == end) >= 3).all()
    assert long[-1] == end and (long == end).sum() == 1


def test_case_never_matters_and_punctuation_matters_to_clip_alone(key: str, tokenizer: Any) -> None:
    plain, shouted, stopped = vocab.encode(tokenizer, ["two red dogs", "TWO Red dogs", "two red dogs."])
    assert (plain == shouted).all()
    assert (plain == stopped).all() == (key == "tiny_siglip")


def test_words_of_the_captions_are_single_tokens(tokenizer: Any) -> None:
    for word in ("dog", "bicycles", "purple", "three", "photo", "image", "scene"):
        assert len(tokenizer(word, add_special_tokens=False)["input_ids"]) <= 2, word


@pytest.mark.parametrize("text", ["Zebra, naïve façade", "東京 42!", "\N{DOG FACE}\x07", "~^|"])
def test_clip_never_reads_an_end_of_text_into_a_text(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights("tiny_clip"))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids and tokenizer.eos_token_id not in ids


def test_canonical_text_has_the_ids_of_the_text_itself() -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights("tiny_siglip"))
    texts = ["In this image, Two  red dogs.", "it's a BUS!", ""]
    assert (vocab.encode(tokenizer, texts) == vocab.encode(tokenizer, [vocab.canonical(t) for t in texts])).all()


def test_clip_pools_at_the_first_end_of_text() -> None:
    model = CLIPModel.from_pretrained(weights("tiny_clip")).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(weights("tiny_clip"))
    padded = vocab.encode(tokenizer, ["a red dog."])
    bare = padded[:, : int((padded[0] == tokenizer.eos_token_id).argmax()) + 1]
    with torch.inference_mode():
        assert torch.allclose(towers.embed_texts(model, padded), towers.embed_texts(model, bare), atol=1e-5)


def test_image_processor_does_what_the_training_did(key: str) -> None:
    processor = AutoImageProcessor.from_pretrained(weights(key), use_fast=False)
    pixels, _ = train.published()
    from PIL import Image

    made = processor([Image.fromarray(image) for image in pixels[:3]], return_tensors="pt")["pixel_values"]
    assert torch.allclose(made, towers.prepare(pixels[:3]), atol=1e-6)


def test_models_tell_true_captions_from_false_ones(key: str, model: Any, tokenizer: Any) -> None:
    pixels, captions = train.published()
    found = evaluate.profile(model, lambda texts: vocab.encode(tokenizer, texts), pixels[:50], captions[:50], seed=1)
    assert found["PR all"] > 0.85 and found["E_sens all"] > 0.1, found
    assert found["PR colour"] > 0.9 and found["PR count"] > 0.7 and found["PR object"] > 0.7, found
    assert found["E_inv"] < found["E_sens all"] / 2, found


def test_flips_follow_the_rule_of_the_benchmark() -> None:
    import random

    rng = random.Random(0)
    assert evaluate.flip("Two dogs on a road", "count", rng) is None
    assert evaluate.flip("two dogs on a road", "object", rng) is None
    false = evaluate.flip("a red dog near a blue cat", "colour", rng)
    assert false is not None and false.endswith(" dog near a blue cat") and not false.startswith("a red ")


@pytest.fixture
def toy_corpus() -> corpus.Corpus:
    """Sixteen scenes of noise for each of four kinds: enough for every kind of batch of 16."""
    rng = np.random.default_rng(0)
    count = 64
    return corpus.Corpus(
        rng.integers(0, 256, (count, demo.SIZE, demo.SIZE, 3), dtype=np.uint8),
        [["a red dog"] * 5] * count,
        np.array(["dog", "cat"])[np.arange(count) % 2],
        np.array(["red", "blue"])[np.arange(count) // 2 % 2],
    )


def toy_trainer(key: str, scenes: corpus.Corpus, checkpoint: Path) -> train.Trainer:
    small: dict[str, Any] = {"batch": 16, "steps": 6, "warmup": 2, "checkpoint_every": 3, "evaluate_every": 1000}
    small["tower"] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    small["vision"] = {"num_hidden_layers": 1, "image_size": demo.SIZE, "patch_size": 8}
    small["text"] = {"num_hidden_layers": 1}
    plan = dataclasses.replace(recipe.load()[key], **small)
    rng = np.random.default_rng(1)
    end = 1 if plan.kind == "siglip" else 49
    ids = rng.integers(3, 40, (64, 5, plan.length)).astype(np.int16)
    ids[..., 9:] = end
    model = towers.build(plan, 50, 48, end)
    towers.see_patches(model, scenes.pixels, plan.patch_scale, np.random.default_rng(plan.seed))
    return train.Trainer(plan, scenes, ids, model.train(), checkpoint)


def test_batches_of_similar_scenes_share_what_they_should(toy_corpus: corpus.Corpus) -> None:
    batches = corpus.Batches(toy_corpus, 16, 1.0, seed=3)
    for step in range(20):
        chosen = batches.indices(batches.rng(step))
        assert len(chosen) == len(set(chosen.tolist())) == 16
        assert (chosen == batches.indices(batches.rng(step))).all()
    assert len({tuple(batches.indices(batches.rng(step))) for step in range(20)}) == 20


def test_a_training_taken_up_again_ends_with_the_same_weights(
    key: str, toy_corpus: corpus.Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "toy.checkpoint"
    whole = toy_trainer(key, toy_corpus, checkpoint)
    while whole.step < 3:
        whole.advance()
    whole.save()
    while whole.step < 6:
        whole.advance()
    again = toy_trainer(key, toy_corpus, checkpoint)
    again.resume()
    assert again.step == 3
    again.run(lambda: "watched")
    assert "watched" in capsys.readouterr().out
    for (name, one), (_, other) in zip(whole.model.state_dict().items(), again.model.state_dict().items(), strict=True):
        assert torch.equal(one, other), name


def test_sigmoid_loss_begins_where_its_bias_is_best(toy_corpus: corpus.Corpus, tmp_path: Path) -> None:
    trainer = toy_trainer("tiny_siglip", toy_corpus, tmp_path / "unused")
    similarity = 5 * torch.eye(16) - 3
    trainer.step = 0
    assert torch.equal(trainer.loss(similarity), towers.softmax_loss(similarity))
    trainer.step = int(0.6 * 6)
    loss = trainer.loss(similarity).item()
    assert trainer.model.logit_bias.item() != -10
    assert all(loss <= towers.sigmoid_loss(similarity, bias / 4).item() + 1e-6 for bias in range(-40, 1))


def test_learning_rate_rises_then_falls() -> None:
    plan = recipe.load()["tiny_clip"]
    rates = [train.rate(step, plan) for step in range(plan.steps)]
    peak = int(np.argmax(rates))
    assert plan.warmup - 1 <= peak <= plan.warmup
    assert rates[0] < plan.learning_rate / 50 and rates[-1] < plan.learning_rate * 1.01 * plan.final_rate


def test_model_cards_weights_name_no_folder_of_the_machine_that_made_them(key: str) -> None:
    for path in weights(key).iterdir():
        assert b"/tmp/" not in path.read_bytes() and b"/home/" not in path.read_bytes(), path.name
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
