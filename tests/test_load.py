"""Checkpoints in every form that people have them: what fits is loaded, whole; what does not is refused by name."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import warnings

import pytest

torch = pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from checkpoints import (  # noqa: E402
    clip_folder,
    open_clip_siglip_spec,
    random_spec,
    siglip_tokenizer,
)
from safetensors.torch import load_file, save_file  # noqa: E402

from exporter.inputs import original_images, original_text  # noqa: E402
from exporter.load import embed_ids, embed_images, load_original, weights_sha256  # noqa: E402
from lgip_ort.encode import encode_images, encode_texts  # noqa: E402
from lgip_ort.errors import UsageFault  # noqa: E402
from models import zoo  # noqa: E402


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


def _state(spec):
    return dict(load_original(spec, "random").model.state_dict())


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float64"])
def test_open_clip_files_of_other_precisions(precision, tmp_path, open_clip_toy):
    state = {name: tensor.to(getattr(torch, precision)) for name, tensor in _state(open_clip_toy).items()}
    save_file(state, tmp_path / "x.safetensors")
    model = load_original(open_clip_toy, str(tmp_path / "x.safetensors")).model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name].float()), name


def test_a_training_checkpoint_of_open_clip(tmp_path, open_clip_toy):
    original = load_original(open_clip_toy, "random")
    optimizer = torch.optim.AdamW(original.model.parameters())
    state = {f"module.{name}": tensor for name, tensor in original.model.state_dict().items()}
    whole = {"epoch": 3, "name": "run", "state_dict": state, "optimizer": optimizer.state_dict()}
    torch.save(whole, tmp_path / "epoch_3.pt")
    assert load_original(open_clip_toy, str(tmp_path / "epoch_3.pt")).weights.sha256 == original.weights.sha256


def test_openai_s_tensors_bring_three_numbers_along(tmp_path, open_clip_toy):
    state = _state(open_clip_toy)
    sizes = {
        "input_resolution": torch.tensor(32),
        "context_length": torch.tensor(77),
        "vocab_size": torch.tensor(49408),
    }
    torch.save({**state, **sizes}, tmp_path / "x.pt")
    assert load_original(open_clip_toy, str(tmp_path / "x.pt")).weights.sha256 == weights_sha256(state)


@pytest.mark.parametrize("name", ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
def test_a_folder_of_open_clip(name, tmp_path, open_clip_toy):
    state = _state(open_clip_toy)
    save_file(state, tmp_path / name) if name.endswith("safetensors") else torch.save(state, tmp_path / name)
    weights = load_original(open_clip_toy, str(tmp_path)).weights
    assert (weights.source, weights.name) == ("path", str(tmp_path / name))


def test_the_preprocessing_beside_a_checkpoint_is_taken(tmp_path, open_clip_toy):
    save_file(_state(open_clip_toy), tmp_path / "open_clip_model.safetensors")
    pixels = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bilinear", "resize_mode": "squash"}
    config = {"model_cfg": {"embed_dim": 32}, "preprocess_cfg": pixels}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    found = load_original(open_clip_toy, str(tmp_path)).preprocess
    assert {name: found[name] for name in pixels} == pixels and found["size"] == (32, 32)


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        (
            {"text_cfg": {"heads": 4}},
            r"open_clip_config\.json: text_cfg\.heads 4 found, 2 expected of the architecture",
        ),
        ({"vision_cfg": {"head_width": 32}}, r"vision_cfg\.head_width 32 found, 16 expected"),
        ({"quick_gelu": True}, "computes GELU, the weights were trained with QuickGELU"),
    ],
)
def test_the_architecture_beside_a_checkpoint_is_heard(beside, message, tmp_path, open_clip_toy):
    """No tensor has another shape in these."""
    save_file(_state(open_clip_toy), tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": beside}))
    with pytest.raises(UsageFault, match=message):
        load_original(open_clip_toy, str(tmp_path))


def _torchscript(path):
    class Times(torch.nn.Module):
        def forward(self, x):
            return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, its files are about
        torch.jit.save(torch.jit.trace(Times(), torch.zeros(1)), path)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda state, path: path.write_bytes(b""), r"can't be read as plain tensors \(EOFError\)"),
        (lambda state, path: path.write_bytes(b"<html>"), "can't be read as plain tensors"),
        (lambda state, path: torch.save({}, path), "no tensors by name are in it"),
        (lambda state, path: torch.save([torch.zeros(1)], path), "no tensors by name are in it"),
        (lambda state, path: torch.save({**state, "args": 3}, path), "tensors by name expected, 'args' is a int"),
        (lambda state, path: torch.save({"model": state}, path), "tensors by name expected, 'model' is a dict"),
        (
            lambda state, path: torch.save({f"_orig_mod.{k}": v for k, v in state.items()}, path),
            r"62 missing tensors: ln_final\.bias, .*; 62 unexpected tensors: _orig_mod\.ln_final\.bias, ",
        ),
        (
            lambda state, path: torch.save({k: v.to(torch.int8) if v.ndim == 2 else v for k, v in state.items()}, path),
            r"tensor \S+ holds torch\.int8, torch\.float32 expected",
        ),
        (lambda state, path: _torchscript(path), r"a TorchScript program, .*torch\.jit\.load\('x\.pt'"),
    ],
)
def test_open_clip_files_that_hold_something_else(write, message, tmp_path, open_clip_toy):
    write(_state(open_clip_toy), tmp_path / "x.pt")
    with pytest.raises(UsageFault, match=rf"x\.pt: {message}"):
        load_original(open_clip_toy, str(tmp_path / "x.pt"))


def test_a_damaged_safetensors_file_is_named(tmp_path, open_clip_toy, clip):
    save_file(_state(open_clip_toy), tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").write_bytes((tmp_path / "x.safetensors").read_bytes()[:1000])
    with pytest.raises(UsageFault, match=r"x\.safetensors: can't be read as plain tensors"):
        load_original(open_clip_toy, str(tmp_path / "x.safetensors"))
    folder = shutil.copytree(clip, tmp_path / "clip")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(UsageFault, match=str(folder)):
        load_original(zoo.get("tiny_clip"), str(folder))


def _resaved(folder, target, **options):
    """`folder` with its weights in another form."""
    from transformers import CLIPModel

    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("model.safetensors"))
    CLIPModel.from_pretrained(folder).save_pretrained(target, **options)
    return target


@pytest.mark.parametrize("options", [{"max_shard_size": "20KB"}, {"safe_serialization": False}])
def test_other_forms_of_a_transformers_folder(options, tmp_path, clip):
    folder = _resaved(clip, tmp_path / "other", **options)
    assert not (folder / "model.safetensors").exists()
    spec = zoo.get("tiny_clip")
    assert load_original(spec, str(folder)).weights.sha256 == load_original(spec, str(clip)).weights.sha256


def test_a_shard_that_is_missing_is_named(tmp_path, clip):
    folder = _resaved(clip, tmp_path / "sharded", max_shard_size="20KB")
    sorted(folder.glob("model-*.safetensors"))[1].unlink()
    with pytest.raises(UsageFault, match=r"model-00002-of-000\d\d\.safetensors"):
        load_original(zoo.get("tiny_clip"), str(folder))


def test_position_ids_of_older_versions_are_no_weights(tmp_path, clip):
    folder = shutil.copytree(clip, tmp_path / "old")
    state = load_file(folder / "model.safetensors")
    state["text_model.embeddings.position_ids"] = torch.arange(32)[None]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_original(zoo.get("tiny_clip"), str(folder)).weights == dataclasses.replace(
        load_original(zoo.get("tiny_clip"), str(clip)).weights, name=str(folder)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"config\.json: .*not a valid JSON file"),
        ('{"model_type": "clipp"}', r"config\.json: .*model type `clipp`"),
        ('{"model_type": "bert"}', "model_type 'bert' found, 'clip' or 'siglip' expected"),
        ('{"model_type": "siglip2"}', "model_type 'siglip2' found"),
    ],
)
def test_configurations_of_something_else(content, message, tmp_path, clip):
    folder = shutil.copytree(clip, tmp_path / "other")
    (folder / "config.json").write_text(content)
    with pytest.raises(UsageFault, match=message):
        load_original(zoo.get("tiny_clip"), str(folder))


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("text_config", "num_attention_heads", 4), ("vision_config", "num_hidden_layers", 1)],
)
def test_weights_of_another_model_of_the_zoo_are_refused(part, name, value, tmp_path):
    """Pixels and tokens agree, as those of siglip_base_384 and siglip_large do; the heads no tensor shows."""
    from transformers import SiglipConfig, SiglipModel

    spec = random_spec()
    config = {key: dict(field) if isinstance(field, dict) else field for key, field in spec.config.items()}
    config[part][name] = value
    config.pop("model_type")
    SiglipModel(SiglipConfig(**config)).save_pretrained(tmp_path / "other")
    with pytest.raises(UsageFault, match=rf"config\.json: {part}\.{name} {value} found, 2 expected of tiny_siglip"):
        load_original(spec, str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("eos_token_id", 7, "the model pools at 7: another model's tokenizer"),
        ("vocab_size", 100, r"id \d+ found, the model has 100 token embeddings: another model's tokenizer"),
    ],
)
def test_another_model_s_tokenizer_is_refused(field, value, message, clip):
    original = load_original(zoo.get("tiny_clip"), str(clip))
    setattr(original.model.config.text_config, field, value)
    with pytest.raises(UsageFault, match=message):
        original_text(original)


def test_old_clip_configurations_pool_at_the_highest_id(clip):
    """Their end-of-text id is 2, which no tokenizer has; the library then looks for the highest id."""
    original = load_original(zoo.get("tiny_clip"), str(clip))
    original.model.config.text_config.eos_token_id = 2
    assert original_text(original).eot_id == max(original_text(original).tokenizer.get_vocab().values())


@pytest.mark.parametrize("key", ["tiny_clip", "tiny_siglip", "open_clip", "open_clip siglip"])
def test_saved_loaded_exported_and_still_the_same(key, clip, siglip, open_clip_toy, tmp_path):
    """A checkpoint as its own library saves it, from the disk to a bundle on ONNX Runtime."""
    from exporter.probes import pictures
    from exporter.publish import export_model
    from lgip_ort.bundle import open_bundle
    from lgip_ort.engine import OrtEngine

    if key == "open_clip":
        torch.save({"state_dict": _state(open_clip_toy)}, tmp_path / "toy.pt")
    else:
        (tmp_path / "siglip").mkdir()
        siglip_tokenizer(tmp_path / "siglip").save_pretrained(tmp_path / "siglip")
        state = _state(open_clip_siglip_spec(tmp_path))
        save_file(state, tmp_path / "siglip/open_clip_model.safetensors")
    spec, path = {
        "tiny_clip": (zoo.get("tiny_clip"), clip),
        "tiny_siglip": (zoo.get("tiny_siglip"), siglip),
        "open_clip": (open_clip_toy, tmp_path / "toy.pt"),
        "open_clip siglip": (open_clip_siglip_spec(tmp_path), tmp_path / "siglip"),
    }[key]
    folder, _ = export_model(spec, str(path), ["fp32"], tmp_path / "out")
    original = load_original(spec, str(path))
    engine = OrtEngine(open_bundle(folder), "cpu", 4)
    texts = ["a cat", "two red dogs, on a boat."]
    ids = torch.from_numpy(original_text(original).encode(texts))
    pixels = torch.from_numpy(original_images(original).pixels(pictures()[:2]))
    pairs = (
        (encode_texts(engine, texts), embed_ids(original, ids)),
        (
            encode_images(engine, pictures()[:2]),
            embed_images(original, pixels),
        ),
    )
    for found, expected in pairs:
        torch.testing.assert_close(torch.from_numpy(found), expected, atol=2e-6, rtol=0)
