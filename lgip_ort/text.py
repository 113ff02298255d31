"""Text to token ids, exactly as the original tokenizer does it.

Most of the original's cleaning (case, punctuation, white space) is part of the bundle's `tokenizer.json`; what is done
here is the rest of it, truncation and padding.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lgip_ort.bundle import TOKENIZER, Bundle, TextSpec

Rows = list[int]
TokenIds = NDArray[np.int64]


class TextEncoder:
    """The bundle's tokenizer and padding."""

    def __init__(self, bundle: Bundle) -> None:
        self.spec: TextSpec = bundle.manifest.text
        self._tokenizer = Tokenizer.from_file(str(bundle.path(TOKENIZER)))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.spec.context_length)  # keeps the end-of-text token

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, end-of-text token included, at most `context_length` long, not padded."""
        cleaned = [clean(text, self.spec.clean) for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(cleaned)]

    def length(self, tokens: int, step: int = 1) -> int:
        """The padded length of a text of so many tokens: the trained one, or the next multiple of `step` where the
        tower is exact at any length. It depends on the text alone, never on what stands beside it."""
        if self.spec.lengths == "trained":
            return self.spec.context_length
        return min(self.spec.context_length, -(-tokens // step) * step)

    def pad(self, ids: Sequence[Sequence[int]], length: int) -> TokenIds:
        """int64 (n, length). Raises ValueError where a text is longer."""
        out = np.full((len(ids), length), self.spec.pad_id, np.int64)
        for row, sequence in zip(out, ids, strict=True):
            if len(sequence) > length:
                raise ValueError(f"a text of {len(sequence)} tokens does not fit the padded length {length}")
            row[: len(sequence)] = sequence
        return out

    def batches(
        self, texts: Sequence[str], budget: int, pad_to: int | None = None, step: int = 1
    ) -> Iterator[tuple[Rows, TokenIds]]:
        """`texts` in batches of one padded length: which of them, and int64 (n, length). Short ones come first.

        `budget`: tokens a batch, padding included. `pad_to` None leaves the length to `length`.
        """
        ids = self.ids(texts)
        by_length: dict[int, Rows] = {}
        for row, sequence in enumerate(ids):
            by_length.setdefault(pad_to or self.length(len(sequence), step), []).append(row)
        for length, rows in sorted(by_length.items()):
            many = max(1, budget // length)
            for start in range(0, len(rows), many):
                part = rows[start : start + many]
                yield part, self.pad([ids[row] for row in part], length)


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
