from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from lgip_ort import retrieval
from lgip_ort.bootstrap import ImageSums
from lgip_ort.retrieval import Gallery, gallery, image_key, in_gallery, matched_gap, ranks, recalls, spread, text_key


def unit(rows):
    array = np.asarray(rows, np.float32)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def made(pairs, images, texts):
    """A gallery of (text, image) pairs."""
    text, image = np.array(pairs).T
    return Gallery([str(n) for n in range(len(images))], unit(images), unit(texts), text, image)


def by_hand(of):
    """Ranks, pair by pair and in double precision."""
    scores = of.texts.astype(np.float64) @ of.images.astype(np.float64).T
    owners = {(t, i) for t, i in zip(of.text.tolist(), of.image.tolist(), strict=True)}
    to_image = [
        sum(scores[t, j] >= scores[t, i] - 1e-6 for j in range(len(of.images)) if (t, j) not in owners)
        for t, i in zip(of.text.tolist(), of.image.tolist(), strict=True)
    ]
    to_text = []
    for i in range(len(of.images)):
        best = max(scores[t, i] for t in range(len(of.texts)) if (t, i) in owners)
        to_text.append(sum(scores[t, i] >= best - 1e-6 for t in range(len(of.texts)) if (t, i) not in owners))
    return to_image, to_text


@pytest.mark.parametrize("chunk", [1, 3, 7, 4096])
def test_ranks(monkeypatch, chunk):
    """Against a plain count; texts of several images, images of one to four texts, whatever fits into memory at once."""
    monkeypatch.setattr(retrieval, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    pairs = [(t, t % 9) for t in range(23)] + [(3, 5), (11, 0), (11, 7)]
    of = made(pairs, rng.normal(size=(9, 4)), rng.normal(size=(23, 4)))
    to_image, to_text = ranks(of)
    assert (to_image.tolist(), to_text.tolist()) == by_hand(of)
    assert len(set(to_image.tolist())) > 4


def test_any_caption_of_the_image_will_do():
    """The second caption of image 0 is nearer to image 1, the first is found."""
    of = made([(0, 0), (1, 0), (2, 1)], [(1, 0), (0, 1)], [(1, 0), (0.1, 1), (0, 1)])
    to_image, to_text = ranks(of)
    assert to_text.tolist() == [0, 0]
    assert to_image.tolist() == [0, 1, 0]


def test_a_tie_is_a_failure():
    """A model that gives everything one vector finds nothing."""
    of = made([(n, n) for n in range(12)], np.ones((12, 3)), np.ones((12, 3)))
    found = recalls(of)
    assert {key: value.mean for key, value in found.items()} == dict.fromkeys(found, 0.0)
    assert list(found) == [(f"R@{k}", kind) for kind in ("image_to_text", "text_to_image") for k in (1, 5, 10)]


def test_recall_counts_ranks_below_k():
    """Text 0 has five images above its own, text 1 one, text 2 none."""
    images = [(1, 0)] + [(1, 0.01 * n) for n in range(1, 7)] + [(0, 1)]
    of = made([(0, 5), (1, 1), (2, 7)], images, [(1, 0), (1, 0), (0, 1)])
    to_image, _ = ranks(of)
    assert to_image.tolist() == [5, 1, 0]
    found = recalls(of)
    assert [found[f"R@{k}", "text_to_image"].mean for k in (1, 5, 10)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert found["R@1", "text_to_image"].n == 3


def test_matched_gap():
    """The mean over all others is what shuffled pairs give on average."""
    rng = np.random.default_rng(1)
    of = made([(n, n % 6) for n in range(12)], rng.normal(size=(6, 5)), rng.normal(size=(12, 5)))
    scores = of.texts @ of.images.T
    gaps = [scores[t, i] - np.delete(scores[t], i).mean() for t, i in zip(of.text, of.image, strict=True)]
    found = matched_gap(of)
    assert found.mean == pytest.approx(np.mean(gaps), abs=1e-6)
    assert found.total[2] == pytest.approx(gaps[2] + gaps[8], abs=1e-6)
    assert (found.n, found.images) == (12, 6)


def frame(image_ids, texts):
    """Vectors of these images and texts, in no order that means anything."""
    keys = [("vision", image_key(i)) for i in image_ids] + [("text", text_key(*t)) for t in texts]
    vectors = [[float(n), 1.0] for n in range(len(keys))]
    schema = pl.Schema([("tower", pl.String()), ("key", pl.UInt64()), ("vector", pl.Array(pl.Float32, 2))])
    rows = [(*key, vector) for key, vector in zip(keys, vectors, strict=True)]
    return pl.DataFrame(rows, schema=schema, orient="row")


def captions(rows):
    return pl.DataFrame(rows, schema={"image_id": pl.String, "text": pl.String, "text_length": pl.UInt16}, orient="row")


def test_gallery_of_a_run():
    """Captions once each; an image without a vector is left out, and so is a text; lengths tell texts apart."""
    vectors = frame(["c", "a"], [("x", None), ("y", None), ("y", 7)])
    parts = [
        captions([("a", "x", None), ("a", "x", None), ("a", "y", None), ("b", "x", None)]),
        captions([("c", "y", 7), ("c", "z", None)]),
    ]
    of = gallery(parts, vectors)
    assert of.image_ids == ["c", "a"]
    assert of.images.tolist() == [[0, 1], [1, 1]]
    found = {(of.image_ids[i], tuple(of.texts[t].tolist())) for t, i in zip(of.text, of.image, strict=True)}
    assert found == {("a", (2, 1)), ("a", (3, 1)), ("c", (4, 1))}


@pytest.mark.parametrize("rows", [[], [("a", "x", None)], [("a", "x", None), ("b", "x", None)], [("a", "q", None)]])
def test_too_little_for_a_gallery(rows):
    assert gallery([captions(rows)], frame(["a"], [("x", None)])) is None


def test_the_gallery_is_the_same_whatever_the_order():
    ids = [f"{n}.jpg" for n in range(2000)]
    kept = [i for i in ids if in_gallery(i, 0.25)]
    assert 400 < len(kept) < 600
    assert [i for i in ids if in_gallery(i, 1.0)] == ids
    assert {i for i in ids if in_gallery(i, 0.1)} < set(kept)


def test_spread_over_all_images():
    sums = ImageSums(np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5, 6]))
    out = spread(sums, ["b", "d"], {"a": 0, "b": 1, "c": 2, "d": 3}, 4)
    assert out.total.tolist() == [0, 1, 0, 2]
    assert out.weight.tolist() == [0, 3, 0, 4]
    assert (out.count.tolist(), out.mean) == ([0, 5, 0, 6], sums.mean)
