from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from made import MadeEngine, make_table
from PIL import Image

from lgip_ort import encode
from lgip_ort.encode import read_ahead
from lgip_ort.errors import RunFault
from lgip_ort.retrieval import image_key, text_key
from lgip_ort.score import SCORES, SKIPPED, Local, Shard, score_shard

COLOURS = {"r": (255, 0, 0), "g": (0, 255, 0), "b": (0, 0, 255)}


@pytest.fixture
def root(tmp_path) -> Path:
    """r.png, g.png and b.png of one colour, bad.png that is no image."""
    for name, colour in COLOURS.items():
        Image.new("RGB", (2, 2), colour).save(tmp_path / f"{name}.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    return tmp_path


def images(*names):
    return pl.DataFrame({"image_id": names, "path": [f"{name.rstrip('0123456789')}.png" for name in names]})


def run(engine, root, names, table, sample=1.0, seen=None):
    progress = Counter() if seen is None else seen
    listed = images(*names)
    pixels = read_ahead(engine, [root / path for path in listed["path"]])
    return score_shard(engine, pixels, listed, table, sample, lambda stage, n: progress.update({stage: n}))


def test_scores_by_hand(root):
    table = make_table(
        [("r", "flip", "colour"), ("g", "flip", "colour"), ("b", "paraphrase", "wrapper")],
        text=["red", "green", "blue"],
        perturbed=["green", "half", "half"],
    )
    engine = MadeEngine({"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "half": (0, 0.6, 0.8)})
    seen = Counter()
    shard = run(engine, root, ["r", "g", "b"], table, seen=seen)
    assert shard.scores.schema == SCORES
    assert shard.scores["pair_id"].to_list() == [1, 2, 3]
    np.testing.assert_allclose(shard.scores["s"], [1, 1, 1])
    np.testing.assert_allclose(shard.scores["s_perturbed"], [0, 0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(shard.scores["text_cosine"], [0, 0.6, 0.8], rtol=1e-6)
    assert shard.skipped.equals(pl.DataFrame(schema=SKIPPED))
    assert seen == {"images": 3, "texts": 4}
    assert set(shard.seconds) == {"images", "texts", "total"}


def test_every_text_is_encoded_once_but_for_the_control(root):
    table = make_table(
        [
            ("r", "identity", "identity"),
            ("r", "flip", "colour"),
            ("g", "identity", "identity"),
            ("g", "flip", "colour"),
        ],
        text=["one", "one", "two", "two"],
        perturbed=["one", "two", "two", "three"],
    )
    engine = MadeEngine()
    run(engine, root, ["r", "g"], table)
    assert [sorted(texts) for texts in engine.texts] == [["one", "three", "two"], ["one", "two"]]


def test_control_is_the_noise_of_the_engine(root):
    """An engine whose second answer differs from its first has an identity error, and no other."""

    class Noisy(MadeEngine):
        def encode_texts(self, texts, pad_to=None):
            vectors = super().encode_texts(texts)
            return vectors if len(self.texts) == 1 else np.roll(vectors, len(self.texts) - 1, axis=1)

    table = make_table([("r", "identity", "identity"), ("r", "flip", "colour")], text=["a", "a"], perturbed=["a", "b"])
    shard = run(Noisy(), root, ["r"], table)
    assert shard.scores["s"].to_list() == [1, 1]
    assert shard.scores["s_perturbed"].to_list() == [0, 1]


def test_control_keeps_its_rows(root):
    """The control is encoded in another order than it stands in."""
    vectors = {"a": (1, 0, 0), "b": (0, 1, 0), "c": (0, 0, 1)}
    table = make_table([("r", "identity", "identity")] * 3, text=list("abc"), perturbed=list("abc"))
    shard = run(MadeEngine(vectors), root, ["r"], table)
    assert shard.scores["s"].to_list() == shard.scores["s_perturbed"].to_list() == [1, 0, 0]


class Padded(MadeEngine):
    """A text's vector turns with its padded length; `calls` records lengths and texts."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def encode_texts(self, texts, pad_to=None):
        self.calls.append((pad_to, list(texts)))
        angles = [(pad_to or 0) / 10 + len(text) / 100 for text in texts]
        return np.array([(np.cos(a), np.sin(a), 0) for a in angles], np.float32).reshape(len(texts), 3)


def test_a_vector_belongs_to_a_text_and_a_length(root):
    table = make_table(
        [("r", "flip", "colour")] * 3 + [("g", "flip", "colour")],
        text=["a", "a", "a", "a"],
        perturbed=["bb", "a", "bb", "bb"],
        text_length=[5, 5, 9, 5],
        perturbed_length=[5, 9, 5, 9],
    )
    engine = Padded()
    shard = run(engine, root, ["r", "g"], table)
    assert engine.calls == [(5, ["a", "bb"]), (9, ["a", "bb"])]
    turn = [0.01, 0.4, 0.39, 0.41]  # angle between the two texts: 0.1 a token, 0.01 a letter
    np.testing.assert_allclose(shard.scores["text_cosine"], np.cos(turn), rtol=1e-6)
    np.testing.assert_allclose(shard.scores["s"], [np.cos(0.51), np.cos(0.51), np.cos(0.91), np.sin(0.51)], rtol=1e-6)
    np.testing.assert_allclose(
        shard.scores["s_perturbed"], [np.cos(0.52), np.cos(0.91), np.cos(0.52), np.sin(0.92)], rtol=1e-6
    )
    texts = shard.embeddings.filter(tower="text")
    assert set(texts["key"]) == {text_key(*caption) for caption in (("a", 5), ("a", 9))}


def test_control_is_padded_as_its_pair_is(root):
    """Encoded again at the length of its own group, whether that is the caption's length or not."""
    table = make_table(
        [(name, "identity", "identity") for name in "rgb"],
        text=["a", "bb", "ccc"],
        perturbed=["a", "bb", "ccc"],
        text_length=[7, 7, 4],
        perturbed_length=[7, 5, 4],
    )
    engine = Padded()
    shard = run(engine, root, ["r", "g", "b"], table)
    assert engine.calls[3:] == [(4, ["ccc"]), (5, ["bb"]), (7, ["a"])]
    assert sorted(engine.calls[:3]) == [(4, ["ccc"]), (5, ["bb"]), (7, ["a", "bb"])]
    np.testing.assert_allclose(shard.scores["text_cosine"], np.cos([0, 0.2, 0]), rtol=1e-6)


def test_no_more_texts_in_a_call_than_it_takes(root, monkeypatch):
    monkeypatch.setattr(encode, "TEXTS_AT_ONCE", 3)
    n = 7
    table = make_table(
        [("r", "flip", "colour")] * n,
        text=["t" * i for i in range(n)],
        perturbed=["p" * i for i in range(1, n + 1)],
        text_length=[3] * n,
        perturbed_length=[6] * n,
    )
    engine = Padded()
    shard = run(engine, root, ["r"], table)
    assert [(length, len(texts)) for length, texts in engine.calls] == [(3, 3), (3, 3), (3, 1), (6, 3), (6, 3), (6, 1)]
    np.testing.assert_allclose(shard.scores["text_cosine"], np.cos([0.31] * n), rtol=1e-5)


@pytest.mark.parametrize("order", [["bad", "r", "g", "b"], ["r", "bad", "g", "b"], ["r", "g", "b", "bad"]])
def test_unreadable_image_is_skipped_and_moves_no_other(root, order):
    table = make_table([(name, "flip", "colour") for name in order], text=[f"of {name}" for name in order])
    vectors = {f"of {name}": tuple(np.array(colour) / 255) for name, colour in COLOURS.items()}
    seen = Counter()
    engine = MadeEngine(vectors)
    engine.batch_size = 2
    shard = run(engine, root, order, table, seen=seen)
    assert shard.skipped.rows() == [("bad", "bad.png", "UnidentifiedImageError: cannot identify image file 'bad.png'")]
    assert shard.scores["pair_id"].to_list() == [i + 1 for i, name in enumerate(order) if name != "bad"]
    assert shard.scores["s"].to_list() == [1, 1, 1]
    assert seen["images"] == 4


def test_no_readable_image(root):
    shard = run(MadeEngine(), root, ["bad"], make_table([("bad", "flip", "colour"), ("bad", "identity", "identity")]))
    assert shard.scores.equals(pl.DataFrame(schema=SCORES))
    assert shard.skipped["image_id"].to_list() == ["bad"]
    assert len(shard.embeddings) == 0


@pytest.mark.parametrize("count", [1, 3])
def test_score_that_is_not_finite_fails_the_run(root, count):
    table = make_table([("r", "flip", "colour")] * 5, perturbed=["fine", *["wrong"] * count, *["fine"] * (4 - count)])
    engine = MadeEngine({"wrong": (float("nan"), 0, 0)})
    with pytest.raises(RunFault, match=rf"{count} of 5 scores .* image r, 'text 1' against 'wrong'"):
        run(engine, root, ["r"], table)


def test_more_texts_than_one_call_takes(root, monkeypatch):
    n = 1500
    monkeypatch.setattr(encode, "TEXTS_AT_ONCE", 2048)
    vectors = {f"t{i}": (i / n, 0, 0) for i in range(2 * n)}
    table = make_table(
        [("r", "flip", "colour")] * n,
        text=[f"t{i}" for i in range(n)],
        perturbed=[f"t{i + n}" for i in range(n)],
    )
    engine, seen = MadeEngine(vectors), Counter()
    shard = run(engine, root, ["r"], table, seen=seen)
    assert len(engine.texts) == 2
    assert seen["texts"] == 2 * n
    np.testing.assert_allclose(shard.scores["s"], np.arange(n) / n, rtol=1e-6)
    np.testing.assert_allclose(shard.scores["s_perturbed"], np.arange(n, 2 * n) / n, rtol=1e-6)


def test_sample_of_vectors(root):
    """Images and their captions: the same whatever the shards, more of them with a larger share."""
    names = [f"r{i}" for i in range(40)]
    table = make_table([(name, "flip", "colour") for name in names], text=[f"a {n}" for n in names])

    def keys(share, names):
        return set(run(MadeEngine(), root, names, table, share).embeddings.select("tower", "key").rows())

    every, half, none = (keys(share, names) for share in (1.0, 0.5, 0.0))
    assert len(every) == 40 + 40
    assert none == set()
    assert 20 < len(half) < 60
    assert {key for tower, key in half if tower == "text"} == {
        text_key(f"a {n}", None) for n in names if ("vision", image_key(n)) in half
    }
    assert half < every
    assert keys(0.5, names[:9]) | keys(0.5, names[9:]) == half
    towers = Counter(tower for tower, _ in every)
    assert towers == {"vision": 40, "text": 40}


def parts(*names):
    """Shards of the images called `names`, a tuple each, and what reads their pairs: one an image."""
    shards, start = [], 0
    for index, part in enumerate(names):
        shards.append(Shard(index, images(*part), start, len(part), f"{index}.parquet"))
        start += len(part)
    table = make_table([(name, "flip", "colour") for part in names for name in part])
    return shards, lambda shard: table[shard.start : shard.start + shard.rows]


def test_every_shard_gets_its_own_images(root):
    """One that can't be read, and one shard of such alone, move none of the others."""
    shards, pairs = parts(("r", "bad", "g"), ("bad1",), ("b", "r1"))
    engine = MadeEngine(
        {f"text {i}": tuple(np.array(COLOURS[n[0]]) / 255) for i, n in enumerate(["r", "b", "g", "b", "b", "r"])}
    )
    engine.batch_size = 2
    found = list(Local(engine).score(root, shards, pairs, 1.0, lambda *_: None))
    assert [shard for shard, _ in found] == shards
    assert [made.scores["pair_id"].to_list() for _, made in found] == [[1, 3], [], [5, 6]]
    assert [made.scores["s"].to_list() for _, made in found] == [[1, 1], [], [1, 1]]
    assert [made.skipped["image_id"].to_list() for _, made in found] == [["bad"], ["bad1"], []]


def test_what_pillow_warns_about_skips_no_image(root, monkeypatch):
    """Here warnings are errors, and an error in a decoder is a reason to skip."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3)  # of four: it warns
    shards, pairs = parts(("r", "g"))
    ((_, made),) = Local(MadeEngine()).score(root, shards, pairs, 1.0, lambda *_: None)
    assert made.skipped.is_empty()


def test_threads_end_with_the_shards_even_at_a_fault(root):
    """Whose traceback holds all that was at work."""
    threads = set()

    class Watched(MadeEngine):
        def pixels(self, image):
            threads.add(threading.current_thread())
            return super().pixels(image)

    shards, pairs = parts(*[("r", "g")] * 20)
    engine = Watched({"text 2": (float("nan"), 0, 0)})
    with pytest.raises(RunFault, match="not finite") as fault:
        for _ in Local(engine).score(root, shards, pairs, 1.0, lambda *_: None):
            assert threads and threading.current_thread() not in threads
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert fault.tb is not None
