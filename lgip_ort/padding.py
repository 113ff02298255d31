"""The two padding arms: how long a text is made for a tower that sees its padding.

SigLIP's text tower attends to padding and pools the last position, so that the padded length is part of its input.

    trained   every text at the length that the model was trained with
    paper     every text at the length of the longest of its group, as the released LGIP scripts make it: the captions
              of an image; a caption's perturbations of one kind (paraphrase, flip, combined, identity)

A causal tower that pools at the end of a text has the same vector at any length: both arms are one to it.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, get_args

import polars as pl

from lgip_ort.bundle import Bundle, Graph, TextSpec
from lgip_ort.errors import UsageFault, did_you_mean
from lgip_ort.text import TextEncoder

Padding = Literal["trained", "paper"]

TEXTS_AT_ONCE = 65_536
"""Texts tokenised at a time: few tokens in memory, however long the table."""


def choose_padding(asked: str) -> Padding:
    """The arm `asked`. Raises UsageFault, with the nearest known name, where there is none."""
    for padding in get_args(Padding):
        if padding == asked:
            return padding
    raise UsageFault(f"unknown padding {asked!r}{did_you_mean(asked, get_args(Padding))}")


def matters(text: TextSpec, padding: Padding) -> bool:
    """Whether `padding` gives the texts of this tower other lengths than the one it was trained with."""
    return padding == "paper" and text.lengths == "trained"


def check_graphs(bundle: Bundle, padding: Padding) -> None:
    """Raises UsageFault where `padding` needs lengths that a text graph of `bundle` was not exported for."""
    for graph in bundle.manifest.graphs:
        length = graph.inputs[0].shape[-1]
        if graph.tower == "text" and isinstance(length, int) and matters(bundle.manifest.text, padding):
            raise UsageFault(
                f"{bundle.path(graph.file)}: this text graph takes length {length} only, "
                f"--padding {padding} needs shorter ones; export the model again"
            )


def pinned(text: TextSpec, graph: Graph, padding: Padding) -> dict[str, int]:
    """The symbolic dimension of a text graph that has one value in `padding`, by name; empty where none has."""
    length = graph.inputs[0].shape[-1]
    if padding == "trained" and text.lengths == "trained" and isinstance(length, str):
        return {length: text.context_length}
    return {}


def with_lengths(table: pl.DataFrame, captions: pl.DataFrame, bundle: Bundle, padding: Padding) -> pl.DataFrame:
    """`table` with the padded lengths of its pairs (text_length, perturbed_length: u16, tokens of `bundle`).

    `captions` (image_id, text): a caption lengthens its image's group with or without a pair of its own. Both columns
    are null where the arm sets no length: in `trained`, and for a tower that is exact at any.
    """
    if not matters(bundle.manifest.text, padding):
        null = pl.lit(None, pl.UInt16)
        return table.with_columns(text_length=null, perturbed_length=null)
    encoder = TextEncoder(bundle)
    captions = captions.join(table, on="image_id", how="semi", maintain_order="left")
    originals = pl.concat(
        [frame.select("image_id", text_length=_tokens(frame["text"], encoder)) for frame in (captions, table)]
    )
    longest = originals.group_by("image_id").agg(pl.col("text_length").max())
    group = pl.col("perturbed_length").max().over("image_id", "caption_index", "kind")
    return (
        table.drop("text_length")
        .with_columns(perturbed_length=_tokens(table["perturbed"], encoder))
        .with_columns(group)
        .join(longest, on="image_id", how="left", maintain_order="left")
        .select(table.columns)
    )


class Lengths:
    """The padded lengths of a table, gathered while its parts pass by: what a run's stamp says of them."""

    def __init__(self) -> None:
        self._least, self._most, self._digest = 1 << 16, 0, hashlib.sha256()

    def add(self, part: pl.DataFrame) -> None:
        """Take in one part."""
        lengths = part.select("text_length", "perturbed_length").drop_nulls()
        if len(lengths):
            array = lengths.to_numpy().astype("<u2")
            self._least, self._most = min(self._least, int(array.min())), max(self._most, int(array.max()))
            self._digest.update(array.tobytes())

    def known(self) -> dict[str, Any] | None:
        """`min`, `max`, and the `sha256` of both columns; None where there are none."""
        if not self._most:
            return None
        return {"min": self._least, "max": self._most, "sha256": self._digest.hexdigest()}


def _tokens(texts: pl.Series, encoder: TextEncoder) -> pl.Series:
    """How many tokens each text has, u16; a text that a slice holds more than once is tokenised once."""
    parts = [pl.Series(dtype=pl.UInt16)]
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = texts[start : start + TEXTS_AT_ONCE]
        distinct = part.unique()
        counts = pl.Series([len(ids) for ids in encoder.ids(distinct.to_list())], dtype=pl.UInt16)
        parts.append(part.replace_strict(distinct, counts))
    return pl.concat(parts)
