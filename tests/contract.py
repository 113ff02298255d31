"""What `--json` prints, as types: fields are added, never renamed."""

from __future__ import annotations

NUMBER, NULLABLE = (int, float), (int, float, type(None))
METRIC = {"value": NUMBER, "ci_low": NULLABLE, "ci_high": NULLABLE, "n": int}
NAMES = {"metric": str, "kind": str, "family": str, "stratum": str}
RUN = {
    "status": str,
    "model": str,
    "weights": str,
    "weights_sha256": str,
    "engine": str,
    "provider": {"asked": str, "active": str},
    "precision": {"asked": str, "executed": str},
    "size": NULLABLE,
    "placement": dict,
    "padding": str,
    "suite": str,
    "seed": int,
    "dataset": {"name": str, "hash": str, "images": int, "captions": int, "missing": int, "named": int},
    "pairs": {"paraphrase": int, "flip": int, "combined": int, "identity": int},
    "skipped": [{"image_id": str, "path": str, "reason": str}],
    "metrics": {"E_inv": METRIC, "E_sens": METRIC, "PR": METRIC},
    "strata": [NAMES | METRIC],
    "seconds": {"load": NUMBER, "images": NUMBER, "texts": NUMBER, "score": NUMBER, "total": NUMBER},
    "run": str,
    "reused": bool,
}
COMPARED = {"reference": NUMBER, "candidate": NUMBER, "delta": NUMBER, "ci_low": NULLABLE, "ci_high": NULLABLE}
COSINE = {"image_min": NULLABLE, "image_p1": NULLABLE, "text_min": NULLABLE, "text_p1": NULLABLE}
CHANGE = {"image_id": str, "family": str, "text": str, "perturbed": str, "s": NUMBER, "s_perturbed": NUMBER}
COMPARISON = {
    "verdict": str,
    "model": str,
    "weights": str,
    "padding": {"reference": str, "candidate": str},
    "rows": [
        NAMES
        | COMPARED
        | {"drift_low": NULLABLE, "drift_high": NULLABLE, "margin": NUMBER, "noise": NULLABLE}
        | {"verdict": str, "n": int, "images": int, "images_needed": NULLABLE}
    ],
    "left_out": int,
    "sign_changes": {
        "n": int,
        "of": int,
        "pairs": [CHANGE | {"s_candidate": NUMBER, "s_perturbed_candidate": NUMBER}],
    },
    "embedding_cosine": COSINE,
    "max_ds": NUMBER,
    "margins": {
        "min_images": int,
        **{key: {"absolute": NUMBER, "relative": NUMBER} for key in ("E_inv", "E_sens", "PR", "matched_gap", "recall")},
    },
    "blame": (list, type(None)),
    "reference": str,
    "candidate": str,
    "report": (str, type(None)),
}  # fmt: skip


def conforms(data, spec, where="$"):
    """Asserts that `data` has the fields and types of `spec`, and no other field."""
    if isinstance(spec, dict):
        assert set(data) == set(spec), where
        for name, inner in spec.items():
            conforms(data[name], inner, f"{where}.{name}")
    elif isinstance(spec, list):
        assert isinstance(data, list), where
        for i, item in enumerate(data):
            conforms(item, spec[0], f"{where}[{i}]")
    else:
        assert isinstance(data, spec), (where, data)
        assert spec is bool or not isinstance(data, bool), (where, data)
