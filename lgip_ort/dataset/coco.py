"""COCO's own layout: `coco:DIR[:split]` reads DIR/annotations/captions_<split>.json.

The images are those of the folder DIR/<split>/ or, where there is none, of DIR/<split>.zip as it was downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lgip_ort.dataset import Dataset
from lgip_ort.dataset.build import captions_frame, contained, images_frame
from lgip_ort.dataset.instances import read_annotated
from lgip_ort.dataset.records import field, read_json
from lgip_ort.errors import UsageFault


def read(argument: str) -> Dataset:
    """The split of a COCO folder; images without a caption are left out. Raises UsageFault naming the file at fault."""
    root, split = _split(argument)
    return read_split(root, split, name=f"coco-{split}")


def read_split(root: Path, split: str, name: str) -> Dataset:
    """DIR/annotations/captions_<split>.json with its images and instance annotations, as a dataset called `name`."""
    path = root / "annotations" / f"captions_{split}.json"
    if not path.exists():
        known = ", ".join(_splits(root)) or "none"
        raise UsageFault(f"{path}: not there; splits with captions in {root}: {known}")
    data = read_json(path)
    names = _names(data, path)
    ids, texts = _captions(data, names, path)
    captioned = set(ids)
    kept = [image_id for image_id in names if image_id in captioned]
    archive = f"{split}.zip"
    place = f"{archive}/{split}" if not (root / split).is_dir() and (root / archive).is_file() else split
    return Dataset(
        name=name,
        root=root,
        images=images_frame(kept, [f"{place}/{names[image_id]}" for image_id in kept], split),
        captions=captions_frame(ids, texts),
        missing=[],
        named=len(kept),
        annotated=read_annotated(root, split, captioned),
    )


def _names(data: Any, path: Path) -> dict[str, str]:
    """The file name of every image id."""
    names: dict[str, str] = {}
    for i, row in enumerate(field(data, "images", list, f"{path}: the file")):
        where = f"{path}: images[{i}]"
        image_id = str(field(row, "id", int, where))
        if image_id in names:
            raise UsageFault(f"{where}: image id {image_id} is listed more than once")
        names[image_id] = contained(field(row, "file_name", str, where), where)
    return names


def _captions(data: Any, names: dict[str, str], path: Path) -> tuple[list[str], list[str]]:
    """Image ids and captions, in the order of the file."""
    ids, texts = [], []
    for i, row in enumerate(field(data, "annotations", list, f"{path}: the file")):
        where = f"{path}: annotations[{i}]"
        image_id = str(field(row, "image_id", int, where))
        if image_id not in names:
            raise UsageFault(f"{where}: image {image_id} is not listed in the file")
        ids.append(image_id)
        texts.append(field(row, "caption", str, where))
    return ids, texts


def _split(argument: str) -> tuple[Path, str]:
    if not argument:
        raise UsageFault("coco needs a folder: coco:DIR or coco:DIR:split")
    root = Path(argument)
    folder, colon, split = argument.rpartition(":")
    # A colon may also belong to the folder (C:\coco, data:v2): a split is a plain name after what is no folder.
    if colon and split and not set("/\\") & set(split) and not root.is_dir():
        return Path(folder), split
    splits = _splits(root)
    if len(splits) == 1:
        return root, splits[0]
    if "val2017" in splits:
        return root, "val2017"
    raise UsageFault(f"{root}: name a split (coco:{root}:split); with captions there: {', '.join(splits) or 'none'}")


def _splits(root: Path) -> list[str]:
    return sorted(p.stem.removeprefix("captions_") for p in (root / "annotations").glob("captions_*.json"))
