from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
from made import make_coco, pack
from PIL import Image

from lgip_ort.dataset import Dataset, archive, open_dataset
from lgip_ort.errors import UsageFault
from lgip_ort.image import ImageFault, read_image


@pytest.fixture
def folder(tmp_path) -> Path:
    """Four images in val.zip, no folder beside it."""
    root = make_coco(tmp_path / "made", images=4)
    pack(root / "val")
    return root


def pixels(data: Dataset) -> list[np.ndarray]:
    return [np.asarray(read_image(data.root / path)) for path in data.images["path"]]


def test_archive_is_read_as_the_folder_was(tmp_path):
    root = make_coco(tmp_path / "made", images=4)
    before = open_dataset(f"coco:{root}:val")
    expected, identity = pixels(before), before.sha256()
    pack(root / "val")
    data = open_dataset(f"coco:{root}:val")
    assert data.images["path"].to_list() == [f"val.zip/val/{i:012d}.png" for i in range(1, 5)]
    assert data.captions.equals(before.captions)
    assert all(np.array_equal(a, b) for a, b in zip(pixels(data), expected, strict=True))
    assert data.sha256() == identity


def test_folder_goes_before_the_archive(folder):
    (folder / "val").mkdir()
    with pytest.raises(UsageFault, match=r"4 of 4 images are not there, the first is .*/val/000000000001\.png"):
        open_dataset(f"coco:{folder}")


@pytest.mark.parametrize("member", ["val/000000000003.png", "000000000003.png", "val/000000000003.png/"])
def test_members_that_are_missing(folder, member):
    with ZipFile(folder / "val.zip") as old, ZipFile(folder / "new.zip", "w") as new:
        for name in old.namelist():
            if "3.png" not in name:
                new.writestr(name, old.read(name))
        if member != "val/000000000003.png":
            new.writestr(member, b"")
    (folder / "new.zip").replace(folder / "val.zip")
    with pytest.raises(UsageFault, match=r"1 of 4 images are not there, the first is .*val\.zip/val/000000000003\.png"):
        open_dataset(f"coco:{folder}")
    data = open_dataset(f"coco:{folder}", available_only=True)
    assert data.missing == ["val.zip/val/000000000003.png"]
    assert data.images["image_id"].to_list() == ["1", "2", "4"]


@pytest.mark.parametrize("keep", [0, 100, -10])
def test_truncated_archive(folder, keep):
    path = folder / "val.zip"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageFault, match=rf"{path}: not a whole zip archive"):
        open_dataset(f"coco:{folder}")
    with pytest.raises(UsageFault, match=rf"{path}: not a whole zip archive"):
        read_image(path / "val/000000000001.png")
    assert len(open_dataset(f"coco:{folder}", images=False).images) == 4


def test_broken_member(folder):
    path = folder / "val.zip"
    data = bytearray(path.read_bytes())
    start = data.index(b"IDAT") + 8
    data[start : start + 4] = b"\0\0\0\0"
    path.write_bytes(data)
    read = open_dataset(f"coco:{folder}")
    with pytest.raises(ImageFault, match="BadZipFile: Bad CRC-32"):
        read_image(read.root / read.images[0, "path"])
    assert read_image(read.root / read.images[1, "path"]).size == (14, 11)


def test_member_that_is_no_image(tmp_path):
    with ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("a/b.jpg", b"no image")
    # Without an address in memory: the same in every run, as for the file itself.
    with pytest.raises(ImageFault, match=r"^UnidentifiedImageError: cannot identify image file 'b\.jpg'$"):
        read_image(tmp_path / "x.zip/a/b.jpg")


def test_member_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_MEMBER", 1000)
    with ZipFile(tmp_path / "x.zip", "w", ZIP_DEFLATED) as file:
        file.writestr("b.jpg", bytes(1001))
    with pytest.raises(ImageFault, match="1,001 bytes, more than 1,000"):
        read_image(tmp_path / "x.zip/b.jpg")


def test_archive_that_goes_away(folder):
    data = open_dataset(f"coco:{folder}")
    (folder / "val.zip").unlink()
    with pytest.raises(ImageFault, match="FileNotFoundError"):
        read_image(data.root / data.images[0, "path"])


def test_archive_that_is_replaced(folder):
    data = open_dataset(f"coco:{folder}")
    path = data.root / data.images[0, "path"]
    read_image(path)
    other = folder / "other.png"
    Image.new("RGB", (3, 5)).save(other)
    with ZipFile(folder / "new.zip", "w") as file:
        file.write(other, "val/000000000001.png")
    (folder / "new.zip").replace(folder / "val.zip")
    assert read_image(path).size == (3, 5)


def test_folder_that_is_called_zip(tmp_path):
    (tmp_path / "x.zip").mkdir()
    Image.new("RGB", (3, 5)).save(tmp_path / "x.zip/a.png")
    assert read_image(tmp_path / "x.zip/a.png").size == (3, 5)


def test_threads_share_an_archive(tmp_path):
    with ZipFile(tmp_path / "x.zip", "w") as file:
        for i in range(50):
            file.writestr(f"{i}", os.urandom(1000) * 20)
            file.writestr(f"{i} again", file.read(f"{i}"))

    def same(i: int) -> bool:
        first, again = (archive.readable(tmp_path / "x.zip" / name) for name in (f"{i}", f"{i} again"))
        return first.read() == again.read()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(same, list(range(50)) * 4))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("val/a.png", "val/a.png"),
        ("val.zip/val/a.png", "val/a.png"),
        ("/data/VAL.ZIP/a.png", "a.png"),
        ("a.zip", "a.zip"),
    ],
)
def test_plain_name(path, name):
    assert archive.plain_name(path) == name
