"""The perturbation table: one row a comparison of a caption with a perturbation of it, on one image."""

from __future__ import annotations

import hashlib

import polars as pl

from lgip_ort.errors import UsageFault, did_you_mean
from lgip_ort.perturb.suites import SUITES

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
    }
)


def build_table(captions: pl.DataFrame, suite: str, seed: int) -> pl.DataFrame:
    """The table of SCHEMA for `captions` (image_id, caption_index, text).

    Raises UsageFault for an unknown suite. Every draw is fixed by the seed, the image and the caption alone.
    """
    if suite not in SUITES:
        raise UsageFault(f"unknown suite {suite!r}{did_you_mean(suite, SUITES)}")
    rows = []
    for image_id, caption_index, text in captions.select("image_id", "caption_index", "text").iter_rows():
        for p in SUITES[suite](image_id, caption_index, text, seed):
            key = (suite, image_id, caption_index, p.kind, p.family, text, p.perturbed)
            words = (p.source_word, p.target_word)
            rows.append(
                (stable_hash(*key), image_id, caption_index, suite, p.kind, p.family, text, p.perturbed, *words)
            )
    made = pl.DataFrame(rows, schema=pl.Schema(list(SCHEMA.items())[:10]), orient="row")
    table = made.with_columns(strength=pl.lit(None, SCHEMA["strength"]), verified=pl.lit(None, SCHEMA["verified"]))
    return table.unique("pair_id", keep="first", maintain_order=True)


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
