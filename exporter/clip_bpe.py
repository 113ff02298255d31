"""open_clip's SimpleTokenizer as a `tokenizers` pipeline."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from lgip_ort.errors import UsageFault

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""What one word is: the tokenizer's own pattern, without the special tokens, which are matched before it."""

SPACES = r"[\s\x1c-\x1f]+"
"""What Python's str.split() takes for white space: four separators more than the regular expression has."""

CASED = r"[\p{Lu}\p{Ll}\p{Lt}]"
FINAL_SIGMA = rf"(?<={CASED})Σ(?!{CASED})"
"""str.lower() turns a capital sigma at the end of a word into its final form; the lower-casing here does not."""

CLEAN = {"_clean_lower": True, "_clean_whitespace": False}
"""The cleaning functions that are known, and whether they lower-case. Both begin with ftfy and html.unescape."""


def clip_bpe(original: Any) -> Tokenizer:
    """A Tokenizer with the vocabulary, merges and cleaning of `original`, an open_clip SimpleTokenizer.

    What it can't say, ftfy and html.unescape, comes before it (`TextSpec.clean`). Raises UsageFault for a cleaning
    function that is not known.
    """
    name = original.clean_fn.__name__
    if name not in CLEAN or original.reduction_fn is not None:
        raise UsageFault(f"SimpleTokenizer with cleaning {name!r} found, one of {', '.join(CLEAN)} expected")
    merges = sorted(original.bpe_ranks, key=original.bpe_ranks.get)
    tokenizer = Tokenizer(BPE(vocab=original.encoder, merges=merges, end_of_word_suffix="</w>"))
    lower = [normalizers.Replace(Regex(FINAL_SIGMA), "ς"), normalizers.Lowercase()] if CLEAN[name] else []
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex(SPACES), " "), normalizers.Strip(), *lower])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    special = {original.decoder[i]: i for i in original.all_special_ids}
    start, end = original.decoder[original.sot_token_id], original.decoder[original.eot_token_id]
    tokenizer.add_special_tokens([AddedToken(token, normalized=True, special=True) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=[(start, special[start]), (end, special[end])]
    )
    return tokenizer
