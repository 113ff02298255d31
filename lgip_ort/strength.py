"""How far a flip goes: weak, medium or strong.

Suite `strict` knows it from the words alone, so that the strata are the same for every model. Suite `paper` takes half
of it from the evaluated model's own text embeddings, as the paper does (arXiv 2511.13494): with t the text embedding,

    strength = clip(0.5 prior(type) + 0.5 clip(1 - cos(t(c), t(c'))), 0, 1)

weak up to the first quartile of the pool, strong above the third; every flip enters the pool twice, once as its type
and once as "all", as in the released evaluation.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import polars as pl

BANDS = ("weak", "medium", "strong")


@cache
def rules() -> dict[str, Any]:
    """The constants of `strength.toml`."""
    return tomllib.loads(files(__package__).joinpath("strength.toml").read_text(encoding="utf-8"))


def with_bands(pairs: pl.DataFrame) -> pl.DataFrame:
    """Scored pairs with three more columns, null where they do not apply.

    band (of BANDS): of the flip within its family; band_all: among all flips; weight (f64): the flip's strength in the
    pool of all flips, at least 1e-4 (suite `paper` only).
    """
    if pairs.filter(pl.col("kind") == "flip").is_empty() or "text_cosine" not in pairs.columns:
        return pairs.with_columns(_null("band"), _null("band_all"), pl.lit(None, pl.Float64).alias("weight"))
    if pairs["suite"][0] == "paper":
        return _paper(pairs)
    return _strict(pairs)


def _paper(pairs: pl.DataFrame) -> pl.DataFrame:
    paper = rules()["paper"]
    flip = pl.col("kind") == "flip"
    distance = (1 - pl.col("text_cosine").cast(pl.Float64)).clip(0, 1)
    prior = pl.col("family").replace_strict(paper["priors"], default=paper["priors"]["all"], return_dtype=pl.Float64)
    strengths = pairs.select(
        typed=pl.when(flip).then((0.5 * prior + 0.5 * distance).clip(0, 1)),
        pooled=pl.when(flip).then((0.5 * paper["priors"]["all"] + 0.5 * distance).clip(0, 1)),
    )
    pool = pl.concat([strengths["typed"].drop_nulls(), strengths["pooled"].drop_nulls()]).to_numpy()
    low, high = (float(edge) for edge in np.quantile(pool, paper["quantiles"]))
    return pairs.with_columns(
        _banded(strengths["typed"], pl.lit(low), pl.lit(high)).alias("band"),
        _banded(strengths["pooled"], pl.lit(low), pl.lit(high)).alias("band_all"),
        strengths["pooled"].clip(paper["least_weight"]).alias("weight"),
    )


def _strict(pairs: pl.DataFrame) -> pl.DataFrame:
    edges = rules()["strict"]
    low, high = (
        pl.col("family").replace_strict({f: e[i] for f, e in edges.items()}, default=None, return_dtype=pl.Float64)
        for i in (0, 1)
    )
    strength = pl.when(pl.col("kind") == "flip").then(pl.col("strength").cast(pl.Float64))
    return pairs.with_columns(band=_banded(strength, low, high)).with_columns(
        band_all=pl.col("band"), weight=pl.lit(None, pl.Float64)
    )


def _banded(strength: pl.Series | pl.Expr, low: pl.Expr, high: pl.Expr) -> pl.Expr:
    value = pl.lit(strength) if isinstance(strength, pl.Series) else strength
    known = value.is_not_null() & low.is_not_null()
    band = (
        pl.when(known & (value <= low))
        .then(pl.lit("weak"))
        .when(known & (value <= high))
        .then(pl.lit("medium"))
        .when(known)
        .then(pl.lit("strong"))
    )
    return band.cast(pl.Enum(BANDS))


def _null(name: str) -> pl.Expr:
    return pl.lit(None, pl.Enum(BANDS)).alias(name)
