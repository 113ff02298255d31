"""The original tokenizer as one `tokenizer.json`, proven id for id before anything is published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from exporter.golden import GOLDEN
from exporter.inputs import OriginalText
from lgip_ort.bundle import TextSpec
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.text import TextEncoder

CHUNK = 1_000
"""Texts compared at a time."""


def write_tokenizer(text: OriginalText, context_length: int, any_length: bool, path: Path) -> TextSpec:
    """Write the tokenizer of an original to `path` and say how it is used.

    Raises UsageFault for a tokenizer that has no form in `tokenizers`.
    """
    tokenizer = _convert(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(path))
    lengths: Literal["any", "trained"] = "any" if any_length else "trained"
    source: Literal["original", "stand-in"] = "stand-in" if text.stand_in else "original"
    original: Any = text.tokenizer
    if text.reference.startswith("open_clip"):
        return TextSpec(
            context_length=context_length,
            pad_id=0,  # open_clip fills up a tensor of zeros
            eot_id=original.eot_token_id,
            lengths=lengths,
            source=source,
            clean=["ftfy", "html"],
            reference=text.reference,
        )
    return TextSpec(
        context_length=context_length,
        pad_id=original.pad_token_id,
        eot_id=original.eos_token_id,
        lengths=lengths,
        source=source,
        reference=text.reference,
    )


def prove_tokens(text: OriginalText, encoder: TextEncoder, captions: Sequence[str]) -> dict[str, int]:
    """Compare the runtime's ids, padding included, with the original's on the golden texts and on `captions`.

    Returns how many were compared. Raises RunFault at the first difference, with the text and both lists of ids.
    """
    texts = [*GOLDEN, *dict.fromkeys(captions)]
    length = encoder.spec.context_length
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        expected = text.encode(chunk)
        found = encoder.pad(encoder.ids(chunk), length)
        for one, a, b in zip(chunk, found, expected, strict=True):
            if a.shape != b.shape or (a != b).any():
                raise RunFault(
                    f"tokenizer: {one!r}\n  found    {_shown(a, encoder.spec.pad_id)}\n"
                    f"  expected {_shown(b, encoder.spec.pad_id)} ({text.reference})"
                )
            if encoder.spec.eot_id not in a:
                raise RunFault(f"tokenizer: {one!r}: no end-of-text token {encoder.spec.eot_id} in {_shown(a, -1)}")
    return {"golden": len(GOLDEN), "captions": len(texts) - len(GOLDEN), "differences": 0}


def _convert(text: OriginalText) -> Tokenizer:
    original: Any = text.tokenizer
    if text.reference.startswith("open_clip"):
        from exporter.clip_bpe import clip_bpe

        return clip_bpe(original)
    if getattr(original, "is_fast", False):
        return Tokenizer.from_str(original.backend_tokenizer.to_str())
    if type(original).__name__ == "SiglipTokenizer":
        from exporter.sentencepieces import siglip_pieces

        return siglip_pieces(original)
    raise UsageFault(f"{text.reference}: no way to write it as a tokenizer.json is known")


def _shown(ids: np.ndarray, pad_id: int) -> list[int]:
    """Ids without the padding at their end, one padding id kept: it may be the end-of-text token."""
    kept = np.flatnonzero(ids != pad_id)
    return [int(i) for i in ids[: (kept[-1] + 2 if len(kept) else 1)]]
