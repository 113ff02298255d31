"""Small checkpoints in the formats that people have: transformers folders, and an open_clip architecture and its files."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import warnings
from functools import cache
from pathlib import Path

from models import zoo
from models.zoo import ModelSpec

VOCABULARY = (
    "a an the red blue green yellow black white dog dogs cat cats horse car bus train person bird boat two three four five "
    "photo image picture scene of in on at by next to behind sits stands runs is are showing shows this and with"
)
WORDS = VOCABULARY.split()
CAPTIONS = [
    f"{a} {b} {c}" for a in WORDS[3:9] for b in WORDS[9:20] for c in ("on a boat", "in the scene", "next to a car.")
]

TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}

OPEN_CLIP = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}


@cache
def exported(kind: str, *precisions: str) -> tuple[Path, str]:
    """A published bundle and the weights it was made from, one for all tests.

    `kind`: tiny_clip, tiny_siglip, open_clip. `precisions`: fp16 alone where none is named.
    """
    from exporter.publish import export_model

    home = Path(_home().name) / "-".join((kind, *precisions))
    if kind == "open_clip":
        spec, weights = open_clip_spec(home), "random"
    else:
        spec = zoo.get(kind)
        weights = str({"tiny_clip": clip_folder, "tiny_siglip": siglip_folder}[kind](home / "weights"))
    folder, _ = export_model(spec, weights, precisions or ("fp16",), home / "artifacts")
    return folder, weights


@cache
def _home() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="checkpoints-")


def clip_folder(folder: Path, seed: int = 0) -> Path:
    """A transformers CLIP checkpoint of the sizes that tiny_clip has: 64 px, 32 tokens."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizerFast

    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("d", "o"), ("do", "g</w>"), ("c", "a"), ("ca", "t</w>"), ("r", "e"), ("re", "d</w>")]
    tokens = [*alphabet, *(c + "</w>" for c in alphabet), *("".join(m) for m in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    tokenizer = CLIPTokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=32)
    tokenizer.save_pretrained(folder)
    end = len(tokens) - 1
    ids = {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
    text = {**TOWER, **ids, "vocab_size": len(tokens), "max_position_embeddings": 32}
    config = CLIPConfig(
        text_config=text, vision_config={**TOWER, "image_size": 64, "patch_size": 16}, projection_dim=24
    )
    torch.manual_seed(seed)
    _spread(CLIPModel(config)).save_pretrained(folder)
    _processor("CLIP", folder, size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
    return folder


def siglip_folder(folder: Path, seed: int = 0) -> Path:
    """A transformers SigLIP checkpoint of the sizes that tiny_siglip has: 64 px, 24 tokens."""
    import torch
    from transformers import SiglipConfig, SiglipModel

    folder.mkdir(parents=True)
    tokenizer = siglip_tokenizer(folder, length=24)
    tokenizer.save_pretrained(folder)
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 24, "projection_size": 32}
    config = SiglipConfig(text_config=text, vision_config={**TOWER, "image_size": 64, "patch_size": 16})
    torch.manual_seed(seed)
    _spread(SiglipModel(config)).save_pretrained(folder)
    _processor("Siglip", folder, size={"height": 64, "width": 64}, do_convert_rgb=True)
    return folder


def siglip_tokenizer(folder: Path, length: int = 24):
    """A SiglipTokenizer over a sentencepiece model trained on a few hundred captions."""
    import sentencepiece
    from transformers import SiglipTokenizer

    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(CAPTIONS))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "spiece"),
        vocab_size=120,
        hard_vocab_limit=False,
        model_type="unigram",
        unk_id=0,
        eos_id=1,
        bos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    return SiglipTokenizer(str(folder / "spiece.model"), model_max_length=length)


def open_clip_spec(folder: Path, quick_gelu: bool = False) -> ModelSpec:
    """A small open_clip architecture, made known to the library from a file in `folder`."""
    import open_clip

    name = "toy-quickgelu" if quick_gelu else "toy"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({**OPEN_CLIP, "quick_gelu": quick_gelu}))
    open_clip.add_model_config(folder / f"{name}.json")
    return ModelSpec(key="toy_open_clip", library="open_clip", name=name, tag=None, image_size=32, context_length=77)


def open_clip_siglip_spec(folder: Path) -> ModelSpec:
    """The same with open_clip's form of SigLIP: a vision tower of timm, and a text tower that sees its padding."""
    import open_clip

    config = {
        "embed_dim": 64,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "map", "timm_proj": "none"},
        "text_cfg": {
            "context_length": 24,
            "vocab_size": 32_000,
            "hf_tokenizer_name": "nobody/toy-SigLIP",
            "tokenizer_kwargs": {"clean": "canonicalize"},
            "width": 32,
            "heads": 2,
            "layers": 2,
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "norm_kwargs": {"eps": 1e-6},
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy-siglip.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder / "toy-siglip.json")
    return ModelSpec("toy_open_clip_siglip", "open_clip", "toy-siglip", None, 160, 24)


def random_spec() -> ModelSpec:
    """tiny_siglip's sizes with an architecture that can be filled at random, vocabulary and all."""
    text = {**TOWER, "vocab_size": 32_000, "max_position_embeddings": 24, "projection_size": 32}
    vision = {**TOWER, "image_size": 64, "patch_size": 16}
    config = {"model_type": "siglip", "text_config": text, "vision_config": vision}
    return dataclasses.replace(zoo.get("tiny_siglip"), weights="hub", config=config)


def _spread(model):
    """Larger weights than the libraries start from, so that embeddings of different inputs lie apart."""
    import torch

    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("weight") and tensor.ndim > 1:
                tensor.mul_(4 if "embedding" in name else 2)
    return model.eval()


def _processor(family: str, folder: Path, **sizes) -> None:
    from exporter.inputs import pil_processor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        pil_processor(family)(**sizes).save_pretrained(folder)
