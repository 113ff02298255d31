"""Flickr8k and Flickr30k: `flickr:FILE:IMAGES` reads a token file, a caption a line: `name.jpg#0<TAB>caption`.

The other form in which Flickr8k goes about, a CSV file with the header `image,caption`, is known by its first line.
IMAGES is the folder of the images, or a folder within a zip archive; without it they lie beside the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lgip_ort.dataset import Dataset
from lgip_ort.dataset.build import by_path, contained, two_paths
from lgip_ort.dataset.records import csv_rows, lines
from lgip_ort.errors import UsageFault

HEADER = ["image", "caption"]
TOKEN = re.compile(r"(?P<name>[^\t]+)#\d+\t(?P<caption>.*)", re.DOTALL)


def read(argument: str) -> Dataset:
    """The captions of a token file, in its order. Raises UsageFault naming the line at fault."""
    if not argument:
        raise UsageFault("flickr needs a file of captions and a folder of images: flickr:FILE:IMAGES")
    path, images = two_paths(argument)
    first = next(lines(path), (0, ""))[1]
    rows = list(_csv(path) if first.split(",") == HEADER else _tokens(path))
    root = images if images is not None else path.parent
    return by_path(path.stem, root, [name for name, _ in rows], [caption for _, caption in rows])


def _tokens(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in lines(path):
        where = f"{path}: line {number}"
        match = TOKEN.fullmatch(line)
        if match is None:
            raise UsageFault(f"{where}: `name.jpg#0<TAB>caption` expected, {line[:60]!r} found")
        yield contained(match["name"], where), match["caption"]


def _csv(path: Path) -> Iterator[tuple[str, str]]:
    for where, (name, caption) in csv_rows(path, HEADER):
        yield contained(name, where), caption
