"""What runs and numbers are called, in words that need no glossary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lgip_ort.metrics import ALL
from lgip_ort.parity import Comparison, Row
from lgip_ort.run import Run

METRICS = {
    "E_inv": "the invariance error",
    "E_sens": "the sensitivity gap",
    "PR": "the positive rate",
    "matched_gap": "the gap between true and other captions",
}


def engine(stamp: Mapping[str, Any]) -> str:
    """`ort cpu fp16`."""
    return f"{stamp['engine']} {stamp['provider']['active']} {stamp['precision']['asked']}"


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run that tells it from the others: what all share is left out, but for the model."""
    fields = [[run.stamp["model"], engine(run.stamp), arm(run.stamp), run.weights, run.folder.name] for run in runs]
    kept = [0, *(n for n in (1, 2) if len({row[n] for row in fields}) > 1)]
    for more in (3, 4):
        if len({tuple(row[n] for n in kept) for row in fields}) < len(runs):
            kept.append(more)
    return [", ".join(filter(None, (row[n] for n in kept))) for row in fields]


def arm(stamp: Mapping[str, Any]) -> str:
    """`padding paper`; empty where texts are padded as the model was trained."""
    return "" if stamp["padding"] == "trained" else f"padding {stamp['padding']}"


def pairs_of(kind: str, family: str, stratum: str) -> str:
    """`flips of colour`, `all flips, weak`, `image to text`."""
    plural = {
        "paraphrase": "paraphrases",
        "flip": "flips",
        "combined": "combined edits",
        "identity": "texts encoded twice",
        "original": "captions",
        "image_to_text": "images, among captions",
        "text_to_image": "captions, among images",
    }.get(kind, kind)
    if family in (ALL, kind):
        name = plural if kind in ("identity", "original", "image_to_text", "text_to_image") else f"all {plural}"
    else:
        name = f"{plural} of {family}"
    return name if stratum == ALL else f"{name}, {stratum}"


def metric_of(row: Row) -> str:
    """`the positive rate over flips of colour`."""
    name = METRICS.get(row.metric, f"recall {row.metric}")
    return f"{name} over {pairs_of(row.kind, row.family, row.stratum)}"


def original(stamp: Mapping[str, Any]) -> str:
    """What the reference of a comparison is."""
    return "the PyTorch original" if stamp["engine"] == "torch" else f"the run on {engine(stamp)}"


def comparison(of: Comparison) -> str:
    """`the fp16 artifact of siglip_large on cpu against the PyTorch original`."""
    return f"{candidate(of)} against {original(of.reference.stamp)}"


def candidate(comparison: Comparison) -> str:
    """`the fp16 artifact of siglip_large on cpu`."""
    stamp = comparison.candidate.stamp
    what = "artifact" if stamp["engine"] == "ort" else f"{stamp['engine']} model"
    name = f"the {stamp['precision']['asked']} {what} of {stamp['model']} on {stamp['provider']['active']}"
    return f"{name}, {arm(stamp)}," if arm(stamp) else name
