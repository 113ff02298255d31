"""Text to token ids, exactly as the original tokenizer does it.

Most of the original's cleaning (case, punctuation, white space) is part of the bundle's `tokenizer.json`; what is done
here is the rest of it, truncation and padding.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lgip_ort.bundle import TOKENIZER, Bundle, TextSpec

BUCKET = 8
"""Lengths of variable-length batches are rounded up to a multiple of this, so that few shapes exist."""


class TextEncoder:
    """The bundle's tokenizer and padding."""

    def __init__(self, bundle: Bundle) -> None:
        self.spec: TextSpec = bundle.manifest.text
        self._tokenizer = Tokenizer.from_file(str(bundle.path(TOKENIZER)))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.spec.context_length)  # keeps the end-of-text token

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, end-of-text token included, at most `context_length` long, not padded."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch([clean(t, self.spec.clean) for t in texts])]

    def pad(self, ids: Sequence[Sequence[int]], pad_to: int | None = None) -> NDArray[np.int64]:
        """int64 (n, length). `pad_to` None is the trained length, or for towers exact at any length the longest text.

        Raises ValueError where a text is longer than `pad_to`.
        """
        length = pad_to or self.length(ids)
        out = np.full((len(ids), length), self.spec.pad_id, np.int64)
        for row, sequence in zip(out, ids, strict=True):
            if len(sequence) > length:
                raise ValueError(f"a text of {len(sequence)} tokens does not fit the padded length {length}")
            row[: len(sequence)] = sequence
        return out

    def length(self, ids: Sequence[Sequence[int]]) -> int:
        """The padded length of a batch: the trained length, or the longest text rounded up to a bucket."""
        if self.spec.lengths == "trained":
            return self.spec.context_length
        longest = max(map(len, ids))
        return min(self.spec.context_length, -(-longest // BUCKET) * BUCKET)


def clean(text: str, steps: Sequence[str]) -> str:
    """`text` after the cleaning steps of `TextSpec.clean`."""
    if not steps or (text.isascii() and text.isprintable() and "&" not in text):
        return text  # neither step changes such a text, and nearly all captions are such
    if "ftfy" in steps:
        import ftfy

        text = ftfy.fix_text(text)
    if "html" in steps:
        text = html.unescape(html.unescape(text))
    return text
