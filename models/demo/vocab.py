"""The two tokenizers, trained on captions: byte-level BPE as CLIP has it, sentencepiece as SigLIP has it.

Both are written as the folders that transformers reads, and are always loaded back through transformers, so that the
models are trained on exactly what its tokenizers make of a text.
"""

from __future__ import annotations

import io
import json
import string
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

START, END = "<|startoftext|>", "<|endoftext|>"
ALWAYS_KNOWN = string.ascii_lowercase + string.digits
"""Characters that are pieces of the sentencepiece model, whether or not the captions use them."""


def clip_tokenizer(entries: list[str], merges: list[list[str]], length: int, folder: Path) -> Any:
    """A CLIP tokenizer of these entries, numbered in order, and merges; writes both files to `folder`."""
    from transformers import CLIPTokenizerFast

    numbered = {token: number for number, token in enumerate(entries)}
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    vocabulary, merging = folder / "vocab.json", folder / "merges.txt"
    vocabulary.write_text(json.dumps(numbered, ensure_ascii=False), "utf-8")
    merging.write_text("\n".join(lines) + "\n", "utf-8")
    return CLIPTokenizerFast(str(vocabulary), str(merging), model_max_length=length, pad_token=END)


def train_clip_bpe(captions: Iterable[str], merges: int, length: int, folder: Path) -> None:
    """Write a CLIP tokenizer of at most `merges` merges and a context of `length` tokens to `folder`."""
    from tokenizers import pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Every byte, within a word and at its end, is an entry: no text at all may fall back to the unknown token, which
    # in CLIP is the end-of-text token, where the text tower pools.
    base = [START, END, *symbols, *(symbol + "</w>" for symbol in symbols)]
    folder.mkdir(parents=True, exist_ok=True)
    # The normaliser and the splitting rule are the library's own, taken from an empty tokenizer.
    empty = clip_tokenizer(base, [], length, folder).backend_tokenizer
    empty.model = BPE(end_of_word_suffix="</w>")
    trainer = BpeTrainer(
        vocab_size=len(base) + merges,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=symbols,
        end_of_word_suffix="</w>",
    )
    empty.train_from_iterator(captions, trainer)
    learned = json.loads(empty.to_str())["model"]["merges"][:merges]
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in learned]
    # CLIP's order: bytes, bytes at a word's end, merges, then the two special tokens with the highest ids.
    entries = [*base[2:], *("".join(pair) for pair in pairs), START, END]
    clip_tokenizer(entries, pairs, length, folder).save_pretrained(str(folder))


def pieces_of_words(texts: Iterable[str]) -> Counter[str]:
    """Every part of at least two characters of every word, weighted by use and length.

    sentencepiece proposes only what two different words share; of so few words it would find nearly no whole one.
    """
    words = Counter(word for text in texts for word in text.split())
    pieces: Counter[str] = Counter()
    for word, times in words.items():
        marked = f"\N{LOWER ONE EIGHTH BLOCK}{word}"
        for start in range(len(marked)):
            for stop in range(start + 2, len(marked) + 1):
                pieces[marked[start:stop]] += times * (stop - start)
    return pieces


def train_sentencepiece(captions: Iterable[str], entries: int, length: int, folder: Path) -> None:
    """Write a SigLIP tokenizer of at most `entries` pieces and a padded length of `length` tokens to `folder`."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    from transformers import SiglipTokenizer

    texts = [canonical(caption) for caption in captions]
    folder.mkdir(parents=True, exist_ok=True)
    written = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as seeds:
        seeds.writelines(f"{piece}\t{weight}\n" for piece, weight in pieces_of_words(texts).most_common())
        seeds.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=written,
            seed_sentencepieces_file=seeds.name,
            model_type="unigram",
            vocab_size=entries,
            hard_vocab_limit=False,
            character_coverage=1.0,
            required_chars=ALWAYS_KNOWN,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            # One thread: sums over several would depend on their order.
            num_threads=1,
            minloglevel=2,
        )
    model = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    # The name of a temporary file would make every training's model a different file.
    model.trainer_spec.ClearField("seed_sentencepieces_file")
    (folder / "spiece.model").write_bytes(model.SerializeToString(deterministic=True))
    SiglipTokenizer(str(folder / "spiece.model"), model_max_length=length).save_pretrained(str(folder))


def canonical(text: str) -> str:
    """SigLIP's rule for text: no punctuation, single spaces, lower case."""
    bare = text.translate(str.maketrans("", "", string.punctuation))
    return " ".join(bare.split()).lower()


def load(kind: str, folder: Path) -> Any:
    """The transformers tokenizer in `folder`; `kind` is clip or siglip."""
    from transformers import CLIPTokenizerFast, SiglipTokenizer

    return (CLIPTokenizerFast if kind == "clip" else SiglipTokenizer).from_pretrained(str(folder))


def encode(tokenizer: Any, texts: list[str]) -> np.ndarray:
    """Ids of the texts, shape (texts, length), int16, each cut or padded to the tokenizer's own length."""
    unique = list(dict.fromkeys(texts))
    rows = tokenizer(unique, padding="max_length", truncation=True)["input_ids"]
    table = dict(zip(unique, np.asarray(rows, dtype=np.int16), strict=True))
    return np.stack([table[text] for text in texts])
