from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from lgip_ort.dataset import open_dataset
from lgip_ort.errors import UsageFault

ROWS = [("i/a.jpg", 'One, "two"'), ("i/b.jpg", " B\nb "), ("i/a.jpg", "“é” 👍"), ("i/a.jpg", ""), ("i/a.jpg", "")]


def write(path: Path, names: tuple[str, str] = ("image", "caption"), rows=ROWS) -> str:
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row").with_columns(n=pl.lit(1))
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix in (".csv", ".tsv"):
        frame.write_csv(path, separator="," if path.suffix == ".csv" else "\t")
    else:
        frame.write_ndjson(path)
    return f"frame:{path}"


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv", "jsonl", "ndjson"])
def test_rows_of_an_image_are_its_captions(tmp_path, suffix):
    data = open_dataset(write(tmp_path / f"my.{suffix}"), images=False)
    assert data.name == "my"
    assert data.images.rows() == [("a", "i/a.jpg", ""), ("b", "i/b.jpg", "")]
    assert data.captions.rows() == [
        ("a", 0, 'One, "two"'),
        ("b", 0, " B\nb "),
        ("a", 1, "“é” 👍"),
        ("a", 2, ""),
        ("a", 3, ""),
    ]
    assert data.captions.schema == {"image_id": pl.String, "caption_index": pl.UInt16, "text": pl.String}


def test_images_lie_beside_the_file_or_anywhere(tmp_path):
    (tmp_path / "a.jpg").touch()
    (tmp_path / "far").mkdir()
    (tmp_path / "far/b.jpg").touch()
    (tmp_path / "data").mkdir()
    source = write(tmp_path / "data/x.csv", rows=[("../a.jpg", "A"), (str(tmp_path / "far/b.jpg"), "B")])
    assert open_dataset(source).images["image_id"].to_list() == ["a", "b"]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("file path", "title"), "image=file path,caption=title"),
        (("image", "title"), "caption=title"),
        (("caption", "image"), "caption=image,image=caption"),
    ],
)
def test_columns_are_named(tmp_path, suffix, names, columns):
    data = open_dataset(write(tmp_path / f"x.{suffix}", names), images=False, columns=columns)
    assert data.images["path"].to_list() == ["i/a.jpg", "i/b.jpg"]
    assert data.captions[0, "text"] == 'One, "two"'


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("captoin=x", "unknown 'captoin'; did you mean 'caption'?"),
        ("caption", "caption=NAME expected"),
        ("image=,caption=x", "image=NAME expected"),
        ("image=x", r"x\.csv: no column 'x'; there are: image, caption, n \(--columns"),
    ],
)
def test_columns_that_are_wrong(tmp_path, columns, message):
    with pytest.raises(UsageFault, match=message):
        open_dataset(write(tmp_path / "x.csv"), images=False, columns=columns)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"", "no header, the file is empty"),
        ("x.csv", b"image,text\na,b\n", "no column 'caption'; there are: image, text"),
        ("x.csv", b"image,caption,image\na,b,c\n", "more than one column 'image'"),
        ("x.csv", b"image,caption\na,b\nc\n", "line 3: 2 values expected, 1 found"),
        ("x.csv", b'image,caption\na,"b\n\nb"\nc,d,e\n', "line 5: 2 values expected, 3 found"),
        ("x.csv", b'image,caption\na,b\n\na,"b\nc,d\n', "line 4: not CSV"),
        ("x.csv", b"image,caption\na,b\na,caf\xe9\n", "line 3: UTF-8 expected, byte 0xe9 found"),
        ("x.csv", b"image,caption\n", "no image with a caption in it"),
        (
            "x.jsonl",
            b'{"image": "a", "caption": "b"}\n{"image": "a"}\n',
            "line 2: field 'caption' of type str expected",
        ),
        (
            "x.jsonl",
            b'{"image": "a", "caption": "b"}\n{"image": 5, "caption": "b"}\n',
            "line 2: field 'image' .* 5 found",
        ),
        ("x.jsonl", b"{\n", "line 1 column 2: not JSON"),
        ("x.parquet", b"PAR1 no PAR1", "not Parquet that can be read"),
        ("x.txt", b"", r"a file that ends in \.parquet, \.csv, \.tsv, \.jsonl or \.ndjson expected"),
    ],
)
def test_file_that_is_wrong(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageFault, match=message) as fault:
        open_dataset(f"frame:{path}", images=False)
    assert str(path) in str(fault.value)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.jsonl"])
def test_file_that_is_not_there(tmp_path, name):
    with pytest.raises(UsageFault, match=rf"{name}: not there"):
        open_dataset(f"frame:{tmp_path / name}", images=False)
    (tmp_path / name).mkdir()
    with pytest.raises(UsageFault, match=name):
        open_dataset(f"frame:{tmp_path / name}", images=False)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": ["a"]}, "no column 'caption'; there are: image"),
        ({"image": ["a"], "caption": [1]}, "column 'caption' of type String expected, Int64 found"),
        ({"image": ["a"], "caption": [["b"]]}, r"column 'caption' of type String expected, List\(String\) found"),
        ({"image": ["a", "b", None], "caption": ["x", None, "y"]}, "row 2: column 'image' has no value"),
        ({"image": ["a", "b"], "caption": ["x", None]}, "row 1: column 'caption' has no value"),
    ],
)
def test_parquet_that_is_wrong(tmp_path, columns, message):
    pl.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(UsageFault, match=rf"x\.parquet: {message}"):
        open_dataset(f"frame:{tmp_path / 'x.parquet'}", images=False)


def test_truncated_parquet(tmp_path):
    source = write(tmp_path / "x.parquet")
    path = tmp_path / "x.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageFault, match=r"x\.parquet: not Parquet that can be read"):
        open_dataset(source, images=False)


def test_categorical_columns(tmp_path):
    frame = pl.DataFrame(ROWS, schema=["image", "caption"], orient="row")
    frame.with_columns(pl.col("image").cast(pl.Categorical)).write_parquet(tmp_path / "x.parquet")
    assert open_dataset(f"frame:{tmp_path / 'x.parquet'}", images=False).images["path"].to_list() == [
        "i/a.jpg",
        "i/b.jpg",
    ]


def test_byte_order_mark_and_line_ends(tmp_path):
    (tmp_path / "x.csv").write_bytes(b'\xef\xbb\xbfimage,caption\r\na.jpg,"A\r\nb"\r\n\r\nb.jpg,C\r\n')
    data = open_dataset(f"frame:{tmp_path / 'x.csv'}", images=False)
    assert data.captions["text"].to_list() == ["A\r\nb", "C"]


def test_more_captions_than_can_be_numbered(tmp_path):
    source = write(tmp_path / "x.parquet", rows=[("a.jpg", "x")] * (2**16 + 1))
    with pytest.raises(UsageFault, match="image a has more than 65,536 captions"):
        open_dataset(source, images=False)
    data = open_dataset(write(tmp_path / "x.parquet", rows=[("a.jpg", "x")] * 2**16), images=False)
    assert data.captions[-1, "caption_index"] == 2**16 - 1
