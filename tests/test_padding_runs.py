"""Runs in both padding arms: the same scores however the work is cut up, and what the command says of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from made import lengths_of, make_coco, make_plan, write_captions
from toy import CONTEXT, fix_length, make_bundle

from lgip_ort import execute as execute_module
from lgip_ort.bundle import open_bundle
from lgip_ort.dataset import open_dataset
from lgip_ort.encode import encode_texts
from lgip_ort.engine import OrtEngine
from lgip_ort.execute import execute
from lgip_ort.padding import with_lengths
from lgip_ort.score import Local
from lgip_ort.table import LENGTHS, SCHEMA, build_table

pytestmark = pytest.mark.usefixtures("no_charts")


@pytest.fixture(scope="module")
def felt(tmp_path_factory):
    """A toy bundle whose text tower feels its padding."""
    return open_bundle(make_bundle(tmp_path_factory.mktemp("felt") / "b", pad_matters=True))


def coco_with(folder, captions):
    """Forty images with two captions each, drawn from these in turn."""
    make_coco(folder)
    data = json.loads((folder / "annotations/captions_val.json").read_text())
    for i, annotation in enumerate(data["annotations"]):
        annotation["caption"] = captions[(i // 2 + 3 * (i % 2)) % len(captions)]
    write_captions(folder, data["images"], data["annotations"])
    return folder


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """Captions of several lengths."""
    captions = ["one red dog", "a photo of two blue cats on a boat", "a black horse, four of them", "three birds"]
    return coco_with(tmp_path_factory.mktemp("coco"), captions)


def run_paper(bundle, data, out, batch_size=64, shuffle=False):
    captions = data.captions
    table = build_table(captions, "paper", 0)
    if shuffle:
        table = table.sample(fraction=1, shuffle=True, seed=2)
    table = with_lengths(table, captions, bundle, "paper")
    plan = make_plan(out / "tables", data, table, batch_size=batch_size, padding="paper")
    return execute(Local(OrtEngine(bundle, "cpu", batch_size, "paper")), plan, out, lambda *_: None)


@pytest.mark.parametrize(("shard", "batch_size", "shuffle"), [(3, 64, False), (512, 1, False), (7, 5, True)])
def test_how_the_work_is_cut_up_changes_nothing(felt, coco, tmp_path, monkeypatch, shard, batch_size, shuffle):
    data = open_dataset(f"coco:{coco}")
    whole = run_paper(felt, data, tmp_path / "whole")
    monkeypatch.setattr(execute_module, "SHARD_IMAGES", shard)
    cut = run_paper(felt, data, tmp_path / "cut", batch_size, shuffle)
    a, b = (run.pairs().sort("pair_id") for run in (whole, cut))
    assert a.drop("s", "s_perturbed", "text_cosine").equals(b.drop("s", "s_perturbed", "text_cosine"))
    for name in ("s", "s_perturbed", "text_cosine"):
        np.testing.assert_allclose(a[name], b[name], atol=1e-6)
    keys = [set(run.embeddings().select("tower", "key").rows()) for run in (whole, cut)]
    assert keys[0] == keys[1]
    assert min(a[name].n_unique() for name in LENGTHS) > 1


def test_scores_are_those_of_texts_padded_one_by_one(felt, coco, tmp_path):
    """With nothing of the machinery between: each text encoded alone at the length of its column."""
    run = run_paper(felt, open_dataset(f"coco:{coco}").head(5), tmp_path)
    engine = OrtEngine(felt, padding="paper")
    for row in run.pairs().iter_rows(named=True):
        a = encode_texts(engine, [row["text"]], pad_to=row["text_length"])[0]
        b = encode_texts(engine, [row["perturbed"]], pad_to=row["perturbed_length"])[0]
        assert row["text_cosine"] == pytest.approx(float(a @ b), abs=1e-6)
    identity = run.pairs().filter(kind="identity")
    moved = (identity["s"] - identity["s_perturbed"]).abs()
    same = identity["text_length"] == identity["perturbed_length"]
    assert moved.filter(same).max() <= 1e-6
    assert moved.filter(~same).min() > 1e-4 and not same.all()


@pytest.fixture
def score(bench, felt, coco):
    return lambda *options, bundle=felt.folder: bench("--bundle", bundle, "--data", f"coco:{coco}", *options)


def stamp_of(run):
    return json.loads((Path(run) / "run.json").read_text())


def test_command(score, bench):
    trained, paper = (score("--padding", arm, "--json").json() for arm in ("trained", "paper"))
    assert (trained["padding"], paper["padding"]) == ("trained", "paper")
    assert trained["run"] != paper["run"]
    assert trained["metrics"]["E_inv"]["value"] != paper["metrics"]["E_inv"]["value"]
    tables = [pl.read_parquet(Path(run["run"]) / "table.parquet") for run in (trained, paper)]
    assert tables[0].schema == tables[1].schema == SCHEMA
    assert [table["text_length"].null_count() for table in tables] == [len(tables[0]), 0]
    assert (stamp_of(trained["run"])["padding"], stamp_of(trained["run"])["lengths"]) == ("trained", None)
    lengths = stamp_of(paper["run"])["lengths"]
    assert lengths == lengths_of(tables[1])
    shown = score("--padding", "paper")
    assert f"padding    paper, to {lengths['min']} .. {lengths['max']} tokens\n" in shown.out
    assert "padding    trained\n" in score().out
    line = f"<dt>padding</dt><dd>paper, to {lengths['min']} .. {lengths['max']} tokens</dd>"
    assert line in (Path(paper["run"]) / "report.html").read_text()


def test_arms_are_compared_only_if_asked(score, bench):
    trained, paper = (score("--padding", arm, "--json").json()["run"] for arm in ("trained", "paper"))
    refused = bench("compare", trained, paper)
    assert (refused.code, refused.out) == (2, "")
    assert (
        "padding is 'trained' in the reference and 'paper' in the candidate; --across-arms compares them" in refused.err
    )
    outcome = bench("compare", trained, paper, "--across-arms", "--json")
    assert outcome.code == 1
    assert (outcome.json()["verdict"], outcome.json()["padding"]) == (
        "drifted",
        {"reference": "trained", "candidate": "paper"},
    )
    lengths = stamp_of(paper)["lengths"]
    shown = bench("compare", trained, paper, "--across-arms").out
    assert f"\npadding: paper, to {lengths['min']} .. {lengths['max']} tokens, against trained\n" in shown


def test_a_tower_that_is_exact_at_any_length(score, toy):
    trained, paper = (score("--padding", arm, "--json", bundle=toy).json() for arm in ("trained", "paper"))
    assert (paper["padding"], paper["strata"]) == ("paper", trained["strata"])
    assert trained["run"] != paper["run"]
    assert stamp_of(paper["run"])["lengths"] is None
    assert "padding    paper\n" in score("--padding", "paper", bundle=toy).out


def test_table_that_holds_the_lengths_of_another_run(score):
    paper = score("--padding", "paper", "--json").json()["run"]
    table = Path(paper) / "table.parquet"
    trained = score("--table", table, "--json").json()["run"]
    assert pl.read_parquet(Path(trained) / "table.parquet")["text_length"].null_count() == len(pl.read_parquet(table))
    again = score("--table", table, "--padding", "paper", "--json", "--out", "again").json()["run"]
    assert pl.read_parquet(Path(again) / "table.parquet").equals(pl.read_parquet(table))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--padding", "papr"], "unknown padding 'papr'; did you mean 'paper'?"),
        (
            ["--padding", "paper"],
            f"takes length {CONTEXT} only, --padding paper needs shorter ones; export the model again",
        ),
        (["--padding", "paper", "--engine", "both"], f"takes length {CONTEXT} only"),
    ],
)
def test_what_can_not_be_done(score, tmp_path, options, message):
    outcome = score(*options, bundle=fix_length(make_bundle(tmp_path / "fixed", pad_matters=True)))
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert not Path("runs").exists()


def test_both_engines_get_the_same_lengths(bench, tmp_path):
    pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
    from checkpoints import exported

    bundle, _ = exported("tiny_siglip")
    coco = coco_with(tmp_path / "data", ["a red dog", "a dog on a boat", "a blue cat next to a car"])
    found = bench(
        "--engine", "both", "--bundle", bundle, "--data", f"coco:{coco}", "--padding", "paper", "--json"
    ).json()
    assert found["padding"] == {"reference": "paper", "candidate": "paper"}
    assert found["embedding_cosine"]["text_min"] > 0.9999
    runs = [found["reference"], found["candidate"]]
    assert [stamp_of(run)["engine"] for run in runs] == ["torch", "ort"]
    tables = [pl.read_parquet(Path(run) / "table.parquet") for run in runs]
    assert tables[0].equals(tables[1]) and tables[0]["text_length"].n_unique() > 1
    assert stamp_of(runs[0])["lengths"] == stamp_of(runs[1])["lengths"] == lengths_of(tables[0])
