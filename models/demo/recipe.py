"""The hyper-parameters in `recipe.toml` as one typed table a model."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Recipe:
    """How one model is trained; `recipe.toml` says what each entry means."""

    kind: Literal["clip", "siglip"]
    steps: int
    sigmoid_from: float
    betas: tuple[float, float]
    vocabulary: int
    length: int
    scenes: int
    seed: int
    batch: int
    similar_batches: float
    mirrored: float
    learning_rate: float
    warmup: int
    final_rate: float
    weight_decay: float
    clip_norm: float
    patch_scale: float
    evaluate_every: int
    checkpoint_every: int
    tower: dict[str, int]
    vision: dict[str, int]
    text: dict[str, int]


def load() -> dict[str, Recipe]:
    """All recipes by model key."""
    tables = tomllib.loads(Path(__file__).with_name("recipe.toml").read_text(encoding="utf-8"))
    shared = tables.pop("shared")
    return {key: Recipe(**{**shared, **table}) for key, table in tables.items()}
