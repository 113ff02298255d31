"""How scores are distributed: counted shard by shard, so that no run is too large."""

from __future__ import annotations

import numpy as np
import polars as pl

from lgip_ort.run import Run

STEP = 0.01
"""Width of a bin, in cosine."""

EDGES = np.linspace(-1, 1, round(2 / STEP) + 1)
TEXTS = ("captions", "paraphrases", "flips")


def distribution(run: Run) -> pl.DataFrame:
    """Columns text (of TEXTS), score (f64, the middle of a bin), share (f64, of the scores of that text).

    Captions are those of the flips, or of the paraphrases where there are none. Bins that are empty for every text are
    left out at both ends.
    """
    counts = {name: np.zeros(len(EDGES) - 1, np.int64) for name in TEXTS}
    captions = {"flip": np.zeros_like(counts["flips"]), "paraphrase": np.zeros_like(counts["flips"])}
    for part in run.parts():
        for kind, name in (("paraphrase", "paraphrases"), ("flip", "flips")):
            rows = part.filter(pl.col("kind") == kind)
            counts[name] += _counted(rows["s_perturbed"])
            captions[kind] += _counted(rows["s"])
    counts["captions"] = captions["flip"] if captions["flip"].any() else captions["paraphrase"]
    used = np.flatnonzero(sum(counts.values()))
    if not len(used):
        return pl.DataFrame(schema={"text": pl.String, "score": pl.Float64, "share": pl.Float64})
    shown = slice(max(0, used[0] - 1), used[-1] + 2)
    middle = (EDGES[:-1] + EDGES[1:])[shown] / 2
    return pl.concat(
        [
            pl.DataFrame({"text": name, "score": middle, "share": found[shown] / found.sum()})
            for name, found in counts.items()
            if found.any()
        ]
    )


def _counted(scores: pl.Series) -> np.ndarray:
    return np.histogram(scores.to_numpy().clip(-1, 1), EDGES)[0]
