"""The suite that asks whether the gate is any good: that every damage is the damage it says, and what comes of a few."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from benchmarks import mutants
from benchmarks.coverage import covered, simulated, truth
from benchmarks.damage import graphs, honest, pixels, tokens
from benchmarks.damage.kinds import Absent, rehash
from benchmarks.damage.nodes import array, layer_inputs, names, weight_of
from benchmarks.damage.pictures import write_pictures
from lgip_ort.bundle import open_bundle
from lgip_ort.engine import OrtEngine
from models import zoo

KEYS = ("tiny_clip", "tiny_siglip")
TEXTS = ["A red bus, in the rain.", "two dogs", "Three yellow cats sitting on a green bench by the sea at night."]


@pytest.fixture
def copied(tmp_path):
    """A copy of a demo model's bundle, in a folder of its name."""

    def copy(key):
        folder = tmp_path / key
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(zoo.get(key).committed_bundle, folder)
        return folder

    return copy


def named(name):
    (found,) = [variant for variant in mutants.EVERY if variant.name == name]
    return found


def changed(folder, name):
    named(name).change(folder)
    rehash(folder)
    return OrtEngine(open_bundle(folder), "cpu", 4)


def vectors(engine, texts=TEXTS):
    out = np.empty((len(texts), engine.dim), np.float32)
    for rows, ids in engine.batches(texts):
        out[rows] = engine.embed_ids(ids)
    return out


def ids_of(engine, text="a dog"):
    ((_, ids),) = engine.batches([text])
    return ids[0].tolist()


def weights(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_names_are_told_apart():
    listed = [variant.name for variant in mutants.EVERY]
    assert len(set(listed)) == len(listed)
    assert len(mutants.DAMAGED) == 39


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("variant", [v for v in mutants.DAMAGED if v.group == "graph"], ids=lambda v: v.name)
def test_damage_to_a_graph_opens_and_moves_embeddings(copied, key, variant):
    """Every damaged graph is one that runs, and that gives something else; or there is nothing to damage."""
    folder = copied(key)
    whole = OrtEngine(open_bundle(folder), "cpu", 4)
    picture = np.random.default_rng(0).normal(0, 0.6, (2, 3, 64, 64)).astype(np.float32)
    try:
        damaged = changed(folder, variant.name)
    except Absent as reason:
        assert (variant.name, key) in {
            ("causal mask lost", "tiny_siglip"),
            ("fp16 end-of-text collision", "tiny_siglip"),
        }, reason
        return
    with np.errstate(invalid="ignore"):
        texts = np.abs(vectors(damaged) - vectors(whole)).max()
        images = np.abs(damaged.embed_pixels(picture) - whole.embed_pixels(picture)).max()
    assert not (texts < 1e-3 and images < 1e-3)


def test_the_transposed_weight_is_the_transposed_weight(copied):
    folder = copied("tiny_clip")
    path = folder / "onnx/text_model_fp16.onnx"
    before = weights(path)
    changed(folder, "projection transposed")
    after = weights(path)
    moved = [name for name in before if not np.array_equal(before[name], after[name])]
    assert moved == ["encoder.projection.weight"]
    assert np.array_equal(after[moved[0]], before[moved[0]].T)


def test_one_head_is_zeroed(copied):
    folder = copied("tiny_siglip")
    path = folder / "onnx/text_model_fp16.onnx"
    model = onnx.load(path)
    (bias,) = names(model, r"layers\.1\.self_attn\.v_proj\.bias$")
    weight = weight_of(model, bias)
    whole = array(model, weight)
    changed(folder, "one head zeroed")
    after = weights(path)
    assert not after[weight][:, :32].any()
    assert np.array_equal(after[weight][:, 32:], whole[:, 32:])
    assert not after[bias][:32].any()


def test_the_second_layer_is_left_out(copied):
    folder = copied("tiny_clip")
    changed(folder, "one layer dropped")
    entering = layer_inputs(onnx.load(folder / "onnx/vision_model_fp16.onnx"))
    assert entering[2] == entering[1] != entering[0]


def test_int8_keeps_a_twentieth_of_its_steps(copied):
    folder = copied("tiny_clip")
    changed(folder, "int8 with a bad range")
    model = onnx.load(folder / "onnx/text_model_fp16.onnx")
    weight = array(model, weight_of(model, names(model, r"layers\.0\.mlp\.fc1\.bias$")[0]))
    assert 3 <= len(set(np.abs(weight).ravel().tolist())) <= 127 // 20 + 1


@pytest.mark.parametrize(
    ("key", "name", "expected"),
    [
        ("tiny_clip", "missing end-of-text", lambda ids: ids[:-1]),
        ("tiny_clip", "missing start-of-text", lambda ids: ids[1:]),
        ("tiny_siglip", "missing end-of-text", lambda ids: ids),  # the end of the text is the padding
        ("tiny_siglip", "wrong pad id", lambda ids: [i for i in ids if i != 1] + [1] + [0] * (ids.count(1) - 1)),
    ],
)
def test_damage_to_tokens(copied, key, name, expected):
    folder = copied(key)
    whole = ids_of(OrtEngine(open_bundle(folder), "cpu", 4))
    assert ids_of(changed(folder, name)) == expected(whole)


@pytest.mark.parametrize("key", KEYS)
def test_case_is_kept(copied, key):
    folder = copied(key)
    whole = OrtEngine(open_bundle(folder), "cpu", 4)
    assert ids_of(whole, "A DOG") == ids_of(whole, "a dog")
    damaged = changed(folder, "lower-casing dropped")
    assert ids_of(damaged, "A DOG") != ids_of(damaged, "a dog") == ids_of(whole, "a dog")


def test_what_a_model_has_not_can_not_be_damaged(copied):
    with pytest.raises(Absent, match="no token at the start"):
        named("missing start-of-text").change(copied("tiny_siglip"))
    with pytest.raises(Absent, match="no removal of punctuation"):
        named("punctuation kept").change(copied("tiny_clip"))
    with pytest.raises(Absent, match="nothing is added to the scores of attention"):
        named("causal mask lost").change(copied("tiny_siglip"))


def test_texts_are_cut_with_their_end(copied):
    engine = OrtEngine(open_bundle(copied("tiny_clip")), "cpu", 4)
    long, short = ids_of(tokens.Truncated(engine), TEXTS[2]), ids_of(tokens.Truncated(engine), "a dog")
    assert short == ids_of(engine, "a dog")
    assert long[:7] == ids_of(engine, TEXTS[2])[:7]
    assert set(long[7:]) == {944}


def test_padding_to_the_longest(copied):
    engine = OrtEngine(open_bundle(copied("tiny_siglip")), "cpu", 4, "paper")
    assert len(ids_of(OrtEngine(open_bundle(copied("tiny_siglip")), "cpu", 4))) == 24
    assert ids_of(tokens.ToTheLongest(engine))[-1] == 1
    assert len(ids_of(tokens.ToTheLongest(engine))) < 8


def test_damage_to_pixels(copied, tmp_path):
    from PIL import Image

    write = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    picture = Image.fromarray(write)
    engine = OrtEngine(open_bundle(copied("tiny_clip")), "cpu", 4)
    whole = engine.pixels(picture)
    assert np.array_equal(pixels.Bgr(engine).pixels(picture), whole[::-1])
    assert np.allclose(pixels.NotDivided(engine).pixels(picture), ((whole * 0.5 + 0.5) * 255 - 0.5) / 0.5, atol=1e-3)
    assert pixels.ChannelsLast(engine).pixels(picture)[0, 0, :3].tolist() == whole[:, 0, 0].tolist()
    assert pixels.NoAntialias(engine).pixels(picture).std() > 1.2 * whole.std()
    rows = np.stack([whole, whole[::-1]])
    assert np.array_equal(pixels.Stale(engine).embed_pixels(rows), engine.embed_pixels(rows)[::-1])


def test_honest_layouts_give_the_same(copied):
    whole = vectors(OrtEngine(open_bundle(copied("tiny_clip")), "cpu", 4))
    for name in ("external data", "another layout"):
        assert np.array_equal(vectors(changed(copied("tiny_clip"), name)), whole), name


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """tiny_clip over 60 pictures."""
    folder = tmp_path_factory.mktemp("mutants")
    (folder / "pictures").mkdir()
    (folder / "tiny_clip").mkdir()
    return mutants.Bench("tiny_clip", write_pictures(folder / "pictures"), folder / "tiny_clip", 60)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("BGR", "drifted"),
        ("towers of two checkpoints", "drifted"),
        ("fp16 overflowed", "failed"),
        ("wrong pad id", "no effect"),
        ("punctuation kept", "cannot matter"),
        ("as it is", "inconclusive"),  # of 60 pictures: too few for shares
    ],
)
def test_outcomes(asked, name, outcome):
    found = asked.put(named(name))
    assert found.outcome == outcome
    assert found.right is (name != "as it is")
    if outcome == "drifted":
        assert found.images in (30, 50, 60)
        assert found.ratio > 1
    if outcome == "no effect":
        assert found.max_ds == 0


def test_a_bundle_that_is_refused(asked):
    def spoil(folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["embedding_dim"] = 64
        (folder / "manifest.json").write_text(json.dumps(manifest))

    found = asked.put(mutants.Variant("spoiled", "graph", "x", spoil))
    assert (found.outcome, found.right) == ("refused", True)
    assert "64" in found.by


def test_session_options_are_given_back(asked):
    plain = onnxruntime.SessionOptions
    assert asked.put(named("not optimised")).max_ds < 1e-3
    assert onnxruntime.SessionOptions is plain


def test_document_is_a_table(asked):
    text = mutants.document({"tiny_clip": [asked.put(named("punctuation kept"))]})
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {8}
    assert "| punctuation kept | " in text


def test_levels_and_exports_are_honest():
    assert {variant.group for variant in honest.VARIANTS} == {"honest"}
    assert len(honest.VARIANTS) >= 12
    assert len(graphs.VARIANTS) + len(tokens.VARIANTS) + len(pixels.VARIANTS) == len(mutants.DAMAGED)


def test_simulated_scores_have_the_truth_they_are_said_to_have():
    pairs = simulated(40_000, np.random.default_rng(0), alone=False)
    gaps = (pairs["s"] - pairs["s_perturbed"]).to_numpy()
    flip = (pairs["kind"] == "flip").to_numpy()
    known = truth()
    assert gaps[flip].mean() == pytest.approx(known["E_sens"], abs=1e-3)
    assert (gaps[flip] > 0).mean() == pytest.approx(known["PR"], abs=3e-3)
    assert np.abs(gaps[~flip]).mean() == pytest.approx(known["E_inv"], abs=2e-4)


def test_intervals_over_images_hold_and_those_over_pairs_do_not():
    """80 repeats; the command has 500, and more images."""
    over_images, over_pairs = covered(60, 80), covered(60, 80, alone=True)
    assert all(0.88 <= share <= 1 for share in over_images.values())
    assert all(share < 0.85 for share in over_pairs.values())
