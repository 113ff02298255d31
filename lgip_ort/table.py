"""The perturbation table: one row a comparison of a caption with a perturbation of it, on one image."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import polars as pl

from lgip_ort.errors import UsageFault, did_you_mean
from lgip_ort.perturb.suites import SUITES, ImageCaptions, Options

KINDS = ("paraphrase", "flip", "combined", "identity")

SCHEMA = pl.Schema(
    {
        "pair_id": pl.UInt64,  # hash of the row's content: the same in every table that holds the row
        "image_id": pl.String,
        "caption_index": pl.UInt16,
        "suite": pl.String,
        "kind": pl.String,
        "family": pl.String,
        "text": pl.String,  # the caption as it is
        "perturbed": pl.String,
        "source_word": pl.String,
        "target_word": pl.String,
        "strength": pl.Float32,
        "verified": pl.Boolean,
        "text_length": pl.UInt16,  # in tokens: what a run pads the text to, null for what its model was trained with
        "perturbed_length": pl.UInt16,
    }
)

LENGTHS = ("text_length", "perturbed_length")
"""The columns that a run fills in (see `padding`): they depend on the tokenizer of its model."""

IMAGES_AT_ONCE = 2048


def build_table(
    captions: pl.DataFrame,
    suite: str,
    seed: int,
    options: Options | None = None,
    annotated: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """The table of SCHEMA for `captions` (image_id, caption_index, text).

    `annotated`: image_id, category; an image without a row there counts as not annotated. Raises UsageFault for an
    unknown suite. Every draw is fixed by the seed, the image and the caption alone: neither the order of rows nor how
    images are split between processes matters, as long as an image keeps its captions together.
    """
    frames = list(table_parts(captions, suite, seed, options, annotated))
    return pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)


def table_parts(
    captions: pl.DataFrame,
    suite: str,
    seed: int,
    options: Options | None = None,
    annotated: pl.DataFrame | None = None,
) -> Iterator[pl.DataFrame]:
    """The table of `build_table`, the rows of IMAGES_AT_ONCE images at a time."""
    if suite not in SUITES:
        raise UsageFault(f"unknown suite {suite!r}{did_you_mean(suite, SUITES)}")
    make, options = SUITES[suite], options or Options()
    rows: list[tuple[object, ...]] = []
    for number, image in enumerate(_images(captions, annotated), start=1):
        texts = dict(image.captions)
        for p in make(image, seed, options):
            text = texts[p.caption_index]
            key = (suite, image.image_id, p.caption_index, p.kind, p.family, text, p.perturbed)
            head = (stable_hash(*key), image.image_id, p.caption_index, suite, p.kind, p.family, text)
            rows.append((*head, p.perturbed, p.source_word, p.target_word, p.strength, p.verified))
        if number % IMAGES_AT_ONCE == 0:
            yield _frame(rows)
            rows = []
    if rows:
        yield _frame(rows)


def _images(captions: pl.DataFrame, annotated: pl.DataFrame | None) -> Iterator[ImageCaptions]:
    """Images in the order of their first caption, captions by index."""
    categories: dict[str, frozenset[str]] = {}
    if annotated is not None:
        grouped = annotated.group_by("image_id").agg(pl.col("category"))
        categories = {image_id: frozenset(names) for image_id, names in grouped.iter_rows()}
    grouped = captions.group_by("image_id", maintain_order=True).agg(
        pl.col("caption_index", "text").sort_by("caption_index")
    )
    for image_id, indices, texts in grouped.select("image_id", "caption_index", "text").iter_rows():
        yield ImageCaptions(image_id, list(zip(indices, texts, strict=True)), categories.get(image_id))


def _frame(rows: list[tuple[object, ...]]) -> pl.DataFrame:
    """Rows by column: Polars takes them apart faster than row by row. Equal rows are one."""
    known = [(name, dtype) for name, dtype in SCHEMA.items() if name not in LENGTHS]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(known)
    series = [pl.Series(n, c, t, strict=False) for (n, t), c in zip(known, columns, strict=True)]
    return unpadded(pl.DataFrame(series).unique("pair_id", keep="first", maintain_order=True))


def unpadded(table: pl.DataFrame) -> pl.DataFrame:
    """`table` as it is before a run: without any padded length."""
    return table.with_columns(pl.lit(None, SCHEMA[name]).alias(name) for name in LENGTHS)


def from_given(given: pl.DataFrame, suite: str) -> pl.DataFrame:
    """A table of perturbations that came with the data: image_id, caption_index, kind, family, text, perturbed."""
    columns = ("image_id", "caption_index", "kind", "family", "text", "perturbed")
    rows: list[tuple[object, ...]] = []
    for image_id, index, kind, family, text, perturbed in given.select(columns).iter_rows():
        key = (suite, image_id, index, kind, family, text, perturbed)
        rows.append((stable_hash(*key), image_id, index, suite, kind, family, text, perturbed, None, None, None, None))
    return _frame(rows)


def stable_hash(*key: object) -> int:
    """64 bits that depend on the words of `key` alone."""
    return int.from_bytes(hashlib.blake2b("\0".join(map(str, key)).encode(), digest_size=8).digest())


def table_sha256(table: pl.DataFrame) -> str:
    """Identity of a table: its pairs, in order."""
    return hashlib.sha256(table["pair_id"].to_numpy().tobytes()).hexdigest()


def count_kinds(table: pl.DataFrame) -> dict[str, int]:
    """Number of pairs of each kind, zeros included."""
    counts = dict(table.group_by("kind").len().iter_rows())
    return {kind: counts.get(kind, 0) for kind in KINDS}
