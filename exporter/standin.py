"""A tokenizer for random weights whose own is out of reach: real words, the right special ids and canonicalisation."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from exporter.clip_bpe import WORDS
from exporter.sentencepieces import canonical
from lgip_ort.errors import UsageFault
from models.zoo import ModelSpec

ENTRIES = 32_000
"""Size of the vocabulary: SigLIP's, and less than SigLIP2's."""


def stand_in_tokenizer(spec: ModelSpec, vocabulary: int, pad_id: int) -> Any:
    """A PreTrainedTokenizerFast for a SigLIP architecture, made of open_clip's merges.

    `vocabulary`: how many token embeddings the model has. `pad_id`: 1, the end-of-text token, as SigLIP pads, or 0, a
    token of its own, as SigLIP2 does. Raises UsageFault for another architecture.
    """
    from transformers import PreTrainedTokenizerFast

    if vocabulary < ENTRIES or pad_id not in (0, 1):
        raise UsageFault(
            f"{spec.key}: no stand-in tokenizer for random weights with {vocabulary:,} tokens, padded with {pad_id}"
        )
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] if pad_id == 0 else ["<unk>", "</s>"]
    pad, end = special[pad_id], special[1]
    return PreTrainedTokenizerFast(
        tokenizer_object=_build(special, end),
        pad_token=pad,
        eos_token=end,
        unk_token="<unk>",
        model_max_length=spec.context_length,
        padding_side="right",
    )


def _build(special: list[str], end: str) -> Tokenizer:
    from open_clip.tokenizer import SimpleTokenizer

    source = SimpleTokenizer()
    ranked = sorted(source.bpe_ranks, key=source.bpe_ranks.get)
    alphabet = [token for token, i in source.encoder.items() if i < 2 * 256]
    merges = ranked[: ENTRIES - len(special) - len(alphabet)]
    tokens = [*special, *alphabet, *("".join(merge) for merge in merges)]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([*canonical(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, vocab[end])])
    return tokenizer
