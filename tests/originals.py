"""Tokenizers of every kind that the exporter takes, with real vocabularies where they are at hand and trained ones else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from exporter.golden import GOLDEN
from exporter.inputs import OriginalText

LENGTH = {"clip": 77, "siglip": 64}

KINDS = {
    "open_clip SimpleTokenizer": ("clip", "SimpleTokenizer", {"clean": "lower"}),
    "open_clip SimpleTokenizer, whitespace": ("clip", "SimpleTokenizer", {"clean": "whitespace"}),
    "open_clip SimpleTokenizer, canonicalize": ("clip", "SimpleTokenizer", {"clean": "canonicalize"}),
    "CLIPTokenizerFast": ("clip", "CLIPTokenizerFast", {}),
    "CLIPTokenizer": ("clip", "CLIPTokenizer", {}),
    "SiglipTokenizer": ("siglip", "SiglipTokenizer", {}),
    "SiglipTokenizer, cased": ("siglip", "SiglipTokenizer", {"do_lower_case": False}),
    "GemmaTokenizerFast": ("siglip", "GemmaTokenizerFast", {}),
    "GemmaTokenizer": ("siglip", "GemmaTokenizer", {}),
    "open_clip HFTokenizer of T5, canonicalize": ("siglip", "T5TokenizerFast", {"clean": "canonicalize"}),
    "open_clip HFTokenizer of T5, whitespace": ("siglip", "T5TokenizerFast", {"clean": "whitespace"}),
    "open_clip HFTokenizer of Gemma, canonicalize": ("siglip", "GemmaTokenizerFast", {"clean": "canonicalize"}),
}
"""Name -> which length texts have, the class of the tokenizer, and its options; `clean` is open_clip's."""

GEMMA = {
    "pad_piece": "<pad>",
    "eos_piece": "<eos>",
    "bos_piece": "<bos>",
    "byte_fallback": True,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "normalization_rule_name": "identity",
    "character_coverage": 0.99,
}

IGNORES = {
    "open_clip SimpleTokenizer": ["case", "spaces"],
    "open_clip SimpleTokenizer, whitespace": ["spaces"],
    "open_clip SimpleTokenizer, canonicalize": ["case", "punctuation", "spaces"],
    "CLIPTokenizerFast": ["case", "spaces"],
    "CLIPTokenizer": ["case", "spaces"],
    "SiglipTokenizer": ["case", "punctuation", "spaces"],
    "SiglipTokenizer, cased": ["punctuation", "spaces"],
    "GemmaTokenizerFast": [],
    "GemmaTokenizer": [],
    "open_clip HFTokenizer of T5, canonicalize": ["case", "punctuation", "spaces"],
    "open_clip HFTokenizer of T5, whitespace": ["spaces"],
    "open_clip HFTokenizer of Gemma, canonicalize": ["case", "punctuation", "spaces"],
}


class Made:
    """Makes them; `corpus`: what the sentencepiece models are trained on, `folder`: where files go."""

    def __init__(self, folder: Path, corpus: Sequence[str]) -> None:
        self.folder = folder
        # Letters of all alphabets, so that few pieces are unknown and lower-casing shows.
        letters = ["".join(map(chr, range(first, first + 16))) for first in range(0x21, 0x500, 16)]
        odd = [" ".join(text.split()) for text in (*GOLDEN, *letters)]
        lines = [*corpus, *5 * [*odd, *(text.lower() for text in odd)]]
        (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")

    def text(self, kind: str) -> OriginalText:
        """The tokenizer of `kind`, used as the exporter uses it."""
        sort, name, options = KINDS[kind]
        if name == "SimpleTokenizer":
            return self.simple(**options)
        tokenizer = self.transformers(name, **{k: v for k, v in options.items() if k != "clean"})
        return self.hf(tokenizer, **options) if "clean" in options else plain(tokenizer, LENGTH[sort])

    def simple(self, **options) -> OriginalText:
        from open_clip.tokenizer import SimpleTokenizer

        tokenizer = SimpleTokenizer(**options)
        return OriginalText(
            tokenizer,
            lambda texts: tokenizer(list(texts), context_length=77).numpy(),
            0,
            tokenizer.eot_token_id,
            "open_clip.tokenizer.SimpleTokenizer",
        )

    def hf(self, tokenizer, **options) -> OriginalText:
        from open_clip.tokenizer import HFTokenizer

        folder = self.folder / f"hf-{len(list(self.folder.iterdir()))}"
        tokenizer.save_pretrained(folder)
        wrapped = HFTokenizer(str(folder), 64, **options)
        return OriginalText(
            wrapped,
            lambda texts: wrapped(list(texts), context_length=64).numpy(),
            wrapped.tokenizer.pad_token_id,
            wrapped.tokenizer.eos_token_id,
            "open_clip.tokenizer.HFTokenizer",
        )

    def transformers(self, name: str, **options):
        import transformers

        kind = getattr(transformers, name)
        if name.startswith("CLIP"):
            return kind(*map(str, self.clip_files()))
        if name.startswith("Gemma"):
            end = {"add_bos_token": False, "add_eos_token": True, "padding_side": "right"}
            return kind(self.pieces("bpe"), **end | options)
        if name.startswith("T5"):
            tokenizer = kind(self.pieces("unigram"), extra_ids=0, legacy=False, **options)
            tokenizer.pad_token_id = tokenizer.eos_token_id = 1
            return tokenizer
        return kind(self.pieces("unigram"), **options)

    def clip_files(self) -> tuple[Path, Path]:
        """CLIP's vocabulary and merges in transformers' files, out of those that open_clip brings along."""
        from open_clip.tokenizer import SimpleTokenizer

        source = SimpleTokenizer()
        names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
        vocabulary = {names.get(token, token): i for token, i in source.encoder.items()}
        merges = sorted(source.bpe_ranks, key=source.bpe_ranks.get)
        paths = self.folder / "vocab.json", self.folder / "merges.txt"
        paths[0].write_text(json.dumps(vocabulary))
        paths[1].write_text("\n".join(["#version: 0.2", *map(" ".join, merges)]))
        return paths

    def pieces(self, kind: str) -> str:
        """A sentencepiece model with the special ids and settings of SigLIP's (unigram) or of Gemma's (bpe)."""
        import sentencepiece

        path = self.folder / f"{kind}.model"
        if not path.exists():
            settings = {
                "unigram": {"unk_id": 0, "eos_id": 1, "bos_id": -1, "pad_id": -1, "vocab_size": 4000},
                "bpe": {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "vocab_size": 4000} | GEMMA,
            }
            sentencepiece.SentencePieceTrainer.train(
                input=str(self.folder / "corpus.txt"),
                model_prefix=str(path.with_suffix("")),
                model_type=kind,
                hard_vocab_limit=False,
                num_threads=1,
                minloglevel=2,
                **settings[kind],
            )
        return str(path)


def plain(tokenizer, length: int) -> OriginalText:
    """A tokenizer of transformers as the exporter uses it."""

    def encode(texts: Sequence[str]):
        ids = tokenizer(list(texts), padding="max_length", max_length=length, truncation=True)["input_ids"]
        return np.asarray(ids, np.int64)

    name = f"transformers.{type(tokenizer).__name__}"
    return OriginalText(tokenizer, encode, tokenizer.pad_token_id, tokenizer.eos_token_id, name)
