"""From what was asked for to a data set and its table of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import polars as pl

from lgip_ort.dataset import Dataset, open_dataset
from lgip_ort.dataset.jsonl import write_jsonl
from lgip_ort.errors import UsageFault, did_you_mean
from lgip_ort.perturb.custom import read_lexicon
from lgip_ort.perturb.paper import Pool
from lgip_ort.perturb.suites import SUITES, Options
from lgip_ort.table import from_given, table_parts
from lgip_ort.table_file import Summary, read_table, write_table

OWN = "own"
"""The suite of pairs that the data brings."""


@dataclass(frozen=True)
class Wanted:
    """Data and suite as they are asked for on the command line."""

    data: str = "demo"
    columns: str | None = None
    suite: str | None = None
    paraphrases: str = "wrappers"
    lexicon: Path | None = None
    limit: int | None = None
    sample: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Made:
    """A table that was made: of which data, by which suite and seed, and what it holds."""

    dataset: Dataset
    suite: str
    seed: int
    summary: Summary


def open_pairs(
    wanted: Wanted, available_only: bool, file: Path | None = None
) -> tuple[Dataset, Iterator[pl.DataFrame], str]:
    """The data set, the parts of the table to score on it, in the order of its images, and the name of its suite.

    `file`: a table made before, instead of a suite's. Raises UsageFault where something that was asked for is unknown,
    or where the table has pairs of images that the data set lacks, unless `available_only`.
    """
    dataset = _narrow(open_dataset(wanted.data, available_only, columns=wanted.columns), wanted)
    if file is None:
        suite = _suite(wanted, dataset)
        return dataset, parts_of(wanted, dataset, suite), suite
    table = read_table(file)
    known = _in_order(table, dataset)
    if len(known) < len(table) and not available_only and wanted.limit is None and wanted.sample is None:
        strange = table.join(dataset.images, on="image_id", how="anti")
        raise UsageFault(
            f"{file}: {len(strange):,} of {len(table):,} pairs are of images that {wanted.data} lacks, "
            f"the first is {strange[0, 'image_id']}; --available-only scores the others"
        )
    if known.is_empty():
        raise UsageFault(f"{file}: no pair is of an image of {wanted.data}")
    there = dataset.images.join(known, on="image_id", how="semi", maintain_order="left")
    return dataset.only(there), iter([known]), str(known[0, "suite"])


def write_pairs(wanted: Wanted, path: Path | None) -> Made:
    """Make the table of a suite without looking for images, and write it to `path`, part by part.

    `path` ends in `.parquet` or in `.jsonl` (the released LGIP tools' format); None writes nothing.
    """
    if path is not None and path.suffix not in (".parquet", ".jsonl"):
        raise UsageFault(f"{path}: a name that ends in .parquet or .jsonl expected")
    dataset = _narrow(open_dataset(wanted.data, images=False, columns=wanted.columns), wanted)
    suite = _suite(wanted, dataset)
    parts = parts_of(wanted, dataset, suite)
    if path is None or path.suffix == ".parquet":
        return Made(dataset, suite, wanted.seed, write_table(parts, path))
    table = pl.concat(list(parts))
    write_jsonl(path, dataset.images, dataset.captions, table, dataset.root)
    return Made(dataset, suite, wanted.seed, write_table([table], None))


def _narrow(dataset: Dataset, wanted: Wanted) -> Dataset:
    if wanted.sample is not None:
        dataset = dataset.sample(wanted.sample, wanted.seed)
    return dataset.head(wanted.limit) if wanted.limit is not None else dataset


def _suite(wanted: Wanted, dataset: Dataset) -> str:
    suite = wanted.suite or (OWN if dataset.table is not None else "paper")
    if suite not in (*SUITES, OWN):
        raise UsageFault(f"unknown suite {suite!r}{did_you_mean(suite, [*SUITES, OWN])}")
    if suite == OWN and dataset.table is None:
        raise UsageFault(f"{wanted.data} brings no pairs of its own; --suite {' or '.join(SUITES)} makes some")
    if wanted.lexicon is not None and suite != "strict":
        raise UsageFault(f"--lexicon is for --suite strict, {suite} found")
    if wanted.paraphrases not in get_args(Pool):
        raise UsageFault(
            f"unknown paraphrases {wanted.paraphrases!r}{did_you_mean(wanted.paraphrases, get_args(Pool))}"
        )
    if wanted.paraphrases != "wrappers" and suite != "paper":
        raise UsageFault(f"--paraphrases {wanted.paraphrases} is for --suite paper, {suite} found")
    return suite


def parts_of(wanted: Wanted, dataset: Dataset, suite: str) -> Iterator[pl.DataFrame]:
    """The table of `suite` on `dataset`, part by part, in the order of its images."""
    if suite == OWN:
        assert dataset.table is not None
        yield from_given(_in_order(dataset.table, dataset), OWN)
        return
    pool: Pool = "advanced" if wanted.paraphrases == "advanced" else "wrappers"
    options = Options(pool, read_lexicon(wanted.lexicon) if wanted.lexicon else None)
    yield from table_parts(_in_order(dataset.captions, dataset), suite, wanted.seed, options, dataset.annotated)


def _in_order(frame: pl.DataFrame, dataset: Dataset) -> pl.DataFrame:
    """Those rows of `frame` that are of images of `dataset`, in the order of its images."""
    images = dataset.images.select("image_id")
    return images.join(frame, on="image_id", how="inner", maintain_order="left_right").select(frame.columns)
