"""Records of text files, read so that a fault names the file and the line or record it lies in."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lgip_ort.errors import UsageFault


def read_text(path: Path) -> str:
    """A UTF-8 file whole, its line ends as they are; a byte-order mark is no part of it.

    Raises UsageFault where it can't be read, and for bytes that are not UTF-8 with their line.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageFault(f"{path}: not there") from error
    except (OSError, ValueError) as error:
        raise UsageFault(f"{path}: can't be read: {error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        found = error.object[error.start]
        raise UsageFault(f"{path}: line {line}: UTF-8 expected, byte 0x{found:02x} found") from error


def read_json(path: Path) -> Any:
    """A JSON file whole. Raises UsageFault as `read_text`, and with line and column where it is not JSON."""
    return _parse(read_text(path), path, 1)


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Every line of a JSON-lines file that is not blank, as (where it stands, value).

    Raises UsageFault as `read_text`, and with line and column where a line is not JSON.
    """
    for number, line in lines(path):
        yield f"{path}: line {number}", _parse(line, path, number)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Every line that is not blank with its number. Raises UsageFault as `read_text`.

    Only a line feed ends a line (a carriage return before it goes, too): captions hold other characters that do.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def csv_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The columns `names` of a CSV (or, by its suffix, TSV) file with a header, as (where a row stands, values).

    Quoted values may hold line ends, which are kept. Raises UsageFault as `read_text`, and with the line where a
    column is missing or a row has more or fewer values than the header.
    """
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    began = 1
    header: list[str] | None = None
    try:
        for row in reader:
            where, began = f"{path}: line {began}", reader.line_num + 1
            if not row:
                continue
            if header is None:
                header = row
                places = [column(name, header, path) for name in names]
            elif len(row) != len(header):
                raise UsageFault(f"{where}: {len(header)} values expected, {len(row)} found")
            else:
                yield where, [row[place] for place in places]
    except csv.Error as error:
        raise UsageFault(f"{path}: line {began}: not CSV: {error}") from error
    if header is None:
        raise UsageFault(f"{path}: no header, the file is empty")


def column(name: str, header: Sequence[str], path: Path) -> int:
    """Where a column stands. Raises UsageFault where there is none or more than one of that name."""
    if list(header).count(name) != 1:
        found = "more than one column" if name in header else "no column"
        raise UsageFault(
            f"{path}: {found} {name!r}; there are: {', '.join(header)} (--columns image=NAME,caption=NAME)"
        )
    return list(header).index(name)


def field(row: Any, name: str, kind: type, where: str) -> Any:
    """`row[name]`, which must be of type `kind`. Raises UsageFault, beginning with `where`, if it isn't."""
    value = row.get(name) if isinstance(row, dict) else None
    # JSON's true is no number, though Python's is
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageFault(f"{where}: field {name!r} of type {kind.__name__} expected, {_short(value)} found")
    return encodable(value, f"{where}: field {name!r}") if isinstance(value, str) else value


def encodable(text: str, where: str) -> str:
    """`text`, if it can be written again: JSON may escape half of a surrogate pair. Raises UsageFault otherwise."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageFault(f"{where}: {_short(text)} holds half of a surrogate pair") from error
    return text


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {line + error.lineno - 1} column {error.colno}"
        raise UsageFault(f"{path}: {at}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 100,000 brackets
        raise UsageFault(f"{path}: line {line}: not JSON that can be read: {error}") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
