"""The interchange of the LGIP tools: `jsonl:FILE`, an image a line, with or without its perturbations.

    {"image_path": "val2017/000000000139.jpg",
     "orig_captions": ["A red bus.", ...],
     "same_caps": {"0": ["a photo of A red bus.", ...], ...},
     "diff_caps": {"0": ["A blue bus.", {"text": "Two red bus.", "flip_type": "number"}], ...},
     "diff_caps_color": {"0": ["A blue bus."]}}

Each map goes from the places of captions to lists. An entry of `diff_caps` is a text, or one with its type; the texts
of `diff_caps_<type>` are of that type. Two fields of this project's own go beyond that, and other tools pass over them:
`image_id`, and `same_caps_family` with the families of `same_caps`.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from lgip_ort.atomic import replacing
from lgip_ort.dataset import TABLE, Dataset
from lgip_ort.dataset.build import captions_frame, image_ids, images_frame
from lgip_ort.dataset.records import encodable, field, json_lines
from lgip_ort.errors import UsageFault

FAMILIES = {"color": "colour", "number": "count"}
"""Types of flips that are called otherwise here; all others keep their name."""

GIVEN = "given"
"""The family of a perturbation that came without one."""

COMBINED = "para+"
"""What the type of a flip of a paraphrase begins with."""

IMAGES_AT_ONCE = 2000
"""Images whose perturbations are held as Python objects while a file is written."""

Perturbed = tuple[int, str, str, str]  # caption_index, kind, family, perturbed


def read(argument: str) -> Dataset:
    """The images of a file, paths relative to its folder; those without a caption are left out.

    Raises UsageFault naming the line at fault.
    """
    if not argument:
        raise UsageFault("jsonl needs a file: jsonl:FILE")
    path = Path(argument)
    captions: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    rows: dict[str, list[Perturbed]] = {}
    for where, record in json_lines(path):
        name = field(record, "image_path", str, where)
        if name in captions:
            raise UsageFault(f"{where}: image {name!r} has a line already")
        texts = field(record, "orig_captions", list, where)
        captions[name] = [_text(text, f"{where}: orig_captions[{i}]") for i, text in enumerate(texts)]
        rows[name] = list(dict.fromkeys([*_paraphrases(record, where), *_flips(record, where)]))
        if record.get("image_id") is not None:
            given[name] = field(record, "image_id", str, where)
    captions = {name: texts for name, texts in captions.items() if texts}
    ids = _ids(list(captions), given, path)
    return Dataset(
        name=path.stem,
        root=path.parent,
        images=images_frame(list(ids.values()), list(ids), ""),
        captions=captions_frame(
            [ids[name] for name, texts in captions.items() for _ in texts],
            [text for texts in captions.values() for text in texts],
        ),
        missing=[],
        named=len(ids),
        table=_table(captions, ids, rows) if any(rows.values()) else None,
    )


def write_jsonl(
    path: Path, images: pl.DataFrame, captions: pl.DataFrame, table: pl.DataFrame, root: Path | None = None
) -> None:
    """Write images (image_id, path), captions and perturbations (columns of TABLE) for the LGIP tools.

    The file is there whole or not at all. Paths are written as they are, or, where `root` says what they are relative
    to, relative to the file's folder. An image's captions are numbered anew from 0, in their order. Identity pairs are
    left out: a tool that does not know them would take them for paraphrases.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for part in images.select("image_id", "path").iter_slices(IMAGES_AT_ONCE):
            texts, place = _by_image(captions.join(part, on="image_id", how="semi", maintain_order="left"))
            perturbed = _maps(table.join(part, on="image_id", how="semi", maintain_order="left"), place)
            for image_id, name in part.iter_rows():
                record = {
                    "image_path": name if root is None else _relative(root / name, path.parent),
                    "image_id": image_id,
                    "orig_captions": texts[image_id],
                    **perturbed[image_id],
                }
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _paraphrases(record: Any, where: str) -> Iterator[Perturbed]:
    families = dict(_entries(record, "same_caps_family", where))
    for index, entries in _entries(record, "same_caps", where):
        at = f"{where}: same_caps[{index}]"
        names = families.get(index, [GIVEN] * len(entries))
        if len(names) != len(entries):
            raise UsageFault(f"{at}: {len(names)} families for {len(entries)} texts")
        for name, entry in zip(names, entries, strict=True):
            yield index, "paraphrase", _text(name, at), _text(entry, at)


def _flips(record: Any, where: str) -> Iterator[Perturbed]:
    typed = set()
    for name in record:
        if name.startswith("diff_caps_"):
            for index, entries in _entries(record, name, where):
                for entry in entries:
                    text = _text(entry, f"{where}: {name}[{index}]")
                    typed.add((index, text))
                    yield index, *_kind(name.removeprefix("diff_caps_")), text
    for index, entries in _entries(record, "diff_caps", where):
        at = f"{where}: diff_caps[{index}]"
        for entry in entries:
            if isinstance(entry, dict) and entry.get("flip_type") is not None:
                yield index, *_kind(field(entry, "flip_type", str, at)), field(entry, "text", str, at)
                continue
            text = field(entry, "text", str, at) if isinstance(entry, dict) else _text(entry, at)
            if (index, text) not in typed:
                yield index, "flip", GIVEN, text


def _kind(flip_type: str) -> tuple[str, str]:
    """Kind and family of a type of flip."""
    base = flip_type.removeprefix(COMBINED)
    return "flip" if base == flip_type else "combined", FAMILIES.get(base, base)


def _entries(record: Any, name: str, where: str) -> Iterator[tuple[int, list[Any]]]:
    """A map from captions' places to lists, as (place, list); nothing where the record has no such field."""
    if record.get(name) is None:
        return
    captions = len(record["orig_captions"])
    for key, entries in field(record, name, dict, where).items():
        if not (key.isascii() and key.isdigit() and len(key) < 9 and int(key) < captions):
            raise UsageFault(f"{where}: {name} names caption {key!r}, there are {captions}, counted from 0")
        if not isinstance(entries, list):
            raise UsageFault(f"{where}: {name}[{key}]: a list expected, {type(entries).__name__} found")
        yield int(key), entries


def _text(entry: Any, where: str) -> str:
    if not isinstance(entry, str):
        raise UsageFault(f"{where}: a text expected, {type(entry).__name__} found")
    return encodable(entry, where)


def _ids(names: list[str], given: dict[str, str], path: Path) -> dict[str, str]:
    """The image id of every image path, its own where it has one."""
    ids = {name: given.get(name, made) for name, made in zip(names, image_ids(names), strict=True)}
    seen: dict[str, str] = {}
    for name, image_id in ids.items():
        if image_id in seen:
            raise UsageFault(f"{path}: {seen[image_id]!r} and {name!r} have the same image_id {image_id!r}")
        seen[image_id] = name
    return ids


def _table(captions: dict[str, list[str]], ids: dict[str, str], rows: dict[str, list[Perturbed]]) -> pl.DataFrame:
    columns: dict[str, list[Any]] = {name: [] for name in TABLE}
    for name, texts in captions.items():
        for index, kind, family, perturbed in rows[name]:
            for column, value in zip(columns, (ids[name], index, kind, family, texts[index], perturbed), strict=True):
                columns[column].append(value)
    return pl.DataFrame(columns, schema=TABLE)


def _by_image(captions: pl.DataFrame) -> tuple[dict[str, list[str]], dict[tuple[str, int], str]]:
    """The captions of every image, and where each stands among them, as a key of the maps."""
    texts: dict[str, list[str]] = defaultdict(list)
    place: dict[tuple[str, int], str] = {}
    rows = captions.sort("caption_index", maintain_order=True).select("image_id", "caption_index", "text")
    for image_id, index, text in rows.iter_rows():
        place[image_id, index] = str(len(texts[image_id]))
        texts[image_id].append(text)
    return texts, place


def _maps(table: pl.DataFrame, place: dict[tuple[str, int], str]) -> dict[str, dict[str, dict[str, list[Any]]]]:
    """`same_caps`, `same_caps_family` and `diff_caps` of every image."""
    types = {family: flip_type for flip_type, family in FAMILIES.items()}
    maps: dict[str, dict[str, dict[str, list[Any]]]] = defaultdict(
        lambda: {name: defaultdict(list) for name in ("same_caps", "same_caps_family", "diff_caps")}
    )
    columns = ("image_id", "caption_index", "kind", "family", "perturbed")
    for image_id, index, kind, family, perturbed in table.select(columns).iter_rows():
        key = place[image_id, index]
        if kind == "paraphrase":
            maps[image_id]["same_caps"][key].append(perturbed)
            maps[image_id]["same_caps_family"][key].append(family)
        elif kind in ("flip", "combined"):
            flip_type = (COMBINED if kind == "combined" else "") + types.get(family, family)
            maps[image_id]["diff_caps"][key].append({"text": perturbed, "flip_type": flip_type})
    return maps


def _relative(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive of Windows
        return path.absolute().as_posix()
