from __future__ import annotations

from pathlib import Path

import pytest
from made import pack
from PIL import Image

from lgip_ort.dataset import open_dataset
from lgip_ort.dataset.build import two_paths
from lgip_ort.errors import UsageFault
from lgip_ort.image import read_image

TOKENS = "a_1.jpg#0\tA dog .\na_1.jpg#1\t Two # dogs\twith a tab \n\nb.jpg#0\tA “cat”\u2028."


def write(folder: Path, content: str | bytes = TOKENS, name: str = "x.token") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_token_file(tmp_path, mark, end):
    path = write(tmp_path, mark + TOKENS.replace("\n", end))
    data = open_dataset(f"flickr:{path}", images=False)
    assert data.images.rows() == [("a_1", "a_1.jpg", ""), ("b", "b.jpg", "")]
    assert data.captions.rows() == [
        ("a_1", 0, "A dog ."),
        ("a_1", 1, " Two # dogs\twith a tab "),
        ("b", 0, "A “cat”\u2028."),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_file(tmp_path, end):
    rows = ["image,caption", "a.jpg,A dog .", 'a.jpg,"One , "" two"" "', "b.jpg,"]
    data = open_dataset(f"flickr:{write(tmp_path, end.join(rows), 'captions.txt')}", images=False)
    assert data.captions.rows() == [("a", 0, "A dog ."), ("a", 1, 'One , " two" '), ("b", 0, "")]


@pytest.mark.parametrize("place", ["images", "images.zip/pictures"])
def test_images_in_a_folder_or_an_archive(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    path = write(tmp_path)
    for i, name in enumerate(("a_1.jpg", "b.jpg"), 1):
        Image.new("RGB", (i, 1)).save(tmp_path / place / name)
    if place != "images":
        (tmp_path / "images.zip/pictures").rename(tmp_path / "pictures")
        (tmp_path / "images.zip").rmdir()
        pack(tmp_path / "pictures").rename(tmp_path / "images.zip")
    data = open_dataset(f"flickr:{path}:{tmp_path / place}")
    assert [read_image(data.root / name).width for name in data.images["path"]] == [1, 2]


def test_missing_images(tmp_path):
    path = write(tmp_path)
    (tmp_path / "b.jpg").touch()
    with pytest.raises(UsageFault, match=r"1 of 2 images are not there, the first is .*a_1\.jpg"):
        open_dataset(f"flickr:{path}")
    assert open_dataset(f"flickr:{path}", available_only=True).captions["image_id"].to_list() == ["b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a.jpg#0\tA\na.jpg#1 B\n", "line 2: `name.jpg#0<TAB>caption` expected, 'a.jpg#1 B' found"),
        ("a.jpg\tA\n", "line 1: `name.jpg#0<TAB>caption` expected"),
        ("a.jpg#x\tA\n", "line 1: `name.jpg#0<TAB>caption` expected"),
        ("a.jpg#0\tA\n../b.jpg#0\tB\n", r"line 2: image '\.\./b\.jpg' leaves the folder of images"),
        ("image,caption\n/b.jpg,B\n", r"line 2: image '/b\.jpg' leaves the folder of images"),
        ("image,caption\na.jpg,A,B\n", "line 2: 2 values expected, 3 found"),
        (b"a.jpg#0\tA\nb.jpg#0\tcaf\xe9\n", "line 2: UTF-8 expected, byte 0xe9 found"),
    ],
)
def test_file_that_is_wrong(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(UsageFault, match=message) as fault:
        open_dataset(f"flickr:{path}", images=False)
    assert str(fault.value).startswith(str(path))


@pytest.mark.parametrize(
    ("argument", "first", "second"),
    [
        ("t.txt", "t.txt", None),
        ("t.txt:images", "t.txt", "images"),
        ("t.txt:a:b", "t.txt", "a:b"),
        ("odd:t.txt", "odd:t.txt", None),
        ("odd:t.txt:images", "odd:t.txt", "images"),
        (r"t.txt:D:\images", "t.txt", r"D:\images"),
        (r"C:\t.txt", r"C:\t.txt", None),
        (r"C:\t.txt:D:\images", r"C:\t.txt", r"D:\images"),
        ("no.txt:images", "no.txt", "images"),
        (r"C:\no.txt:D:\images", r"C:\no.txt", r"D:\images"),
        (r"C:\no.txt", r"C:\no.txt", None),
        ("no.txt:", "no.txt:", None),
    ],
)
def test_two_paths(tmp_path, monkeypatch, argument, first, second):
    monkeypatch.chdir(tmp_path)
    for name in ("t.txt", "odd:t.txt", r"C:\t.txt"):
        Path(name).touch()
    assert two_paths(argument) == (Path(first), second and Path(second))
