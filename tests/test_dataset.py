from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from made import make_coco, write_captions, write_instances

from lgip_ort.dataset import TABLE, Dataset, open_dataset
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
    with pytest.raises(UsageFault, match=rf"captions_val\.json: images\[0\]: image '{name}' leaves the folder"):
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
        (
            IMAGES,
            [{"image_id": True, "caption": "x"}],
            r"annotations\[0\]: field 'image_id' of type int expected, True",
        ),
        (IMAGES, [{"image_id": 99, "caption": "x"}], r"annotations\[0\]: image 99 is not listed in the file"),
        (IMAGES, [{"image_id": 7, "caption": "\ud83d"}], r"annotations\[0\]: .* holds half of a surrogate pair"),
        ([*IMAGES, IMAGES[0]], [], r"images\[3\]: image id 7 is listed more than once"),
    ],
)
def test_annotations_that_are_wrong(tmp_path, images, annotations, message):
    path = write_captions(tmp_path, images, annotations)
    with pytest.raises(UsageFault, match=message) as fault:
        open_dataset(f"coco:{tmp_path}")
    assert str(path) in str(fault.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"images":\n [}', "line 2 column 3: not JSON"),
        (b"[1]", "the file: field 'images' of type list expected"),
        (b'{"images": [],\n "x": "caf\xe9"}', "line 2: UTF-8 expected, byte 0xe9 found"),
        (b"[" * 100_000, "line 1: not JSON that can be read"),
    ],
)
def test_annotations_that_are_no_json_object(folder, content, message):
    path = folder / "annotations/captions_val.json"
    path.write_bytes(content)
    with pytest.raises(UsageFault, match=message) as fault:
        open_dataset(f"coco:{folder}")
    assert str(fault.value).startswith(str(path))


def test_byte_order_mark_is_accepted(folder):
    before = open_dataset(f"coco:{folder}").captions
    path = folder / "annotations/captions_val.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert open_dataset(f"coco:{folder}").captions.equals(before)


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
        ("zzz", "known: demo, coco, jsonl, flickr, frame, sugarcrepe"),
        ("jsonl", "jsonl needs a file"),
        ("flickr", "flickr needs a file of captions"),
        ("frame", "frame needs a file"),
        ("sugarcrepe", "sugarcrepe needs its folder"),
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


def whole(folder: Path, captions: dict[int, int]) -> Dataset:
    """A data set of images with so many captions each, every image annotated and with one perturbation."""
    rows = [{"image_id": i, "caption": f"{i} {n}"} for i, many in captions.items() for n in range(many)]
    write_captions(folder, [{"id": i, "file_name": f"{i}.png"} for i in captions], rows)
    write_instances(folder, list(captions), [(i, "cat") for i in captions])
    data = open_dataset(f"coco:{folder}", images=False)
    first = data.captions.filter(pl.col("caption_index") == 0)
    table = first.with_columns(kind=pl.lit("flip"), family=pl.lit("colour"), perturbed=pl.lit("x"))
    return replace(data, table=table.select(TABLE.names()))


def parts(data: Dataset) -> list[list[str]]:
    """The image ids of every frame of a data set, each once."""
    frames = (data.images, data.captions, data.annotated, data.table)
    return [frame["image_id"].unique(maintain_order=True).to_list() for frame in frames]


def test_head_keeps_images_with_all_that_is_theirs(tmp_path):
    data = whole(tmp_path, {7: 3, 3: 2, 5: 1})
    assert parts(data.head(2)) == [["7", "3"]] * 4
    assert data.head(1).captions["text"].to_list() == ["7 0", "7 1", "7 2"]


def test_sample_is_of_images_with_five_captions(tmp_path):
    data = whole(tmp_path, {1: 5, 2: 4, 3: 5, 4: 6, 5: 5, 6: 1, 7: 7})
    assert parts(data.sample(3, 0)) == [["1", "3", "5"]] * 4
    with pytest.raises(UsageFault, match="4 images with exactly five captions asked for, 3 are there"):
        data.sample(4, 0)


def test_sample_depends_on_seed_and_ids_alone(tmp_path):
    ids = list(range(1, 31))
    data = whole(tmp_path, dict.fromkeys(ids, 5))
    drawn = data.sample(10, 0).images["image_id"].to_list()
    assert drawn == ["1", "3", "10", "12", "17", "18", "20", "21", "23", "25"]  # fixed for good: results quote it
    assert data.sample(10, 1).images["image_id"].to_list() != drawn
    assert set(data.sample(4, 0).images["image_id"]) < set(drawn)
    turned = whole(tmp_path, dict.fromkeys(ids[::-1], 5)).sample(10, 0)
    assert turned.images["image_id"].to_list() == drawn[::-1]


def test_without_images_nobody_looks_for_them(folder):
    with_images = open_dataset(f"coco:{folder}")
    identity = with_images.sha256()
    shutil.rmtree(folder / "val")
    data = open_dataset(f"coco:{folder}", images=False)
    assert data.images.equals(with_images.images)
    assert data.captions.equals(with_images.captions)
    assert (data.missing, data.named) == ([], 2)
    assert data.sha256() != identity  # no sizes of files in it


def test_columns_are_for_frames_only():
    with pytest.raises(UsageFault, match="--columns names the columns of frame:FILE; demo"):
        open_dataset("demo", columns="image=x")


def test_annotated_categories(folder):
    write_instances(folder, [7, 5], [(7, "cat"), (5, "dog"), (7, "cat"), (7, "hot dog")])
    data = open_dataset(f"coco:{folder}")
    assert data.annotated.rows() == [("7", "cat"), ("7", "hot dog")]  # image 5 has no captions
    assert data.annotated.schema == {"image_id": pl.String, "category": pl.String}


def test_no_annotated_categories(folder):
    write_instances(folder, [7], [(7, "cat")], "val2017")
    assert open_dataset(f"coco:{folder}").annotated is None


def test_parts_of_the_annotations(folder):
    write_instances(folder, [7], [(7, "cat")], "val_1")
    write_instances(folder, [3], [(3, "dog")], "val_2")
    assert open_dataset(f"coco:{folder}").annotated.rows() == [("7", "cat"), ("3", "dog")]
    write_instances(folder, [3], [(3, "bus")], "val")
    assert open_dataset(f"coco:{folder}").annotated.rows() == [("3", "bus")]


def test_outlines_are_passed_over(folder):
    path = write_instances(folder, [7], [(7, "cat"), (7, "dog")])
    data = json.loads(path.read_text())
    data["annotations"][0] = {"segmentation": [[1.5, 2e3], [-3]]} | data["annotations"][0] | {"bbox": [1, 2, 3, 4]}
    data["annotations"][1]["segmentation"] = [[1, 2]]
    data["annotations"].append({"segmentation": {"counts": [1], "size": [2]}, "image_id": 7, "category_id": 0})
    path.write_text(json.dumps(data))
    assert open_dataset(f"coco:{folder}").annotated["category"].to_list() == ["cat", "dog"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": 99}, r"annotations\[1\]: image 99 is not listed in the file"),
        ({"category_id": 99}, r"annotations\[1\]: category 99 is not listed in the file"),
        ({"category_id": "cat"}, r"annotations\[1\]: field 'category_id' of type int expected, 'cat' found"),
    ],
)
def test_instances_that_are_wrong(folder, change, message):
    path = write_instances(folder, [7], [(7, "cat"), (7, "dog")])
    data = json.loads(path.read_text())
    data["annotations"][1] |= change
    path.write_text(json.dumps(data))
    with pytest.raises(UsageFault, match=rf"instances_val\.json: {message}"):
        open_dataset(f"coco:{folder}")


def test_instances_that_are_no_json(folder):
    path = write_instances(folder, [7], [(7, "cat")])
    path.write_text(path.read_text()[:-1] + "\n")
    with pytest.raises(UsageFault, match=r"instances_val\.json: line 2 column 1: not JSON"):
        open_dataset(f"coco:{folder}")


def test_real_coco(shared):
    with pytest.raises(UsageFault, match=r"4,966 of 5,000 images are not there, the first is .*val2017/\d{12}\.jpg"):
        open_dataset(f"coco:{shared / 'coco'}")
    data = open_dataset(f"coco:{shared / 'coco'}:val2017", available_only=True)
    assert (len(data.images), data.named, len(data.missing)) == (34, 5000, 4966)
    assert len(data.captions) == 170
    assert data.captions["image_id"].unique().len() == 34
    assert set(data.annotated["image_id"]) <= set(data.images["image_id"])
    assert len(data.annotated) == 70


def test_real_coco_without_images(shared):
    data = open_dataset(f"coco:{shared / 'coco'}:val2017", images=False)
    assert (len(data.images), len(data.captions)) == (5000, 25_014)
    assert data.annotated["image_id"].n_unique() == 79
    drawn = data.sample(1000, 0).captions.group_by("image_id").len()["len"]
    assert drawn.to_list() == [5] * 1000
