"""The demo scenes: captions that are true, rendering that repeats, and a published set that is what it claims to be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models import demo
from models.demo import corpus, grammar, scenes, sprites
from models.demo.scenes import Spec
from models.demo.words import COLOURS, COUNTS, GROUNDS, OBJECTS

ROOT = Path(__file__).resolve().parents[1]
MEGABYTE = 1_000_000

needs_font = pytest.mark.skipif(
    not sprites.font_is_the_published_one(), reason="the emoji font that drew the scenes is not installed"
)

SINGULAR = {word: noun.name for noun in OBJECTS.values() for word in (noun.name, *(s for s, _ in noun.synonyms))}
PLURAL = {word: noun.name for noun in OBJECTS.values() for word in (noun.plural, *(p for _, p in noun.synonyms))}
NOUNS = SINGULAR | PLURAL
SHADES = {word: colour.name for colour in COLOURS.values() for word in (colour.name, *colour.synonyms)}
NUMBERS = {word: number for number, word in enumerate(COUNTS, start=1)} | {
    "single": 1,
    "pair": 2,
    "couple": 2,
    "both": 2,
}


def any_of(words: dict[str, str]) -> str:
    """A group that matches any of the words, longest first ("dark brown" before "brown")."""
    return "(" + "|".join(sorted(words, key=len, reverse=True)) + ")"


MENTION = re.compile(rf"\b(?:{any_of(SHADES)} )?{any_of(NOUNS)}\b")
SAID_OF = re.compile(rf"(?:\bis|\bare|\bboth|\ball of them) {any_of(SHADES)}\.?$")
GROUND_WORDS = {
    name: " ".join([ground.phrase, *ground.places]).format(a_wall="").split() for name, ground in GROUNDS.items()
}


def untruths(caption: str, spec: Spec) -> list[str]:
    """Everything the caption says that the scene does not show."""
    text = caption.lower()
    found = []
    shown = dict([(spec.object, spec.colour), *([spec.second] if spec.second else [])])
    mentions = [(colour, noun) for colour, noun in MENTION.findall(text)]
    if spec.object not in {NOUNS[noun] for _, noun in mentions}:
        found.append("does not name the object")
    for colour, noun in mentions:
        name = NOUNS[noun]
        if name not in shown:
            found.append(f"names a {name}")
        elif colour and SHADES[colour] != shown[name]:
            found.append(f"calls the {name} {colour}")
        if (noun in PLURAL) != (name == spec.object and spec.count > 1):
            found.append(f"wrong number of {noun}")
    for word in re.findall(r"[a-z]+", text):
        if word in NUMBERS and NUMBERS[word] != spec.count:
            found.append(f"counts {word}")
        if word in COLOURS and word not in (*shown.values(), spec.wall, *GROUND_WORDS[spec.ground]):
            found.append(f"mentions {word}")
    if said := SAID_OF.search(text):
        found += [f"says {said[1]}"] if SHADES[said[1]] != spec.colour else []
    return found


def some_specs(count: int) -> list[tuple[int, Spec]]:
    return [(index, scenes.sample(scenes.stream(demo.DEV_SEED, index, "spec"))) for index in range(count)]


def test_captions_are_true_to_their_scene() -> None:
    for index, spec in some_specs(600):
        for caption in grammar.captions(spec, demo.DEV_SEED, index):
            assert untruths(caption, spec) == [], (caption, spec)


@pytest.mark.parametrize(
    "caption",
    [
        "Two red dogs.",
        "Three blue dogs.",
        "Three red cats.",
        "Three red dog.",
        "A pair of dogs.",
        "The dogs on a road are blue.",
        "Three dogs next to a truck",
        "Three dogs near a white cat.",
        "Three dogs against a green wall",
        "A sandy beach.",
    ],
)
def test_the_check_itself_finds_untruths(caption: str) -> None:
    spec = Spec("dog", "red", 3, "road", second=("cat", "black"))
    assert untruths(caption, spec)
    assert untruths("Three red dogs near a black cat on a gray road.", spec) == []


def test_captions_agree_with_articles_and_leave_no_gaps() -> None:
    for index, spec in some_specs(600):
        for caption in grammar.captions(spec, demo.DEV_SEED, index):
            assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]|  | [.,]|[{}]|\bplain\b.*\bplain\b", caption), (
                caption
            )


def test_captions_are_five_different_ones_and_repeat() -> None:
    for index, spec in some_specs(200):
        first = grammar.captions(spec, 1, index)
        assert len(set(first)) == grammar.CAPTIONS_PER_SCENE == 5
        assert first == grammar.captions(spec, 1, index)
        assert first != grammar.captions(spec, 2, index)


def test_specs_cover_everything_and_never_hide_an_object() -> None:
    specs = [spec for _, spec in some_specs(3000)]
    assert {spec.object for spec in specs} == set(OBJECTS)
    assert {spec.colour for spec in specs} == set(COLOURS)
    assert {spec.count for spec in specs} == {1, 2, 3, 4, 5}
    assert {spec.ground for spec in specs} == set(GROUNDS)
    assert all((spec.wall is None) == (spec.ground != "wall") for spec in specs)
    assert all(spec.wall is None or spec.wall not in [colour for _, colour in spec.things()] for spec in specs)
    assert all(spec.second is None or spec.second[0] != spec.object for spec in specs)
    assert 0.12 < np.mean([spec.second is not None for spec in specs]) < 0.24


def test_boxes_stay_inside_and_apart() -> None:
    rng = scenes.stream(3, 0, "layout")
    overlapping = 0
    for _ in range(100):
        boxes = scenes.place([(18, 18)] * 5, rng)
        assert all(x >= 0 and y >= 0 and x + w <= demo.SIZE and y + h <= demo.SIZE for x, y, w, h in boxes)
        overlapping += any(scenes.overlap(box, boxes[:number]) for number, box in enumerate(boxes))
    assert overlapping < 10


@needs_font
def test_rendering_repeats_and_does_not_depend_on_what_came_before() -> None:
    _, alone, instances = scenes.scene(demo.DEV_SEED, 7)
    for index in range(3):
        scenes.scene(demo.DEV_SEED, index)
    _, again, same = scenes.scene(demo.DEV_SEED, 7)
    assert alone.shape == (demo.SIZE, demo.SIZE, 3) and alone.dtype == np.uint8
    assert np.array_equal(alone, again) and instances == same
    assert not np.array_equal(alone, scenes.scene(demo.TRAIN_SEED, 7)[1])


@needs_font
@pytest.mark.parametrize("colour", ["red", "green", "blue", "white", "black"])
def test_an_object_has_the_colour_it_is_called(colour: str) -> None:
    pixels = np.asarray(sprites.painted("car", colour), dtype=float)
    typical = np.median(pixels[pixels[..., 3] > 250][:, :3], axis=0)
    distance = {name: np.linalg.norm(typical - np.array(entry.rgb)) for name, entry in COLOURS.items()}
    assert min(distance, key=distance.__getitem__) == colour


@needs_font
def test_cached_scenes_are_the_drawn_ones_and_leave_nothing_partial(tmp_path: Path) -> None:
    made = corpus.load(demo.DEV_SEED, 5, tmp_path, processes=1)
    kept = corpus.load(demo.DEV_SEED, 5, tmp_path, processes=1)
    for index in range(5):
        spec, pixels, _ = scenes.scene(demo.DEV_SEED, index)
        assert np.array_equal(made.pixels[index], pixels) and np.array_equal(kept.pixels[index], pixels)
        assert kept.captions[index] == grammar.captions(spec, demo.DEV_SEED, index)
        assert (kept.objects[index], kept.colours[index]) == (spec.object, spec.colour)
    stem = f"scenes-{corpus.fingerprint(demo.DEV_SEED, 5)}"
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{stem}.json", f"{stem}.npy"]
    assert corpus.fingerprint(demo.DEV_SEED, 5) != corpus.fingerprint(demo.TRAIN_SEED, 5)


def annotations(path: Path) -> dict[str, list[dict]]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_published_set_has_400_scenes_of_five_captions() -> None:
    captions = annotations(demo.CAPTIONS)
    ids = [entry["id"] for entry in captions["images"]]
    assert ids == list(range(1, demo.HELD_OUT + 1))
    assert Counter(entry["image_id"] for entry in captions["annotations"]) == dict.fromkeys(ids, 5)
    assert len({entry["id"] for entry in captions["annotations"]}) == 5 * len(ids)
    assert annotations(demo.INSTANCES)["images"] == captions["images"]


def test_published_files_are_small_lossless_images() -> None:
    files = sorted(demo.IMAGES.iterdir())
    assert [file.name for file in files] == [entry["file_name"] for entry in annotations(demo.CAPTIONS)["images"]]
    assert sum(file.stat().st_size for file in demo.SCENES.rglob("*") if file.is_file()) < 3 * MEGABYTE
    for file in files:
        assert b"VP8L" in file.read_bytes()[:32], f"{file.name} is not lossless WebP"
        with Image.open(file) as image:
            assert image.size == (demo.SIZE, demo.SIZE) and image.mode == "RGB"


@needs_font
def test_published_scenes_equal_a_fresh_render() -> None:
    captions = annotations(demo.CAPTIONS)
    committed: dict[int, list[str]] = {entry["id"]: [] for entry in captions["images"]}
    for entry in captions["annotations"]:
        committed[entry["image_id"]].append(entry["caption"])
    drawn: dict[int, list[tuple]] = {image_id: [] for image_id in committed}
    for entry in annotations(demo.INSTANCES)["annotations"]:
        drawn[entry["image_id"]].append((entry["category_id"], entry["attributes"]["colour"], tuple(entry["bbox"])))
    for entry in captions["images"]:
        spec, pixels, instances = scenes.scene(demo.PUBLISHED_SEED, entry["id"])
        with Image.open(demo.IMAGES / entry["file_name"]) as image:
            difference = np.abs(np.asarray(image).astype(int) - pixels)
        # One level of rounding may differ between processors; here it is none.
        assert difference.max() <= 1, entry["file_name"]
        assert committed[entry["id"]] == grammar.captions(spec, demo.PUBLISHED_SEED, entry["id"])
        assert drawn[entry["id"]] == [(OBJECTS[one.object].id, one.colour, one.box) for one in instances]


def test_published_instances_agree_with_captions() -> None:
    instances = annotations(demo.INSTANCES)
    names = {entry["id"]: entry["name"] for entry in instances["categories"]}
    assert sorted(names.values()) == sorted(OBJECTS)
    shown: dict[int, Counter] = {entry["id"]: Counter() for entry in instances["images"]}
    for entry in instances["annotations"]:
        left, top, width, height = entry["bbox"]
        assert min(left, top) >= 0 and max(left + width, top + height) <= demo.SIZE
        assert 0 < entry["area"] <= width * height and entry["iscrowd"] == 0
        shown[entry["image_id"]][names[entry["category_id"]], entry["attributes"]["colour"]] += 1
    counted = re.compile(rf"\b(one|two|three|four|five) (?:{any_of(SHADES)} )?{any_of(NOUNS)}\b")
    checked = 0
    for entry in annotations(demo.CAPTIONS)["annotations"]:
        for number, colour, noun in counted.findall(entry["caption"].lower()):
            present = shown[entry["image_id"]]
            matching = {key: n for key, n in present.items() if key[0] == NOUNS[noun]}
            assert sum(matching.values()) == NUMBERS[number], entry["caption"]
            assert not colour or {key[1] for key in matching} == {SHADES[colour]}, entry["caption"]
            checked += 1
    assert checked > 500


@pytest.mark.parametrize("name", ["", ".words", ".sprites", ".grounds", ".scenes", ".grammar", ".render", ".recipe"])
def test_scenes_need_no_torch(name: str) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'tokenizers', 'sentencepiece']))"
    command = [sys.executable, "-c", f"{blocked}; import models.demo{name}"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).returncode == 0


def test_render_runs_as_a_file_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "models/demo/render.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if not sprites.font_is_the_published_one():
        assert done.returncode == 2 and "NotoColorEmoji" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    for path in (demo.CAPTIONS, demo.INSTANCES):
        assert (tmp_path / path.relative_to(demo.SCENES)).read_bytes() == path.read_bytes()
