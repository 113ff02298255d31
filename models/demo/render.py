"""Render the published scenes again, in COCO's own layout: `python models/demo/render.py [--out DIR]`.

Needs the emoji font that drew them (see `sprites.py`), and gives the same pixels and the same captions every time.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):
    # Run as a file: the project is found from the root, and no file of this folder hides a package.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import json
from typing import Any

from PIL import Image

from models.demo import HELD_OUT, PUBLISHED_SEED, SCENES, SIZE, SPLIT
from models.demo.grammar import captions
from models.demo.scenes import Instance, scene
from models.demo.sprites import FONT, font_is_the_published_one
from models.demo.words import OBJECTS

INFO = {
    "description": "Rendered scenes of tinted emoji, see models/demo/README.md",
    "licence": "Apache-2.0; drawings from Noto Color Emoji, SIL Open Font License 1.1",
}

EFFORT = 80
"""WebP's effort, out of 100, at shrinking a lossless image: the last 20 cost ten times the rest and save 1 %."""


def coco_instance(instance: Instance, image_id: int, number: int) -> dict[str, Any]:
    """One drawn object as COCO writes it, with its colour added."""
    return {
        "id": number,
        "image_id": image_id,
        "category_id": OBJECTS[instance.object].id,
        "bbox": list(instance.box),
        "area": instance.area,
        "iscrowd": 0,
        "attributes": {"colour": instance.colour},
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """Write JSON with one entry of a list a line, so that a difference can be read."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in value)
            parts.append(f"{json.dumps(key)}:[\n{rows}\n]")
        else:
            parts.append(f"{json.dumps(key)}:{json.dumps(value)}")
    path.write_text("{" + ",\n".join(parts) + "}\n", "utf-8")


def render_set(out: Path, seed: int, count: int) -> None:
    """Write `count` scenes of the stream `seed` to `out`: images, captions, instances. Image ids begin at 1."""
    (out / "annotations").mkdir(parents=True, exist_ok=True)
    (out / SPLIT).mkdir(exist_ok=True)
    images: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    drawn: list[dict[str, Any]] = []
    for image_id in range(1, count + 1):
        spec, pixels, instances = scene(seed, image_id)
        name = f"{image_id:012d}.webp"
        Image.fromarray(pixels).save(out / SPLIT / name, lossless=True, quality=EFFORT, method=6)
        images.append({"id": image_id, "file_name": name, "width": SIZE, "height": SIZE})
        for text in captions(spec, seed, image_id):
            texts.append({"id": len(texts) + 1, "image_id": image_id, "caption": text})
        for instance in instances:
            drawn.append(coco_instance(instance, image_id, len(drawn) + 1))
    categories = [{"id": noun.id, "name": noun.name, "supercategory": noun.supercategory} for noun in OBJECTS.values()]
    write(out / "annotations" / f"captions_{SPLIT}.json", {"info": INFO, "images": images, "annotations": texts})
    write(
        out / "annotations" / f"instances_{SPLIT}.json",
        {"info": INFO, "images": images, "annotations": drawn, "categories": categories},
    )


def main() -> None:
    """Parse the command line and render. Exit status 2 without the right font."""
    parser = argparse.ArgumentParser(description="Render the published scenes again.")
    parser.add_argument("--out", type=Path, default=SCENES)
    options = parser.parse_args()
    if not font_is_the_published_one():
        parser.error(f"{FONT} is missing or of another version than the one that drew the scenes")
    render_set(options.out, PUBLISHED_SEED, HELD_OUT)
    print(f"{HELD_OUT} scenes in {options.out}")


if __name__ == "__main__":
    main()
