"""Both padding arms: the lengths by hand, the graphs they need, and the control of every family."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from made import lengths_of, make_table
from toy import CONTEXT, TEXT, fix_length, make_bundle, rehash

from lgip_ort import padding as padding_module
from lgip_ort.bundle import open_bundle
from lgip_ort.encode import encode_texts
from lgip_ort.engine import OrtEngine
from lgip_ort.errors import UsageFault
from lgip_ort.padding import check_graphs, choose_padding, matters, pinned, with_lengths
from lgip_ort.table import SCHEMA

LONG = " ".join(["a red dog on a boat"] * 7)  # 42 words
LENGTHS = ["text_length", "perturbed_length"]

CAPTIONS = pl.DataFrame(
    [("1", 0, "a dog"), ("1", 1, "a red dog on a boat"), ("2", 0, "a cat"), ("2", 1, "a cat on a bus in the picture")],
    schema={"image_id": pl.String, "caption_index": pl.UInt16, "text": pl.String},
    orient="row",
)

# image, caption, kind, text, perturbed, and the padded lengths of both: words and one end-of-text token.
BY_HAND = [
    ("1", 0, "paraphrase", "a dog", "a photo of a dog", 7, 6),
    ("1", 0, "paraphrase", "a dog", "the dog", 7, 6),
    ("1", 0, "flip", "a dog", "two cats in the scene", 7, 6),
    ("1", 0, "flip", "a dog", "a cat", 7, 6),
    ("1", 0, "combined", "a dog", "a photo of a red cat", 7, 7),
    ("1", 0, "identity", "a dog", "a dog", 7, 3),
    ("1", 1, "flip", "a red dog on a boat", "a blue dog on a boat", 7, 7),
    ("1", 1, "flip", "a red dog on a boat", "a red cat", 7, 7),
    ("2", 0, "paraphrase", "a cat", LONG, 9, CONTEXT),  # the longest caption of image 2 has no pair; LONG is cut
    ("2", 0, "flip", "a cat", "a dog", 9, 3),
    ("2", 0, "flip", "a cat", "", 9, 3),
]


def table_of(rows):
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("image_id", "caption_index", "kind", "text", "perturbed"))}  # fmt: skip
    return make_table([(row[0], row[2], row[2]) for row in rows], **columns)


@pytest.fixture(scope="module")
def felt(tmp_path_factory):
    """A toy bundle whose text tower feels its padding."""
    return open_bundle(make_bundle(tmp_path_factory.mktemp("felt") / "b", pad_matters=True))


@pytest.fixture
def fixed(tmp_path):
    """The same with a text graph that takes one length only."""
    return fix_length(make_bundle(tmp_path / "fixed", pad_matters=True))


def test_names():
    assert [choose_padding(name) for name in ("trained", "paper")] == ["trained", "paper"]
    with pytest.raises(UsageFault, match="unknown padding 'papr'; did you mean 'paper'"):
        choose_padding("papr")
    with pytest.raises(UsageFault, match="unknown padding '64'; known: trained, paper"):
        choose_padding("64")


def test_lengths_by_hand(felt):
    table = with_lengths(table_of(BY_HAND), CAPTIONS, felt, "paper")
    assert table.schema == SCHEMA
    assert table.select(LENGTHS).rows() == [row[5:] for row in BY_HAND]
    assert table.drop(LENGTHS).equals(table_of(BY_HAND).drop(LENGTHS))
    assert lengths_of(table) | {"sha256": ""} == {"min": 3, "max": CONTEXT, "sha256": ""}


def test_a_text_that_is_no_caption_of_the_data_counts(felt):
    """A table from elsewhere may hold captions that the data has not."""
    table = with_lengths(table_of(BY_HAND), CAPTIONS.filter(text="a dog"), felt, "paper")
    assert dict(table.select("image_id", "text_length").unique().iter_rows()) == {"1": 7, "2": 3}


def test_lengths_do_not_depend_on_order_or_slices(felt, monkeypatch):
    table = pl.concat([table_of(BY_HAND)] * 3).with_columns(pair_id=pl.int_range(33, dtype=pl.UInt64))
    whole = with_lengths(table, CAPTIONS, felt, "paper")
    monkeypatch.setattr(padding_module, "TEXTS_AT_ONCE", 4)
    shuffled = with_lengths(table.sample(fraction=1, shuffle=True, seed=1), CAPTIONS.reverse(), felt, "paper")
    assert shuffled["pair_id"].to_list() != whole["pair_id"].to_list()
    assert shuffled.sort("pair_id").equals(whole)


def test_a_text_is_tokenised_once_a_slice(felt, monkeypatch):
    seen = []
    ids = padding_module.TextEncoder.ids
    monkeypatch.setattr(
        padding_module.TextEncoder, "ids", lambda self, texts: (seen.extend(texts), ids(self, texts))[1]
    )
    with_lengths(table_of([BY_HAND[3]] * 500), CAPTIONS[:0], felt, "paper")
    assert sorted(seen) == ["a cat", "a dog"]


@pytest.mark.parametrize(("pad_matters", "arm"), [(True, "trained"), (False, "trained"), (False, "paper")])
def test_no_lengths_where_they_change_nothing(tmp_path, pad_matters, arm):
    bundle = open_bundle(make_bundle(tmp_path / "b", pad_matters=pad_matters))
    assert not matters(bundle.manifest.text, arm)
    filled = table_of(BY_HAND).with_columns(text_length=pl.lit(9, pl.UInt16))
    table = with_lengths(filled, CAPTIONS, bundle, arm)
    assert table.schema == SCHEMA
    assert table.select(LENGTHS).null_count().row(0) == (len(BY_HAND),) * 2
    assert lengths_of(table) is None


def test_lengths_belong_to_a_run(felt):
    """Whatever a table holds: they are counted again."""
    table = table_of(BY_HAND)
    wrong = table.with_columns(text_length=pl.lit(23, pl.UInt16), perturbed_length=pl.lit(24, pl.UInt16))
    assert with_lengths(wrong, CAPTIONS, felt, "paper").equals(with_lengths(table, CAPTIONS, felt, "paper"))


def test_empty_table(felt):
    table = with_lengths(table_of(BY_HAND)[:0], CAPTIONS[:0], felt, "paper")
    assert table.schema == SCHEMA
    assert lengths_of(table) is None


def test_identity_of_the_lengths(felt):
    table = with_lengths(table_of(BY_HAND), CAPTIONS, felt, "paper")
    other = table.with_columns(perturbed_length=pl.col("perturbed_length").reverse())
    swapped = table.rename({"text_length": "perturbed_length", "perturbed_length": "text_length"})
    assert len({lengths_of(t)["sha256"] for t in (table, other, swapped, table.reverse())}) == 4
    assert lengths_of(table.clone()) == lengths_of(table)


def test_graph_of_one_length(fixed, felt):
    bundle = open_bundle(fixed)
    check_graphs(bundle, "trained")
    check_graphs(felt, "paper")
    message = rf"{TEXT}: this text graph takes length {CONTEXT} only, --padding paper needs shorter ones; export"
    for refused in (lambda: check_graphs(bundle, "paper"), lambda: OrtEngine(bundle, padding="paper")):
        with pytest.raises(UsageFault, match=message):
            refused()
    np.testing.assert_allclose(
        encode_texts(OrtEngine(bundle), ["a cat"]), encode_texts(OrtEngine(felt), ["a cat"]), atol=1e-6
    )


def test_graph_of_one_length_of_a_tower_that_is_exact_at_any(fixed):
    """The arm asks nothing of it."""
    rehash(fixed, text={"lengths": "any"})
    check_graphs(open_bundle(fixed), "paper")


@pytest.mark.parametrize(
    ("pad_matters", "arm", "expected"),
    [(True, "trained", {"sequence": CONTEXT}), (True, "paper", {}), (False, "trained", {}), (False, "paper", {})],
)
def test_dimension_that_is_pinned(tmp_path, pad_matters, arm, expected):
    bundle = open_bundle(make_bundle(tmp_path / "b", pad_matters=pad_matters))
    assert pinned(bundle.manifest.text, bundle.graph("text"), arm) == expected
    assert OrtEngine(bundle, padding=arm).sessions["text"].shape == ["batch", expected.get("sequence", "sequence")]


def test_a_graph_of_one_length_has_nothing_to_pin(fixed):
    bundle = open_bundle(fixed)
    assert pinned(bundle.manifest.text, bundle.graph("text"), "trained") == {}


# The control: the same string alone and beside a caption of forty words and more.


def control(bundle, engine, arm):
    """Largest difference of the two embeddings of "a cat", of the two groups' images."""
    texts = {"alone": ["a cat"], "beside": ["a cat", LONG]}
    captions = pl.DataFrame(
        [(image, i, text) for image, group in texts.items() for i, text in enumerate(group)],
        schema=CAPTIONS.schema,
        orient="row",
    )
    rows = [(image, 0, "identity", "a cat", "a cat") for image in texts]
    lengths = with_lengths(table_of(rows), captions, bundle, arm)["text_length"].to_list()
    alone, beside = (
        encode_texts(engine, group, pad_to=length)[0] for group, length in zip(texts.values(), lengths, strict=True)
    )
    return float(np.abs(alone - beside).max())


@pytest.mark.parametrize(
    ("kind", "engine", "arm", "moves"),
    [
        (kind, engine, arm, kind == "tiny_siglip" and arm == "paper")
        for kind in ("tiny_clip", "tiny_siglip", "open_clip")
        for engine in ("ort", "torch")
        for arm in ("trained", "paper")
    ],
)
def test_control(kind, engine, arm, moves, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
    from checkpoints import exported, open_clip_spec

    from exporter.reference import TorchEngine
    from models import zoo

    known = zoo.load()
    monkeypatch.setattr(zoo, "load", lambda: {**known, "toy_open_clip": open_clip_spec(tmp_path)})
    bundle = open_bundle(exported(kind)[0])
    made = OrtEngine(bundle, "cpu", 8, arm) if engine == "ort" else TorchEngine.from_bundle(bundle, 8, "cpu", arm)
    assert made.stamp.padding == arm
    moved = control(bundle, made, arm)
    assert moved > 1e-3 if moves else moved <= 2e-6
