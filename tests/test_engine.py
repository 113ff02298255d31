from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image
from toy import EOT, TEXT, UNKNOWN, VISION, in_precisions, make_bundle, rehash, weights

from lgip_ort import provider, session
from lgip_ort.bundle import open_bundle
from lgip_ort.encode import encode_images, encode_texts
from lgip_ort.engine import OrtEngine, provider_for
from lgip_ort.errors import UsageFault
from lgip_ort.text import TextEncoder

TEXTS = ["a red dog", "two cats on a boat in the picture", "", "a dog", "the blue bus . " * 4, "a red dog"]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def noise(n):
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (9 + i, 11, 3), dtype=np.uint8)) for i in range(n)]


def test_vectors_by_hand(toy):
    """The toy's text vector is the normalised sum of its words' vectors; an image's is linear in its pixels."""
    bundle = open_bundle(toy)
    engine = OrtEngine(bundle)
    ids = TextEncoder(bundle).ids(TEXTS)
    table = weights(toy / TEXT)["table"]
    expected = unit(np.array([table[row].sum(0) for row in ids]))
    np.testing.assert_allclose(encode_texts(engine, TEXTS), expected, atol=1e-6)
    green = Image.new("RGB", (640, 480), (0, 255, 0))  # -1, 1, -1 after normalising
    pixels = np.repeat([-1, 1, -1], 64).astype(np.float32)
    np.testing.assert_allclose(
        encode_images(engine, [green]), [unit(pixels @ weights(toy / VISION)["weight"])], atol=1e-6
    )


@pytest.mark.parametrize("pad_matters", [False, True])
def test_batch_size_does_not_matter(tmp_path, pad_matters):
    bundle = open_bundle(make_bundle(tmp_path / "b", pad_matters=pad_matters))
    one, many = (OrtEngine(bundle, batch_size=size) for size in (1, 64))
    for a, b in (
        (encode_texts(one, TEXTS), encode_texts(many, TEXTS)),
        (encode_images(one, noise(5)), encode_images(many, noise(5))),
    ):
        assert a.shape == b.shape
        assert (a * b).sum(1).min() >= 0.9999
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("batch_size", [2, 3, 5])
def test_last_batch_is_smaller(toy, batch_size):
    engine = OrtEngine(open_bundle(toy), batch_size=batch_size)
    images, texts = encode_images(engine, noise(5)), encode_texts(engine, TEXTS[:5])
    assert images.shape == texts.shape == (5, 16)
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, atol=1e-6)
    assert len(np.unique(images.round(4), axis=0)) == 5


def test_batches_hold_texts_of_like_length(toy):
    engine = OrtEngine(open_bundle(toy), batch_size=2)
    embed, shapes = engine.embed_ids, []
    engine.embed_ids = lambda ids: (shapes.append(ids.shape), embed(ids))[1]
    vectors = encode_texts(engine, ["a dog", "a dog " * 11, "a cat", "a cat " * 11])
    assert shapes == [(2, 3), (2, 23)]
    np.testing.assert_allclose(vectors[2:3], encode_texts(engine, ["a cat"]), atol=1e-6)


def test_nothing_to_encode(toy):
    engine = OrtEngine(open_bundle(toy))
    assert encode_texts(engine, []).shape == encode_images(engine, []).shape == (0, 16)


@pytest.mark.parametrize("pad_matters", [False, True])
def test_neighbours_do_not_matter(tmp_path, pad_matters):
    engine = OrtEngine(open_bundle(make_bundle(tmp_path / "b", pad_matters=pad_matters)))
    alone = encode_texts(engine, ["a cat"])[0]
    beside = encode_texts(engine, ["a dog on a bus " * 8, "a cat"])[1]
    np.testing.assert_allclose(alone, beside, atol=1e-6)


def test_another_padded_length_matters_where_the_bundle_says_so(tmp_path, toy):
    bundle = open_bundle(make_bundle(tmp_path / "b", pad_matters=True))
    paper, trained = OrtEngine(bundle, padding="paper"), OrtEngine(bundle)
    assert np.abs(encode_texts(paper, ["a cat"], pad_to=4) - encode_texts(paper, ["a cat"])).max() > 0.01
    for same in (encode_texts(paper, ["a cat"]), encode_texts(trained, ["a cat"], pad_to=24)):
        np.testing.assert_allclose(same, encode_texts(trained, ["a cat"]), atol=1e-6)
    with pytest.raises(ValueError, match=r"input 'input_ids': \[1, 4\] found, \['batch', 24\] expected"):
        encode_texts(trained, ["a cat"], pad_to=4)
    exact = OrtEngine(open_bundle(toy))
    np.testing.assert_allclose(encode_texts(exact, ["a cat"], pad_to=4), encode_texts(exact, ["a cat"]), atol=1e-6)


def test_pad_id_of_the_manifest_is_used(tmp_path):
    folder = make_bundle(tmp_path / "b", pad_matters=True)
    right = encode_texts(OrtEngine(open_bundle(folder)), ["a cat"])[0]
    rehash(folder, text={"pad_id": UNKNOWN})
    bundle = open_bundle(folder)
    wrong = encode_texts(OrtEngine(bundle), ["a cat"])[0]
    ids = [*TextEncoder(bundle).ids(["a cat"])[0], *[UNKNOWN] * 21]
    assert ids[2] == EOT
    np.testing.assert_allclose(wrong, unit(weights(folder / TEXT)["table"][ids].sum(0)), atol=1e-6)
    assert wrong @ right < 0.9


def test_stamp(toy):
    bundle = open_bundle(toy)
    stamp = OrtEngine(bundle, "cpu").stamp
    assert (stamp.engine, stamp.model, stamp.artifact, stamp.padding) == ("ort", "toy", bundle.sha256, "trained")
    assert stamp.weights == {"source": "random", "name": "seed 0", "revision": None, "sha256": "0" * 64}
    assert stamp.provider == {"asked": "cpu", "active": "cpu", "options": {}}
    assert stamp.precision == {"asked": "fp16", "executed": "fp32 (cast)"}
    assert set(stamp.versions) >= {"numpy", "pillow", "tokenizers", "onnxruntime"}


def test_arm_is_stamped(toy):
    assert OrtEngine(open_bundle(toy), padding="paper").stamp.padding == "paper"
    with pytest.raises(UsageFault, match="unknown padding 'trainde'; did you mean 'trained'"):
        OrtEngine(open_bundle(toy), padding="trainde")


@pytest.mark.parametrize(("asked", "executed"), [("fp16", "fp32 (cast)"), ("fp32", "fp32"), ("int8", "int8 (dynamic)")])
def test_precision_is_chosen_and_stamped(asked, executed, tmp_path):
    folder = in_precisions(make_bundle(tmp_path / "b"), "fp16", "fp32", "int8")
    for graph in open_bundle(folder).manifest.graphs:
        if graph.precision != asked:  # the session would not load it
            (folder / graph.file).write_bytes(b"another graph")
    rehash(folder)
    engine = OrtEngine(open_bundle(folder), "cpu", precision=asked)
    assert engine.stamp.precision == {"asked": asked, "executed": executed}
    with pytest.raises(UsageFault, match="precision fp16 found, fp32 expected; to have it: python"):
        OrtEngine(open_bundle(in_precisions(folder, "fp16")), precision="fp32")


def test_int8_runs_on_the_cpu_and_says_so(tmp_path, monkeypatch):
    """CUDA has no kernel for its products: `auto` is the CPU, and CUDA by name an error, with or without a device."""
    bundle = open_bundle(in_precisions(make_bundle(tmp_path / "b"), "fp16", "int8"))
    monkeypatch.setattr(provider, "cuda_problem", lambda: None)
    assert provider_for("auto", "fp16").key == "cuda" and provider_for("auto", "int8").key == "cpu"
    assert OrtEngine(bundle, precision="int8").stamp.provider["active"] == "cpu"
    with pytest.raises(UsageFault, match="CUDAExecutionProvider has no kernel for the products of an int8 graph"):
        OrtEngine(bundle, "cuda", precision="int8")


def test_width_that_is_not_the_manifest_s(toy, tmp_path):
    folder = shutil.copytree(toy, tmp_path / "b")
    rehash(folder, embedding_dim=17)
    with pytest.raises(UsageFault, match=rf"b/{VISION}: 16 values an embedding, 17 expected"):
        OrtEngine(open_bundle(folder))


def test_a_provider_that_leaves_the_work_to_the_cpu_is_refused(toy, monkeypatch, tmp_path):
    """Active in name; what its nodes cost is measured, and stamped where it is enough."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # profiles of sessions that are refused stay behind
    other = provider.Provider("other", "CPUExecutionProvider", "cpu", lambda: None)
    monkeypatch.setitem(provider.PROVIDERS, "other", other)
    stamp = OrtEngine(open_bundle(toy), "other").stamp
    assert set(stamp.placement) == {"vision", "text"} and stamp.placement["text"]["time"] == 1.0
    assert "placement" not in stamp.identity() and stamp.identity()["provider"]["active"] == "other"
    monkeypatch.setattr(session, "_placement", lambda *_: session.Placement(0.99, 0.89))
    with pytest.raises(UsageFault, match="CPUExecutionProvider computes 89% of the vision tower's time, 90% expected"):
        OrtEngine(open_bundle(toy), "other")


def test_out_of_memory_halves_the_batch(toy, caplog):
    """As a whole: the session refuses more than four rows, the vectors are those of a session that does not."""
    right, engine = (OrtEngine(open_bundle(toy), "cpu") for _ in range(2))
    run = engine.sessions["vision"].__class__.__call__

    class Small(session.Session):
        def __call__(self, array):
            if len(array) > 4:
                raise RuntimeError("Failed to allocate memory for requested buffer of size 1234")
            return run(self, array)

    for one in engine.sessions.values():
        one.__class__ = Small
    np.testing.assert_array_equal(encode_images(engine, noise(11)), encode_images(right, noise(11)))
    assert "out of memory on a batch of 11 images: going on with 6" in caplog.text
