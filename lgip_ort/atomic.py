"""Files that are there whole or not at all: written under a temporary name beside their place, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block ends, and is removed when it raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_frame(path: Path, frame: pl.DataFrame, metadata: dict[str, str] | None = None) -> None:
    """`frame` as parquet, in one chunk: equal frames give equal bytes, wherever they come from.

    Raises OSError where it can't be written, which Polars has an exception of its own for.
    """
    with replacing(path) as temporary:
        try:
            frame.rechunk().write_parquet(temporary, metadata=metadata)
        except pl.exceptions.PolarsError as error:
            raise OSError(f"{path}: can't be written: {error}") from error


def write_json(path: Path, data: Any) -> None:
    """`data` as indented JSON; NaN and infinity, which are not JSON, raise ValueError."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
