"""A table of captions: `frame:FILE` reads Parquet, CSV, TSV or JSON lines with a column of images and one of captions.

An image's captions are the rows that name it. Image paths are relative to the file's folder, or absolute.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from lgip_ort.dataset import Dataset
from lgip_ort.dataset.build import by_path
from lgip_ort.dataset.records import column, csv_rows, field, json_lines
from lgip_ort.errors import UsageFault, did_you_mean

COLUMNS = ("image", "caption")


def read(argument: str, columns: str | None = None) -> Dataset:
    """The captions of a file, in its order; `columns` as `image=NAME,caption=NAME`.

    Raises UsageFault naming the line, row or column at fault.
    """
    if not argument:
        raise UsageFault("frame needs a file: frame:FILE")
    path = Path(argument)
    image, caption = _names(columns)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        paths, texts = _parquet(path, image, caption)
    elif suffix in (".csv", ".tsv"):
        paths, texts = _unzip(values for _, values in csv_rows(path, (image, caption)))
    elif suffix in (".jsonl", ".ndjson"):
        paths, texts = _unzip(
            [field(row, name, str, where) for name in (image, caption)] for where, row in json_lines(path)
        )
    else:
        raise UsageFault(f"{path}: a file that ends in .parquet, .csv, .tsv, .jsonl or .ndjson expected")
    return by_path(path.stem, path.parent, paths, texts)


def _names(columns: str | None) -> tuple[str, str]:
    """The names of the columns of images and captions."""
    names = dict(zip(COLUMNS, COLUMNS, strict=True))
    for part in columns.split(",") if columns else []:
        key, equals, name = part.partition("=")
        if key not in names:
            raise UsageFault(f"--columns {columns}: unknown {key!r}{did_you_mean(key, names)}")
        if not (equals and name):
            raise UsageFault(f"--columns {columns}: {key}=NAME expected")
        names[key] = name
    return names["image"], names["caption"]


def _parquet(path: Path, image: str, caption: str) -> tuple[list[str], list[str]]:
    try:
        schema = pl.read_parquet_schema(path)
        for name in (image, caption):
            column(name, list(schema), path)
            if schema[name] not in (pl.String, pl.Categorical, pl.Enum):
                raise UsageFault(f"{path}: column {name!r} of type String expected, {schema[name]} found")
        rows = pl.read_parquet(path, glob=False, columns=list(dict.fromkeys((image, caption))))
    except FileNotFoundError as error:
        raise UsageFault(f"{path}: not there") from error
    # A damaged page may make Polars panic, which is no Exception.
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise UsageFault(f"{path}: not Parquet that can be read: {error}") from error
    for name in (image, caption):
        if rows[name].has_nulls():
            raise UsageFault(f"{path}: row {rows[name].is_null().arg_max()}: column {name!r} has no value")
    return [rows[name].cast(pl.String).to_list() for name in (image, caption)]  # type: ignore[return-value]


def _unzip(rows: Iterator[list[str]]) -> tuple[list[str], list[str]]:
    both = list(rows)
    return [image for image, _ in both], [caption for _, caption in both]
