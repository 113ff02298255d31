from __future__ import annotations

import threading

import numpy as np
import pytest
from made import MadeEngine
from PIL import Image

from lgip_ort import encode as encode_module
from lgip_ort import image as image_module
from lgip_ort.bundle import open_bundle
from lgip_ort.encode import embed_pixels, encode_texts, read_ahead
from lgip_ort.engine import OrtEngine
from lgip_ort.image import ImageFault, quiet, read_pixels
from models import zoo


@pytest.fixture
def paths(tmp_path):
    """Twenty images of noise, the eighth of which is none."""
    rng = np.random.default_rng(0)
    for n in range(20):
        Image.fromarray(rng.integers(0, 256, (9 + n % 5, 11, 3), dtype=np.uint8)).save(tmp_path / f"{n:02d}.png")
    (tmp_path / "07.png").write_bytes(b"no image")
    return sorted(tmp_path.glob("*.png"))


@pytest.mark.parametrize("key", ["tiny_clip", "tiny_siglip"])
def test_neither_batch_size_nor_threads_change_a_bit_on_a_cpu(paths, key):
    """In real towers; batches of texts also have other neighbours in each case."""
    bundle = open_bundle(zoo.get(key).committed_bundle)
    texts = [f"{'a red dog ' * (n % 6)}{w}" for n, w in enumerate(["cat", "bus", "boat", "bird", "horse"] * 20)]
    images, captions = [], []
    for size, threads in ((1, None), (7, 1), (64, None)):
        engine = OrtEngine(bundle, "cpu", size, threads=threads)
        vectors, faults = embed_pixels(engine, read_ahead(engine, paths))
        assert [n for n, fault in enumerate(faults) if fault is not None] == [7]
        images.append(vectors.tobytes())
        captions.append(encode_texts(engine, texts).tobytes())
    assert len(vectors) == 19 and len(np.unique(vectors.round(4), axis=0)) == 19
    assert len(set(images)) == len(set(captions)) == 1


def test_texts_in_slices(toy, monkeypatch):
    engine, seen = OrtEngine(open_bundle(toy), "cpu"), []
    texts = ["a dog", "two cats on a boat", "", "a red bus", "a dog", "a photo of two red cats", "one bird"]
    whole = encode_texts(engine, texts)
    monkeypatch.setattr(encode_module, "TEXTS_AT_ONCE", 3)
    assert (encode_texts(engine, texts, progress=seen.append) == whole).all()
    assert sum(seen) == 7


def test_an_image_that_hangs_is_a_fault_and_the_others_are_read(paths, monkeypatch):
    release = threading.Event()

    def read(path, prepare):
        if path.name == "03.png":
            release.wait(60)
        return read_pixels(path, prepare)

    monkeypatch.setattr(encode_module, "read_pixels", read)
    vectors, faults = embed_pixels(engine := MadeEngine(), read_ahead(engine, paths, seconds=1))
    release.set()
    assert len(vectors) == 18
    assert [n for n, fault in enumerate(faults) if fault is not None] == [3, 7]
    assert str(faults[3]) == "not decoded within 1 s"
    assert isinstance(faults[3], ImageFault) and "cannot identify image file" in str(faults[7])


@pytest.mark.parametrize(("batch_size", "cores", "ahead"), [(4, 3, 8), (1, 5, 5)])
def test_no_more_is_read_than_two_batches_ahead(paths, monkeypatch, batch_size, cores, ahead):
    """Or than there are threads for."""
    monkeypatch.setattr(encode_module.os, "cpu_count", lambda: cores)
    engine, taken = MadeEngine(), []
    engine.batch_size = batch_size
    read = read_ahead(engine, (taken.append(path) or path for path in paths))
    for given in range(3):
        next(read)
        assert len(taken) == given + ahead
    read.close()


def test_of_large_images_one_is_in_memory_at_a_time(paths, monkeypatch):
    monkeypatch.setattr(image_module, "LARGE", 0)
    monkeypatch.setattr(encode_module.os, "cpu_count", lambda: 4)
    inside, most = 0, 0

    class Counting(MadeEngine):
        def pixels(self, image):
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            threading.Event().wait(0.005)
            inside -= 1
            return super().pixels(image)

    engine = Counting()
    embed_pixels(engine, read_ahead(engine, paths))
    assert most == 1


def test_what_pillow_warns_about_is_not_heard_in_any_thread(paths, monkeypatch):
    """That an image is large, for one. Here warnings are errors, and so a fault of the image."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90)
    (heard,) = read_ahead(MadeEngine(), paths[:1])
    assert isinstance(heard, ImageFault) and "DecompressionBombWarning" in str(heard)
    with quiet():
        (found,) = read_ahead(MadeEngine(), paths[:1])
    assert found.shape == (3, 1, 1)
