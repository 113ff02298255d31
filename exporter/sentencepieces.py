"""transformers' SiglipTokenizer, a sentencepiece model behind a canonicalisation, as a `tokenizers` pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from exporter.canonical import SPACES, without_punctuation
from lgip_ort.errors import UsageFault

UNIGRAM = 1
"""sentencepiece's number of its unigram model."""

META = "▁"
"""The mark that sentencepiece writes for a space."""


def canonical(lower: bool = True) -> list[Any]:
    """SigLIP's canonicalisation: lower case (letter by letter, so that every sigma is σ), no punctuation, one space."""
    case = [normalizers.Lowercase()] if lower else []
    return [
        *case,
        normalizers.Replace(META, " "),
        *without_punctuation(),
        normalizers.Replace(Regex(SPACES), " "),
    ]


def siglip_pieces(original: Any) -> Tokenizer:
    """A Tokenizer with the pieces, scores, normalisation and canonicalisation of `original`, a SiglipTokenizer.

    Raises UsageFault where its model is not a unigram model.
    """
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(Path(original.vocab_file).read_bytes())
    if model.trainer_spec.model_type != UNIGRAM:
        raise UsageFault(
            f"{original.vocab_file}: model type {model.trainer_spec.model_type} found, {UNIGRAM} (unigram) expected"
        )
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    unknown = model.trainer_spec.unk_id
    tokenizer = Tokenizer(Unigram(pieces, unk_id=unknown, byte_fallback=model.trainer_spec.byte_fallback))
    charsmap = model.normalizer_spec.precompiled_charsmap
    steps = [*canonical(original.do_lower_case), *([normalizers.Precompiled(charsmap)] if charsmap else [])]
    # Normalisation makes new spaces, of an ideographic one for instance, which sentencepiece collapses after it.
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=META, prepend_scheme="always", split=True)
    end = original.eos_token
    specials = [original.unk_token, original.pad_token, end]
    tokenizer.add_special_tokens(
        [AddedToken(t, lstrip=True, rstrip=True, normalized=False, special=True) for t in dict.fromkeys(specials)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, original.eos_token_id)]
    )
    return tokenizer
