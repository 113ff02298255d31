"""What an export is checked on: all captions of the data, and images of it that are there."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from exporter import probes as module
from exporter.probes import CAPTIONS, ODD_SIZES, PHOTOGRAPHS, REAL, SIZES, pictures, probes
from lgip_ort.dataset import open_dataset
from lgip_ort.dataset.sugarcrepe import FAMILIES
from lgip_ort.errors import UsageFault


def _same(a, b):
    return a.size == b.size and a.mode == b.mode and (np.asarray(a) == np.asarray(b)).all()


def test_pictures_are_the_same_in_every_run():
    first, again = pictures(), pictures()
    assert [(*image.size, image.mode) for image in first] == list(SIZES)
    assert all(map(_same, first, again)) and not _same(first[0], first[1])


def test_the_demo_is_the_default():
    known, demo = probes(), open_dataset("demo")
    assert len(known.images) == len(known.captions) == len(SIZES)
    assert set(known.texts) == set(demo.captions["text"].to_list()) and len(set(known.texts)) == len(known.texts)
    assert known.data == {"name": "demo", "captions": len(known.texts), "images": PHOTOGRAPHS}
    assert [image.size for image in known.images[REAL:]] == [size[:2] for size in SIZES[REAL:]]
    seen = list(known.pixels())
    assert len(seen) == len(SIZES) + len(ODD_SIZES) + PHOTOGRAPHS
    assert {image.mode for image in seen} >= {"RGB", "L", "LA", "RGBA", "P", "1", "CMYK"}
    assert _same(seen[len(SIZES) + len(ODD_SIZES)], known.images[0])


def test_captions_are_of_all_lengths(coco):
    known = probes(f"coco:{coco}:val")
    real = [text for text in known.captions if text not in CAPTIONS]
    lengths = sorted(len(text) for text in known.texts)
    assert [len(text) for text in real] == [lengths[0], lengths[len(lengths) // 2], lengths[-1]]
    odd = {"", "dog", CAPTIONS[4], CAPTIONS[6]}
    assert odd < set(known.captions)


def test_images_are_spread_over_the_data(coco, monkeypatch):
    monkeypatch.setattr(module, "PHOTOGRAPHS", 5)
    known, data = probes(f"coco:{coco}:val"), open_dataset(f"coco:{coco}:val")
    paths = data.images["path"].to_list()
    assert [str(file.relative_to(data.root)) for file in known.files] == [paths[i] for i in (0, 9, 19, 29, 39)]
    assert known.data == {"name": "coco-val", "captions": len(known.texts), "images": 5}


def test_what_is_absent_or_damaged_is_passed_over(coco, tmp_path):
    folder = shutil.copytree(coco, tmp_path / "coco")
    files = sorted((folder / "val").iterdir())
    for file in files[3:]:
        file.unlink()
    files[1].write_bytes(b"no image")
    known = probes(f"coco:{folder}:val")
    assert sorted(file.name for file in known.files) == [files[0].name, files[2].name]
    assert known.data["images"] == 2 and len(known.images) == len(SIZES)
    assert _same(known.images[2], pictures()[2])
    assert known.texts == probes(f"coco:{coco}:val").texts, "captions of absent images count all the same"
    for file in files[:3]:
        file.unlink()
    none = probes(f"coco:{folder}:val")
    assert none.data["images"] == 0 and all(map(_same, none.images, pictures()))


def test_falsified_captions_are_texts_too(tmp_path):
    """SugarCrepe brings them."""
    Image.new("RGB", (5, 5)).save(tmp_path / "1.jpg")
    rows = {"0": {"filename": "1.jpg", "caption": "a red dog", "negative_caption": "a blue dog"}}
    for family in FAMILIES:
        (tmp_path / f"{family}.json").write_text(json.dumps(rows if family == "swap_att" else {}))
    known = probes(f"sugarcrepe:{tmp_path}:{tmp_path}")
    assert known.texts == ["a red dog", "a blue dog"]
    assert known.captions == list(CAPTIONS), "too few for three lengths"


def test_data_that_is_not_there_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(UsageFault, match="nowhere"):
        probes(f"coco:{tmp_path}/nowhere")
    with pytest.raises(UsageFault, match="did you mean 'demo'"):
        probes("demos")

    def gone(*_, **__):
        raise UsageFault("no scenes")

    monkeypatch.setattr(module, "open_dataset", gone)
    known = probes()
    assert known.captions == list(CAPTIONS) and known.data["name"] == "none" and len(list(known.pixels())) == 15


def test_real_data(shared, val2017):
    known = probes(f"coco:{shared / 'coco'}:val2017")
    captions = val2017.captions["text"].to_list()
    assert known.data["captions"] == len(set(captions)) > 24_000
    assert known.data["images"] == 34, "of 5,000 that are named"
    assert {image.size for image in known.images[:REAL]} - {size[:2] for size in SIZES[:REAL]}
