"""A tokenizer for random weights whose own is out of reach: real words, the right special ids and canonicalisation."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from exporter.clip_bpe import WORDS
from exporter.load import Original
from exporter.sentencepieces import canonical
from lgip_ort.errors import UsageFault

ENTRIES = 32_000
"""Size of the vocabulary: SigLIP's, and less than SigLIP2's."""


def stand_in_tokenizer(original: Original) -> Any:
    """A PreTrainedTokenizerFast for a SigLIP architecture, made of open_clip's merges.

    Special ids and context length are the model's own. Raises UsageFault for another architecture.
    """
    from transformers import PreTrainedTokenizerFast

    config: Any = original.model.config
    if config.model_type != "siglip" or config.text_config.vocab_size < ENTRIES:
        raise UsageFault(f"{original.spec.key}: no stand-in tokenizer for random weights of {config.model_type!r}")
    # SigLIP pads with its end-of-text token, 1; SigLIP2 has Gemma's tokenizer, with a padding token of its own, 0.
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] if config.text_config.pad_token_id == 0 else ["<unk>", "</s>"]
    pad, end = special[config.text_config.pad_token_id], special[1]
    return PreTrainedTokenizerFast(
        tokenizer_object=_build(special, end),
        pad_token=pad,
        eos_token=end,
        unk_token="<unk>",
        model_max_length=original.spec.context_length,
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
