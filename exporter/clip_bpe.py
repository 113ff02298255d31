"""CLIP's byte-pair encoding, as open_clip's SimpleTokenizer and transformers' slow CLIPTokenizer have it in Python."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from exporter.canonical import lower_case, open_clip_cleaning, single_spaces
from lgip_ort.errors import UsageFault

WORDS = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""What one word is: the tokenizers' own pattern, without the special tokens, which are matched before it."""


def simple_tokenizer(original: Any) -> Tokenizer:
    """A Tokenizer with the vocabulary, merges and cleaning of `original`, an open_clip SimpleTokenizer.

    What it can't say, ftfy and html.unescape, comes before it (`TextSpec.clean`). Raises UsageFault for a cleaning
    function that is not known, and for one that drops words at random.
    """
    if original.reduction_fn is not None:
        raise UsageFault("SimpleTokenizer with a reduction mask found, which drops words at random; none expected")
    start, end = (original.decoder[i] for i in (original.sot_token_id, original.eot_token_id))
    # A text without punctuation holds no special token: what is left of its name must stay a word.
    names = [original.decoder[i] for i in original.all_special_ids]
    special = [] if original.clean_fn.__name__ == "_clean_canonicalize" else names
    return _build(original.encoder, original.bpe_ranks, open_clip_cleaning(original.clean_fn), start, end, special)


def slow_clip_tokenizer(original: Any) -> Tokenizer:
    """A Tokenizer with the vocabulary, merges and cleaning of `original`, transformers' CLIPTokenizer.

    What it can't say, ftfy, comes before it (`TextSpec.clean`). Raises UsageFault where the library found no ftfy:
    what it does instead is another tokenizer.
    """
    if original.fix_text is None:
        raise UsageFault("CLIPTokenizer without ftfy found; pip install ftfy, or use CLIPTokenizerFast")
    start, end = original.bos_token, original.eos_token
    cleaning = [*single_spaces(), *lower_case()]
    return _build(original.encoder, original.bpe_ranks, cleaning, start, end, [start, end])


def _build(
    vocab: dict[str, int], ranks: dict[Any, int], cleaning: list[Any], start: str, end: str, special: list[str]
) -> Tokenizer:
    merges = sorted(ranks, key=lambda merge: ranks[merge])
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(cleaning)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=True, special=True) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=[(start, vocab[start]), (end, vocab[end])]
    )
    return tokenizer
