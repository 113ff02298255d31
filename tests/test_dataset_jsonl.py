from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lgip_ort.dataset import TABLE, open_dataset
from lgip_ort.dataset.jsonl import write_jsonl
from lgip_ort.errors import UsageFault

RECORD = {"image_path": "images/a.jpg", "orig_captions": ["A red bus.", " Two dogs\n"]}


def write(folder: Path, *records: Any) -> str:
    path = folder / "x.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return f"jsonl:{path}"


def rows(source: str) -> list[tuple[Any, ...]]:
    return open_dataset(source, images=False).table.select("caption_index", "kind", "family", "perturbed").rows()


def test_captions_alone(tmp_path):
    data = open_dataset(write(tmp_path, RECORD, {"image_path": "b.jpg", "orig_captions": ["x"] * 7}), images=False)
    assert data.name == "x"
    assert data.images.rows() == [("a", "images/a.jpg", ""), ("b", "b.jpg", "")]
    assert data.captions.rows()[:3] == [("a", 0, "A red bus."), ("a", 1, " Two dogs\n"), ("b", 0, "x")]
    assert data.captions["caption_index"].to_list() == [0, 1, *range(7)]
    assert data.table is None


def test_images_are_found_from_the_file_s_folder_or_anywhere(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").touch()
    (tmp_path / "c.jpg").touch()
    far = {"image_path": str(tmp_path / "c.jpg"), "orig_captions": ["x"]}
    lost = {"image_path": "c/d.jpg", "orig_captions": ["x"]}
    assert open_dataset(write(tmp_path, RECORD, far)).images["image_id"].to_list() == ["a", "c"]
    with pytest.raises(UsageFault, match=r"1 of 2 images are not there, the first is .*c/d\.jpg"):
        open_dataset(write(tmp_path, RECORD, lost))


def test_perturbations(tmp_path):
    more = {
        "same_caps": {"1": ["a photo of Two dogs", "a photo of Two dogs"], "0": []},
        "diff_caps": {
            "0": [
                "A blue bus.",
                "A red cat.",
                "No red bus.",
                {"text": "A", "flip_type": "left_right"},
                {"text": "B", "flip_type": "para+number"},
                {"text": "C"},
            ]
        },
        "diff_caps_color": {"0": ["A blue bus."]},
        "diff_caps_number": {"1": ["Three dogs"]},
        "diff_caps_object": {"0": ["A red cat."]},
    }
    source = write(tmp_path, RECORD | more)
    assert rows(source) == [
        (1, "paraphrase", "given", "a photo of Two dogs"),
        (0, "flip", "colour", "A blue bus."),
        (1, "flip", "count", "Three dogs"),
        (0, "flip", "object", "A red cat."),
        (0, "flip", "given", "No red bus."),
        (0, "flip", "left_right", "A"),
        (0, "combined", "count", "B"),
        (0, "flip", "given", "C"),
    ]
    table = open_dataset(source, images=False).table
    assert table.schema == TABLE
    assert table["text"].unique(maintain_order=True).to_list() == [" Two dogs\n", "A red bus."]


@pytest.mark.parametrize(
    ("paths", "ids"),
    [
        (["a/x.jpg", "b/y.jpg"], ["x", "y"]),
        (["a/x.jpg", "b/x.jpg", "c/y.jpg"], ["a/x.jpg", "b/x.jpg", "y"]),
        (["x.y.jpg", "b/x.y.png", "c/x.y.jpg.png"], ["x.y.jpg", "b/x.y.png", "c/x.y.jpg.png"]),
    ],
)
def test_image_ids(tmp_path, paths, ids):
    source = write(tmp_path, *({"image_path": path, "orig_captions": ["x"]} for path in paths))
    assert open_dataset(source, images=False).images["image_id"].to_list() == ids


def test_image_without_captions_is_left_out(tmp_path):
    source = write(tmp_path, {"image_path": "b.jpg", "orig_captions": [], "same_caps": {}}, RECORD)
    assert open_dataset(source, images=False).images["image_id"].to_list() == ["a"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_path": None}, "field 'image_path' of type str expected, None found"),
        ({"image_path": "first.jpg"}, r"image 'first\.jpg' has a line already"),
        ({"orig_captions": "A"}, "field 'orig_captions' of type list expected, 'A' found"),
        ({"orig_captions": ["A", 5]}, r"orig_captions\[1\]: a text expected, int found"),
        ({"orig_captions": ["\ud83d"]}, r"orig_captions\[0\]: .* holds half of a surrogate pair"),
        ({"same_caps": ["A"]}, "field 'same_caps' of type dict expected"),
        ({"same_caps": {"2": ["A"]}}, "same_caps names caption '2', there are 2, counted from 0"),
        ({"same_caps": {"-1": ["A"]}}, "same_caps names caption '-1'"),
        ({"diff_caps": {"²": ["A"]}}, "diff_caps names caption '²'"),
        ({"diff_caps": {"0": "A"}}, r"diff_caps\[0\]: a list expected, str found"),
        ({"diff_caps": {"0": [{"flip_type": "color"}]}}, r"diff_caps\[0\]: field 'text' of type str expected"),
        ({"diff_caps": {"0": [{"text": "A", "flip_type": 1}]}}, r"diff_caps\[0\]: field 'flip_type' of type str"),
        ({"diff_caps_color": {"0": [None]}}, r"diff_caps_color\[0\]: a text expected, NoneType found"),
        ({"same_caps": {"0": ["A"]}, "same_caps_family": {"0": []}}, r"same_caps\[0\]: 0 families for 1 texts"),
        ({"image_id": 5}, "field 'image_id' of type str expected, 5 found"),
    ],
)
def test_record_that_is_wrong(tmp_path, change, message):
    source = write(tmp_path, RECORD | {"image_path": "first.jpg"}, RECORD | change)
    with pytest.raises(UsageFault, match=rf"x\.jsonl: line 2: {message}"):
        open_dataset(source, images=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"image_path": ', "line 4 column 16: not JSON"),
        (b"[1]", "line 4: field 'image_path' of type str expected"),
        (b'{"image_path": "caf\xe9"}', "line 4: UTF-8 expected, byte 0xe9 found"),
    ],
)
def test_line_that_is_wrong(tmp_path, line, message):
    path = tmp_path / "x.jsonl"
    path.write_bytes(json.dumps(RECORD).encode() + b"\n\n  \r\n" + line)
    with pytest.raises(UsageFault, match=message):
        open_dataset(f"jsonl:{path}", images=False)


def test_byte_order_mark_line_ends_and_separators(tmp_path):
    text = json.dumps(RECORD | {"orig_captions": ["one\u2028two", "\u0085three"]}, ensure_ascii=False)
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n\r\n")
    data = open_dataset(f"jsonl:{tmp_path / 'x.jsonl'}", images=False)
    assert data.captions["text"].to_list() == ["one\u2028two", "\u0085three"]


@pytest.mark.parametrize("content", ["", "\n"])
def test_empty_file(tmp_path, content):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(UsageFault, match=r"x\.jsonl: no image with a caption in it"):
        open_dataset(f"jsonl:{tmp_path / 'x.jsonl'}", images=False)


def test_ids_that_are_given_twice(tmp_path):
    source = write(tmp_path, RECORD | {"image_id": "7"}, RECORD | {"image_path": "b.jpg", "image_id": "7"})
    with pytest.raises(UsageFault, match=r"'images/a\.jpg' and 'b\.jpg' have the same image_id '7'"):
        open_dataset(source, images=False)


IMAGES = pl.DataFrame({"image_id": ["7", "3"], "path": ["val/a.png", "val/b.png"], "split": ["val", "val"]})
CAPTIONS = pl.DataFrame(
    {
        "image_id": ["3", "7", "3"],
        "caption_index": [0, 0, 1],
        "text": ["A “red” bus.\n", "Two dogs \u2028 👍", ""],
    },
    schema_overrides={"caption_index": pl.UInt16},
)


def table(*given: tuple[str, int, str, str, str]) -> pl.DataFrame:
    texts = {(i, n): text for i, n, text in CAPTIONS.rows()}
    return pl.DataFrame([(*row[:4], texts[row[:2]], row[4]) for row in given], schema=TABLE, orient="row")


def test_round_trip(tmp_path):
    made = table(
        ("3", 0, "paraphrase", "wrapper", "a photo of A “red” bus."),
        ("3", 0, "paraphrase", "voice", "x"),
        ("3", 0, "flip", "colour", "A “blue” bus.\n"),
        ("3", 0, "flip", "spatial", "\u2028"),
        ("3", 0, "combined", "object", "a photo of A “red” cat."),
        ("3", 1, "paraphrase", "given", "y"),
        ("7", 0, "flip", "count", "Three dogs \u2028 👍"),
    )
    write_jsonl(tmp_path / "out/x.jsonl", IMAGES, CAPTIONS, made)
    data = open_dataset(f"jsonl:{tmp_path / 'out/x.jsonl'}", images=False)
    assert data.images["image_id"].to_list() == ["7", "3"]
    assert data.images["path"].to_list() == ["val/a.png", "val/b.png"]
    order = ["image_id", "caption_index"]
    assert data.captions.sort(order).equals(CAPTIONS.sort(order))
    assert data.table.sort(TABLE.names()).equals(made.sort(TABLE.names()))
    first = (tmp_path / "out/x.jsonl").read_bytes()
    write_jsonl(tmp_path / "out/x.jsonl", data.images, data.captions, data.table)
    assert (tmp_path / "out/x.jsonl").read_bytes() == first


def test_what_is_written(tmp_path):
    made = table(
        ("3", 0, "flip", "colour", "B"), ("3", 0, "paraphrase", "order", "C"), ("3", 0, "identity", "identity", "D")
    )
    write_jsonl(tmp_path / "x.jsonl", IMAGES.tail(1), CAPTIONS, made)
    assert json.loads((tmp_path / "x.jsonl").read_text(encoding="utf-8")) == {
        "image_path": "val/b.png",
        "image_id": "3",
        "orig_captions": ["A “red” bus.\n", ""],
        "same_caps": {"0": ["C"]},
        "same_caps_family": {"0": ["order"]},
        "diff_caps": {"0": [{"text": "B", "flip_type": "color"}]},
    }


def test_written_paths_lead_to_the_images(tmp_path):
    (tmp_path / "data/val").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        (tmp_path / "data/val" / name).touch()
    write_jsonl(tmp_path / "out/x.jsonl", IMAGES, CAPTIONS, table(), tmp_path / "data")
    data = open_dataset(f"jsonl:{tmp_path / 'out/x.jsonl'}")
    assert data.images["path"].to_list() == ["../data/val/a.png", "../data/val/b.png"]


def test_captions_are_numbered_anew(tmp_path):
    some = CAPTIONS.filter(pl.col("text") == "")
    write_jsonl(tmp_path / "x.jsonl", IMAGES.tail(1), some, table(("3", 1, "flip", "size", "z")))
    data = open_dataset(f"jsonl:{tmp_path / 'x.jsonl'}", images=False)
    assert data.table.rows() == [("3", 0, "flip", "size", "", "z")]


def test_nothing_is_left_of_a_file_that_failed(tmp_path):
    with pytest.raises(KeyError):
        write_jsonl(tmp_path / "x.jsonl", IMAGES, CAPTIONS.head(1), table(("7", 0, "flip", "count", "z")))
    assert list(tmp_path.iterdir()) == []
