"""The original tokenizer as one `tokenizer.json`, proven id for id before anything is published."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer, normalizers

from exporter.canonical import open_clip_cleaning
from exporter.golden import ALIKE, GOLDEN
from exporter.inputs import OriginalText
from lgip_ort.bundle import TextSpec
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.text import TextEncoder

CHUNK = 1_000
"""Texts compared at a time."""

Clean = list[Literal["ftfy", "html"]]


def write_tokenizer(text: OriginalText, context_length: int, any_length: bool, path: Path) -> TextSpec:
    """Write the tokenizer of an original to `path` and say how it is used.

    Raises UsageFault for a tokenizer that has no form in `tokenizers`, or that pads or cuts at the beginning.
    """
    tokenizer, clean = _convert(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(path))
    return TextSpec(
        context_length=context_length,
        pad_id=text.pad_id,
        eot_id=text.eot_id,
        lengths="any" if any_length else "trained",
        source="stand-in" if text.stand_in else "original",
        clean=clean,
        ignores=[what for what, pairs in ALIKE.items() if _same(text, pairs)],
        reference=text.reference,
    )


def prove_tokens(text: OriginalText, encoder: TextEncoder, captions: Sequence[str]) -> dict[str, int]:
    """Compare the runtime's ids, padding included, with the original's on the golden texts and on `captions`.

    Returns how many were compared. Raises RunFault at the first difference, with the text and both lists of ids, and
    for a text that does not end with the end-of-text token, cut ones included.
    """
    texts = [*GOLDEN, *dict.fromkeys(captions)]
    pad_id, eot_id = encoder.spec.pad_id, encoder.spec.eot_id
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        ids, expected = encoder.ids(chunk), text.encode(chunk)
        found = encoder.pad(ids, encoder.spec.context_length)
        if found.shape != expected.shape:
            raise RunFault(f"tokenizer: ids {found.shape} found, {expected.shape} expected ({text.reference})")
        if (other := (found != expected).any(axis=1)).any():
            row = int(other.argmax())
            raise RunFault(
                f"tokenizer: {chunk[row]!r}\n  found    {_shown(found[row], pad_id)}\n"
                f"  expected {_shown(expected[row], pad_id)} ({text.reference})"
            )
        for one, sequence in zip(chunk, ids, strict=True):
            if sequence[-1:] != [eot_id]:
                raise RunFault(f"tokenizer: {one!r}: no end-of-text token {eot_id} at the end of {sequence}")
    return {"golden": len(GOLDEN), "captions": len(texts) - len(GOLDEN), "differences": 0}


def _convert(text: OriginalText) -> tuple[Tokenizer, Clean]:
    """The tokenizer in `tokenizers`' form, and what comes before it."""
    original: Any = text.tokenizer
    name = type(original).__name__
    if name == "SimpleTokenizer":
        from exporter.clip_bpe import simple_tokenizer

        return simple_tokenizer(original), ["ftfy", "html"]
    if name == "HFTokenizer":
        return _cleaned(original, _of_transformers(original.tokenizer, text.reference)[0]), ["ftfy", "html"]
    return _of_transformers(original, text.reference)


def _of_transformers(original: Any, reference: str) -> tuple[Tokenizer, Clean]:
    sides = original.padding_side, original.truncation_side
    if sides != ("right", "right"):
        raise UsageFault(f"{reference}: pads on the {sides[0]} and cuts on the {sides[1]}, right expected")
    if original.is_fast:
        return Tokenizer.from_str(original.backend_tokenizer.to_str()), []
    name = type(original).__name__
    if name == "SiglipTokenizer":
        from exporter.sentencepieces import siglip_pieces

        return siglip_pieces(original), []
    if name == "CLIPTokenizer":
        from exporter.clip_bpe import slow_clip_tokenizer

        return slow_clip_tokenizer(original), ["ftfy"]
    import transformers

    fast = getattr(transformers, f"{name}Fast", None)
    if fast is None:
        raise UsageFault(f"{reference}: no way to write it as a tokenizer.json is known")
    with tempfile.TemporaryDirectory() as folder:
        original.save_pretrained(folder)
        return Tokenizer.from_str(fast.from_pretrained(folder, from_slow=True).backend_tokenizer.to_str()), []


def _cleaned(original: Any, inner: Tokenizer) -> Tokenizer:
    """open_clip's HFTokenizer: its cleaning in front of the normaliser of transformers' tokenizer `inner`.

    Raises UsageFault for what no tokenizer.json can say.
    """
    if original.strip_sep_token or original.tokenizer_mode:
        raise UsageFault(
            f"HFTokenizer with strip_sep_token {original.strip_sep_token}, mode {original.tokenizer_mode!r} found: it "
            "writes other ids over the end of the text; neither expected"
        )
    data = json.loads(inner.to_str())
    if original.clean_fn.__name__ == "_clean_canonicalize":
        data["added_tokens"] = []  # without punctuation no text holds one, and they are looked for before the cleaning
    tokenizer = Tokenizer.from_str(json.dumps(data))
    own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([*open_clip_cleaning(original.clean_fn), *own])
    return tokenizer


def _same(text: OriginalText, pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether both texts of every pair have the same ids."""
    first, second = (text.encode(side) for side in zip(*pairs, strict=True))
    return bool((first == second).all())


def _shown(ids: np.ndarray, pad_id: int) -> list[int]:
    """Ids without the padding at their end, one padding id kept: it may be the end-of-text token."""
    kept = np.flatnonzero(ids != pad_id)
    return [int(i) for i in ids[: (kept[-1] + 2 if len(kept) else 1)]]
