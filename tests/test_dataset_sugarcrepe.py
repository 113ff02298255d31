from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lgip_ort.dataset import TABLE, open_dataset
from lgip_ort.dataset.sugarcrepe import FAMILIES
from lgip_ort.errors import UsageFault


def record(name: str, caption: str, negative: str) -> dict[str, str]:
    return {"filename": name, "caption": caption, "negative_caption": negative}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two images; their captions come in more than one file."""
    write(tmp_path, "add_att", {"0": record("b.jpg", "A dog. ", "A red dog."), "1": record("a.jpg", "Cat", "Big cat")})
    write(tmp_path, "swap_obj", {"0": record("b.jpg", "A dog. ", "Dog a."), "1": record("b.jpg", "A dog.", "Dog.")})
    for family in FAMILIES:
        if not (tmp_path / f"{family}.json").exists():
            write(tmp_path, family, {})
    return tmp_path


def write(folder: Path, family: str, records: Any) -> None:
    (folder / f"{family}.json").write_text(json.dumps(records))


def test_records_are_flips(folder):
    data = open_dataset(f"sugarcrepe:{folder}", images=False)
    assert data.images["image_id"].to_list() == ["b", "a"]
    assert data.captions.rows() == [("b", 0, "A dog. "), ("a", 0, "Cat"), ("b", 1, "A dog.")]
    assert data.table.schema == TABLE
    assert data.table.rows() == [
        ("b", 0, "flip", "add_att", "A dog. ", "A red dog."),
        ("a", 0, "flip", "add_att", "Cat", "Big cat"),
        ("b", 0, "flip", "swap_obj", "A dog. ", "Dog a."),
        ("b", 1, "flip", "swap_obj", "A dog.", "Dog."),
    ]


def test_flips_of_images_that_are_missing_go_too(folder, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").touch()
    data = open_dataset(f"sugarcrepe:{folder}:{tmp_path / 'images'}", available_only=True)
    assert data.missing == ["b.jpg"]
    assert data.table.rows() == [("a", 0, "flip", "add_att", "Cat", "Big cat")]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "an object expected, list found"),
        ({"7": record("a.jpg", "A", "B") | {"caption": None}}, "record '7': field 'caption' of type str expected"),
        ({"7": "A"}, "record '7': field 'filename' of type str expected"),
        ({"7": record("../a.jpg", "A", "B")}, r"record '7': image '\.\./a\.jpg' leaves the folder"),
    ],
)
def test_file_that_is_wrong(folder, records, message):
    write(folder, "replace_att", records)
    with pytest.raises(UsageFault, match=rf"replace_att\.json: {message}"):
        open_dataset(f"sugarcrepe:{folder}", images=False)


def test_file_that_is_not_there(folder):
    (folder / "swap_att.json").unlink()
    with pytest.raises(UsageFault, match=r"swap_att\.json: not there"):
        open_dataset(f"sugarcrepe:{folder}", images=False)


def test_real_files(shared):
    data = open_dataset(f"sugarcrepe:{shared / 'sugarcrepe'}:{shared / 'coco/val2017'}", images=False)
    assert dict(data.table.group_by("family").len().iter_rows()) == {
        "add_att": 692,
        "add_obj": 2062,
        "replace_att": 788,
        "replace_obj": 1652,
        "replace_rel": 1406,
        "swap_att": 666,
        "swap_obj": 245,
    }
    assert (len(data.table), len(data.images), len(data.captions)) == (7511, 1560, 4355)
