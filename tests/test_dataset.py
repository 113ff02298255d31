from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from made import make_coco, write_captions

from lgip_ort.dataset import open_dataset
from lgip_ort.errors import UsageFault

IMAGES = [{"id": 7, "file_name": "a.png"}, {"id": 3, "file_name": "b.png"}, {"id": 5, "file_name": "no captions.png"}]
CAPTIONS = [(3, "third"), (7, " A dog.\n"), (3, ""), (7, "“two” 👍"), (7, "A dog.")]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two captioned images whose captions are interleaved, and one without."""
    (tmp_path / "val").mkdir()
    for image in IMAGES:
        (tmp_path / "val" / image["file_name"]).write_bytes(b"x" * image["id"])
    write_captions(tmp_path, IMAGES, [{"image_id": i, "caption": text} for i, text in CAPTIONS])
    return tmp_path


def test_demo():
    demo = open_dataset("demo")
    assert demo.name == "demo"
    assert len(demo.images) == demo.named == 400
    assert len(demo.captions) == 2000
    assert demo.missing == []
    assert demo.captions.group_by("image_id").len()["len"].unique().to_list() == [5]
    assert all((demo.root / path).is_file() for path in demo.images["path"])


def test_order_and_numbers_are_the_file_s(folder):
    data = open_dataset(f"coco:{folder}:val")
    assert data.name == "coco-val"
    assert data.images.rows() == [("7", "val/a.png", "val"), ("3", "val/b.png", "val")]
    assert data.captions.rows() == [
        ("3", 0, "third"),
        ("7", 0, " A dog.\n"),
        ("3", 1, ""),
        ("7", 1, "“two” 👍"),
        ("7", 2, "A dog."),
    ]


def test_every_caption_is_kept(folder):
    write_captions(folder, IMAGES, [{"image_id": 7, "caption": f"caption {i}"} for i in range(7)])
    assert open_dataset(f"coco:{folder}").captions["caption_index"].to_list() == list(range(7))


def test_missing_images(folder):
    (folder / "val/a.png").unlink()
    with pytest.raises(
        UsageFault, match=rf"1 of 2 images are not there, the first is {folder}/val/a\.png; --available-only"
    ):
        open_dataset(f"coco:{folder}")
    data = open_dataset(f"coco:{folder}", available_only=True)
    assert data.missing == ["val/a.png"]
    assert data.named == 2
    assert data.images["image_id"].to_list() == ["3"]
    assert data.captions["text"].to_list() == ["third", ""]


@pytest.mark.parametrize("how", ["no folder", "empty folder"])
def test_no_image_at_all(folder, how):
    shutil.rmtree(folder / "val")
    if how == "empty folder":
        (folder / "val").mkdir()
    with pytest.raises(UsageFault, match="2 of 2 images are not there"):
        open_dataset(f"coco:{folder}")
    with pytest.raises(UsageFault, match="none of its 2 images is there"):
        open_dataset(f"coco:{folder}", available_only=True)


def test_link_to_nowhere_is_missing(folder):
    (folder / "val/a.png").unlink()
    (folder / "val/a.png").symlink_to(folder / "gone.png")
    data = open_dataset(f"coco:{folder}", available_only=True)
    assert data.missing == ["val/a.png"]
    assert len(data.sha256()) == 64


@pytest.mark.parametrize("name", ["../outside.png", "/etc/hostname"])
def test_file_name_that_leaves_the_folder(folder, name):
    (folder / "outside.png").write_bytes(b"x")
    write_captions(folder, [{"id": 1, "file_name": name}], [{"image_id": 1, "caption": "x"}])
    with pytest.raises(UsageFault, match="1 of 1 images are not there"):
        open_dataset(f"coco:{folder}")


@pytest.mark.parametrize(
    ("images", "annotations", "message"),
    [
        (None, [], "the file: field 'images' of type list expected, None found"),
        ([], None, "the file: field 'annotations' of type list expected, None found"),
        ([{"id": "1", "file_name": "a"}], [], r"images\[0\]: field 'id' of type int expected, '1' found"),
        ([*IMAGES, {"id": 9}], [], r"images\[3\]: field 'file_name' of type str expected, None found"),
        (IMAGES, [{"image_id": 7}], r"annotations\[0\]: field 'caption' of type str expected, None found"),
        (IMAGES, [{"image_id": 7, "caption": None}], r"annotations\[0\]: field 'caption' of type str expected"),
        (IMAGES, ["text"], r"annotations\[0\]: field 'image_id' of type int expected"),
        (IMAGES, [{"image_id": 99, "caption": "x"}], "1 captions name images that are not listed, the first is 99"),
        ([*IMAGES, IMAGES[0]], [], "image id 7 is listed more than once"),
    ],
)
def test_annotations_that_are_wrong(tmp_path, images, annotations, message):
    path = write_captions(tmp_path, images, annotations)
    with pytest.raises(UsageFault, match=message) as fault:
        open_dataset(f"coco:{tmp_path}")
    assert str(path) in str(fault.value)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_annotations_that_are_no_json_object(folder, content):
    path = folder / "annotations/captions_val.json"
    path.write_text(content)
    with pytest.raises(UsageFault, match=str(path)):
        open_dataset(f"coco:{folder}")


@pytest.mark.parametrize(
    ("splits", "source", "split"),
    [
        (["a"], "", "a"),
        (["a", "b"], ":b", "b"),
        (["train2017", "val2017"], "", "val2017"),
    ],
)
def test_split(tmp_path, splits, source, split):
    root = tmp_path / "with:colon" / "data"
    for name in splits:
        write_captions(root, [{"id": 1, "file_name": "x.png"}], [{"image_id": 1, "caption": "x"}], name)
        (root / name).mkdir()
        (root / name / "x.png").touch()
    assert open_dataset(f"coco:{root}{source}").images["path"].to_list() == [f"{split}/x.png"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cocoo:x", "unknown data 'cocoo:x'; did you mean 'coco'?"),
        ("zzz", "known: demo, coco"),
        ("demo:all", "demo takes no argument, 'all' found"),
        ("coco", "coco needs a folder: coco:DIR"),
        ("coco:{}", "name a split .* with captions there: one, two"),
        ("coco:{}:three", r"captions_three\.json: not there; splits with captions in .*: one, two"),
        ("coco:{}/nowhere", "with captions there: none"),
    ],
)
def test_source_that_is_refused(tmp_path, source, message):
    for split in ("one", "two"):
        write_captions(tmp_path, [], [], split)
    with pytest.raises(UsageFault, match=message):
        open_dataset(source.format(tmp_path))


def test_identity_does_not_depend_on_the_place(coco, tmp_path):
    copy = shutil.copytree(coco, tmp_path / "elsewhere")
    assert open_dataset(f"coco:{copy}").sha256() == open_dataset(f"coco:{coco}").sha256()


@pytest.mark.parametrize("change", ["caption", "order", "size", "name"])
def test_identity_depends_on_the_content(tmp_path, change):
    root = make_coco(tmp_path, images=2)
    before = open_dataset(f"coco:{root}").sha256()
    path = root / "annotations/captions_val.json"
    data = json.loads(path.read_text())
    image = root / "val" / data["images"][0]["file_name"]
    if change == "caption":
        data["annotations"][0]["caption"] += "."
    elif change == "order":
        data["annotations"].reverse()
    elif change == "size":
        image.write_bytes(image.read_bytes() + b"\0")
    else:
        image.rename(image.with_name("other.png"))
        data["images"][0]["file_name"] = "other.png"
    path.write_text(json.dumps(data))
    assert open_dataset(f"coco:{root}").sha256() != before


def test_head_keeps_images_with_their_captions(folder):
    data = open_dataset(f"coco:{folder}").head(1)
    assert data.images["image_id"].to_list() == ["7"]
    assert data.captions["text"].to_list() == [" A dog.\n", "“two” 👍", "A dog."]


def test_real_coco(shared):
    with pytest.raises(UsageFault, match=r"4,966 of 5,000 images are not there, the first is .*val2017/\d{12}\.jpg"):
        open_dataset(f"coco:{shared / 'coco'}")
    data = open_dataset(f"coco:{shared / 'coco'}:val2017", available_only=True)
    assert (len(data.images), data.named, len(data.missing)) == (34, 5000, 4966)
    assert len(data.captions) == 170
    assert data.captions["image_id"].unique().len() == 34
