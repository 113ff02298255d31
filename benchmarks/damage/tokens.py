"""Damage to what becomes of a text before it reaches the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.damage.kinds import Absent, Variant, Wrapped, manifest, tokenizer
from lgip_ort.engine import OrtEngine


def wrong_pad(content: dict[str, Any]) -> None:
    """Zero, the default of many a library, or the id after it."""
    content["text"]["pad_id"] = 0 if content["text"]["pad_id"] else 3


def no_end(content: dict[str, Any]) -> None:
    """add_special_tokens=False, for the end alone."""
    processor = content["post_processor"]
    if processor["type"] == "TemplateProcessing":
        processor["single"] = [part for part in processor["single"] if "SpecialToken" not in part]
        processor["special_tokens"] = {}
    else:
        (start,) = [t for t in content["added_tokens"] if t["id"] == processor["cls"][1]]
        content["post_processor"] = _template(start["content"], start["id"])


def no_start(content: dict[str, Any]) -> None:
    """The other half of it."""
    processor = content["post_processor"]
    if "sep" not in processor:
        raise Absent("no token at the start of a text")
    end, number = processor["sep"]
    content["post_processor"] = _template(end, number, at_the_end=True)


def _template(token: str, number: int, at_the_end: bool = False) -> dict[str, Any]:
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [text, special] if at_the_end else [special, text],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


def case_kept(content: dict[str, Any]) -> None:
    """No lower-casing."""
    kept = [n for n in content["normalizer"]["normalizers"] if n["type"] != "Lowercase"]
    if len(kept) == len(content["normalizer"]["normalizers"]):
        raise Absent("no lower-casing")
    content["normalizer"]["normalizers"] = kept


def punctuation_kept(content: dict[str, Any]) -> None:
    """No removal of punctuation."""
    steps = content["normalizer"]["normalizers"]
    kept = [n for n in steps if not (n["type"] == "Replace" and "!" in str(n["pattern"].get("Regex", "")))]
    if len(kept) == len(steps):
        raise Absent("no removal of punctuation")
    content["normalizer"]["normalizers"] = kept


class UpperCase(Wrapped):
    """Texts that somebody titled or shouted."""

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        """Texts in capitals."""
        return super().batches([text.upper() for text in texts], pad_to)


class Shifted(Wrapped):
    """Ids of a vocabulary with one entry more at its head."""

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        """Every id one more; the special ones, and the last that there is, as they are."""
        encoder = self.inner._text
        special = {encoder.spec.pad_id, encoder.spec.eot_id}
        last = encoder._tokenizer.get_vocab_size() - 1
        stay = [*(number for number in special if number is not None), last]
        for rows, ids in super().batches(texts, pad_to):
            yield rows, np.where(np.isin(ids, stay), ids, ids + 1)


class Truncated(Wrapped):
    """A context of eight tokens, end included."""

    length = 8

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        """What is longer is cut; the end of the text and the padding are as they should be."""
        spec = self.inner._text.spec
        for rows, ids in super().batches(texts, pad_to):
            cut = ids.copy()
            long = (
                (ids[:, self.length :] != spec.pad_id).any(axis=1)
                if ids.shape[1] > self.length
                else np.zeros(len(ids), bool)
            )
            cut[:, self.length :] = spec.pad_id
            if spec.eot_id is not None and ids.shape[1] >= self.length:
                cut[long, self.length - 1] = spec.eot_id
            yield rows, cut


class ToTheLongest(Wrapped):
    """padding=True: to the longest text of the call."""

    def __init__(self, inner: OrtEngine) -> None:
        super().__init__(inner)
        self.stamp = replace(inner.stamp, padding="trained")

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        """64 texts at a time, as they come."""
        encoder = self.inner._text
        for start in range(0, len(texts), 64):
            ids = encoder.ids(texts[start : start + 64])
            yield list(range(start, start + len(ids))), encoder.pad(ids, max(map(len, ids)))


VARIANTS = (
    Variant("wrong pad id", "tokens", "the default of a library for the model's", manifest(wrong_pad)),
    Variant(
        "padding to the longest",
        "tokens",
        "padding=True for padding='max_length'",
        wrap=ToTheLongest,
        options=(("padding", "paper"),),
    ),
    Variant("missing end-of-text", "tokens", "a tokenizer without its post-processor", tokenizer(no_end)),
    Variant("missing start-of-text", "tokens", "a tokenizer without its post-processor", tokenizer(no_start)),
    Variant("truncated context", "tokens", "the context length of another model", wrap=Truncated),
    Variant("lower-casing dropped", "tokens", "the normaliser lost in conversion", tokenizer(case_kept)),
    Variant("upper case", "tokens", "texts changed before they are encoded", wrap=UpperCase),
    Variant("punctuation kept", "tokens", "the cleaning of the original left out", tokenizer(punctuation_kept)),
    Variant("ids off by one", "tokens", "a vocabulary with one entry more", wrap=Shifted),
)
