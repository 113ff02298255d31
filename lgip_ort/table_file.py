"""A table as a file: written part by part, so that memory does not grow with it, and checked when it is read."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from lgip_ort.atomic import replacing, write_frame
from lgip_ort.errors import UsageFault
from lgip_ort.table import KINDS, SCHEMA, unpadded

EXAMPLES = 50
"""Rows of each family that a summary keeps."""

ROW_GROUP = 16_384
"""Rows that are read together: a slice of the table costs little more than itself."""


@dataclass
class Summary:
    """What a table holds, gathered while its parts pass by.

    families: (kind, family) -> number of rows. examples: (kind, family) -> EXAMPLES rows, those with the least pair_id:
    a draw that does not depend on the order of rows. flipped, reworded: captions with a flip, and with a paraphrase
    other than a wrapper. sha256: as `table_sha256` of the whole.
    """

    rows: int = 0
    families: dict[tuple[str, str], int] = field(default_factory=dict)
    examples: dict[tuple[str, str], pl.DataFrame] = field(default_factory=dict)
    flipped: int = 0
    reworded: int = 0
    sha256: str = ""

    def add(self, part: pl.DataFrame) -> None:
        """Take in one part; an image's rows are all in one."""
        self.rows += len(part)
        for key, rows in part.partition_by("kind", "family", as_dict=True, maintain_order=True).items():
            kind, family = str(key[0]), str(key[1])
            self.families[kind, family] = self.families.get((kind, family), 0) + len(rows)
            known = self.examples.get((kind, family), rows.clear())
            self.examples[kind, family] = pl.concat([known, rows]).bottom_k(EXAMPLES, by="pair_id").sort("pair_id")
        caption = pl.struct("image_id", "caption_index")
        other = (pl.col("kind") == "paraphrase") & (pl.col("family") != "wrapper")
        self.flipped += part.filter(pl.col("kind") == "flip").select(caption.n_unique()).item()
        self.reworded += part.filter(other).select(caption.n_unique()).item()

    def kinds(self) -> dict[str, int]:
        """Number of rows of each kind, zeros included."""
        return {kind: sum(n for (k, _), n in self.families.items() if k == kind) for kind in KINDS}


def write_table(parts: Iterable[pl.DataFrame], path: Path | None) -> Summary:
    """Write the parts of a table as one parquet file at `path` (None: nowhere) and say what they hold.

    Parts go to files of their own first and are put together as a stream.
    """
    summary, digest = Summary(), hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(parts):
            summary.add(part)
            digest.update(part["pair_id"].to_numpy().tobytes())
            if path is not None:
                write_frame(Path(folder) / f"{number:06d}.parquet", part)
        if path is not None:
            with replacing(path) as temporary:
                written = sorted(Path(folder).iterdir())
                whole = pl.scan_parquet(written, glob=False) if written else pl.LazyFrame(schema=SCHEMA)
                try:
                    whole.sink_parquet(temporary, maintain_order=True, row_group_size=ROW_GROUP)
                except pl.exceptions.PolarsError as error:
                    raise OSError(f"{path}: can't be written: {error}") from error
    summary.sha256 = digest.hexdigest()
    return summary


def read_table(path: Path) -> pl.DataFrame:
    """A table that was written before, here or by others. Padded lengths in it are another run's: they are left out.

    Raises UsageFault naming the file and the column where the schema, a kind or a pair_id is not as it has to be.
    """
    try:
        table = pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageFault(f"{path}: not a table: {error}") from error
    table = unpadded(table)
    for name, dtype in SCHEMA.items():
        if name not in table.columns:
            raise UsageFault(f"{path}: column {name!r} is missing")
        if table.schema[name] != dtype and not (table.schema[name] == pl.Null and name in ("strength", "verified")):
            raise UsageFault(f"{path}: column {name!r}: {table.schema[name]} found, {dtype} expected")
    table = table.select(SCHEMA.names()).cast(SCHEMA)
    for name in SCHEMA.names()[:8]:
        if nulls := table[name].null_count():
            raise UsageFault(f"{path}: column {name!r}: {nulls} nulls found, none expected")
    unknown = table.filter(~pl.col("kind").is_in(KINDS))
    if len(unknown):
        raise UsageFault(f"{path}: kind {unknown[0, 'kind']!r} found, one of {', '.join(KINDS)} expected")
    if table["pair_id"].is_duplicated().any():
        raise UsageFault(f"{path}: pair_id is not unique")
    return table
