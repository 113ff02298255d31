"""Options that commands of `bench.py` share, and what they may be."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str,
    typer.Option(
        help="demo, coco:DIR[:split], jsonl:FILE, flickr:FILE:IMAGES, frame:FILE (parquet, csv, jsonl), "
        "or sugarcrepe:DIR:IMAGES."
    ),
]
SuiteName = Annotated[
    str | None,
    typer.Option(
        help="paper, strict, or own: the pairs that the data brings. Default: own where there are any, else paper."
    ),
]
Columns = Annotated[str | None, typer.Option(help="For frame: image=NAME,caption=NAME.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N images.")]
Sample = Annotated[int | None, typer.Option(min=1, help="N drawn images, of those with exactly five captions.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the drawn images and perturbations and of the bootstrap.")]
Pool = Annotated[str, typer.Option(help="Suite paper: wrappers, or advanced.")]
LexiconFile = Annotated[
    Path | None, typer.Option(help="Suite strict: a TOML file whose entries join or replace those of the lexicon.")
]
MarginsFile = Annotated[
    Path | None, typer.Option(help="A TOML file whose entries replace those of lgip_ort/margins.toml.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


class EngineName(StrEnum):
    """What computes the embeddings: the bundle on ONNX Runtime, the PyTorch original, or one after the other."""

    ort = "ort"
    torch = "torch"
    both = "both"


class Format(StrEnum):
    """What a report is written as: a page, or for pull requests, sheets, programs and CI."""

    html = "html"
    md = "md"
    csv = "csv"
    json = "json"
    junit = "junit"
