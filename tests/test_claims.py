from __future__ import annotations

import numpy as np
import pytest
from made import make_run, make_table

from lgip_ort.report.claims import judged, table
from lgip_ort.strength import rules
from lgip_ort.table import stable_hash
from models import zoo

IMAGES = 200
ROWS = [
    (f"{i:03d}", kind, family)
    for i in range(IMAGES)
    for kind, family in (("paraphrase", "wrapper"), ("flip", "object"))
]
TABLE = make_table(ROWS)


@pytest.fixture
def run(tmp_path):
    """A run of a model with this E_inv, this E_sens and this many flips right, all with noise of its own."""

    def make(model, e_inv=0.02, e_sens=0.1, right=0.9, noise=0.001, cosine=None):
        rng = np.random.default_rng(stable_hash(model, e_inv, e_sens) % 2**32)
        gaps = []
        for i in range(IMAGES):
            gaps += [e_inv, e_sens if (i + 0.5) / IMAGES < right else -e_sens]
        perturbed = 0.5 - np.array(gaps) + noise * rng.normal(size=2 * IMAGES)
        return make_run(
            tmp_path / f"{model}{len(list(tmp_path.iterdir()))}",
            TABLE,
            [0.5] * len(ROWS),
            perturbed.tolist(),
            model=model,
        )

    return make


def one(runs, **claim):
    (found,) = judged(runs, [{"says": "x"} | claim])
    return found


LARGER = {"on": "larger", "metric": "E_inv", "kind": "paraphrase", "models": ["a", "b"], "than": ["c", "d"]}


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({"a": 0.05, "c": 0.02}, "holds"),
        ({"a": 0.05, "b": 0.06, "c": 0.02, "d": 0.03}, "holds"),
        ({"a": 0.05, "b": 0.01, "c": 0.02, "d": 0.03}, "does not hold"),
        ({"a": 0.02, "d": 0.02}, "cannot be said"),
        ({"a": 0.05}, "cannot be said"),
        ({"c": 0.05}, "cannot be said"),
    ],
)
def test_larger(run, values, outcome):
    found = one([run(model, e_inv=value) for model, value in values.items()], **LARGER)
    assert found.outcome == outcome


def test_why(run):
    found = one([run("a", e_inv=0.05), run("c")], **LARGER)
    assert found.why == "on a; not run: b"
    assert one([run("a")], **LARGER).why == "needs a run of c or d"
    assert one([], **LARGER).why == "needs a run of a or b, and of c or d"
    wrong = one([run("a", e_inv=0.01), run("c", e_inv=0.03)], **LARGER).why
    assert wrong.startswith("E_inv of a minus c: -0.02")


def test_differences_are_paired(run):
    """Two models that share what the images bring are told apart by less than either's interval is wide."""
    shared = np.random.default_rng(0).normal(0, 0.05, IMAGES)
    runs = []
    for model, base in (("a", 0.202), ("c", 0.2)):
        made = run(model)
        gaps = np.stack([base + shared, np.full(IMAGES, 0.1)], 1).ravel()
        runs.append(
            make_run(
                made.folder.with_name(f"paired-{model}"), TABLE, [0.5] * len(ROWS), (0.5 - gaps).tolist(), model=model
            )
        )
    assert one(runs, **LARGER).outcome == "holds"


@pytest.mark.parametrize(("right", "outcome"), [(0.3, "holds"), (0.55, "cannot be said"), (0.9, "does not hold")])
def test_at_most(run, right, outcome):
    claim = {"on": "at_most", "metric": "PR", "kind": "flip", "family": "object", "value": 0.55, "models": ["a"]}
    assert one([run("a", right=right)], **claim).outcome == outcome


FRONTIER = {"on": "frontier", "models": ["a"]}


@pytest.mark.parametrize(
    ("other", "outcome"),
    [
        ({"e_inv": 0.03, "e_sens": 0.2}, "holds"),  # keener, and less steady
        ({"e_inv": 0.01, "e_sens": 0.05}, "holds"),
        ({"e_inv": 0.01, "e_sens": 0.2}, "does not hold"),
        ({"e_inv": 0.01, "e_sens": 0.1}, "cannot be said"),  # as keen
    ],
)
def test_frontier(run, other, outcome):
    assert one([run("a", right=1.0), run("b", right=1.0, **other)], **FRONTIER).outcome == outcome


def test_frontier_of_one_model(run):
    assert one([run("a")], **FRONTIER).outcome == "cannot be said"


@pytest.mark.parametrize(
    ("right", "outcome"),
    [((0.5, 0.7, 0.95), "holds"), ((0.95, 0.7, 0.5), "does not hold"), ((0.7, 0.7, 0.7), "cannot be said")],
)
def test_rises(tmp_path, right, outcome):
    """Strict flips of colours whose strength is written in the table: weak, medium and strong by turns."""
    images = 600
    edges = rules()["strict"]["colour"]
    strength = [edges[0] / 2, (edges[0] + edges[1]) / 2, edges[1] * 1.5]
    rows = [(f"{i:03d}", "flip", "colour") for i in range(images)]
    flips = make_table(rows, suite=["strict"] * images, strength=[strength[i % 3] for i in range(images)])
    gaps = [0.1 if (i // 3 + 0.5) / (images // 3) < right[i % 3] else -0.1 for i in range(images)]
    made = make_run(tmp_path / "r", flips, [0.5] * images, [0.5 - gap for gap in gaps], model="a")
    claim = {"on": "rises", "metric": "PR", "kind": "flip", "models": ["a"]}
    assert one([made], **claim).outcome == outcome


def test_rises_needs_bands(run):
    """The flips of these runs are of one strength."""
    claim = {"on": "rises", "metric": "PR", "kind": "flip", "models": ["a"]}
    found = one([run("a")], **claim)
    assert (found.outcome, "too few pairs" in found.why) == ("cannot be said", True)


def test_the_first_run_of_a_model_counts(run):
    assert one([run("a", e_inv=0.05), run("a", e_inv=0.0), run("c")], **LARGER).outcome == "holds"


def test_claims_are_about_models_of_the_zoo():
    known = zoo.load()
    for claim in table():
        assert set(claim["models"]) | set(claim.get("than", [])) <= set(known)
    assert {claim["on"] for claim in table()} == {"frontier", "larger", "at_most", "rises"}


def test_demo_models_are_not_in_the_paper(run):
    assert {c.outcome for c in judged([run("tiny_clip"), run("tiny_siglip")])} == {"cannot be said"}
