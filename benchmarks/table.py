"""How fast, and in how much memory, tables are made: `python benchmarks/table.py --data coco:DIR [--images 40000]`.

The captions are repeated under new image ids until there are enough images with exactly five of them; every suite
is written to a file in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import polars as pl
import typer

from lgip_ort.dataset import open_dataset
from lgip_ort.perturb.suites import SUITES
from lgip_ort.table import table_parts
from lgip_ort.table_file import write_table


def repeated(data: str, images: int) -> pl.DataFrame:
    """Captions (image_id, caption_index, text) of `images` images with five captions each."""
    captions = open_dataset(data, images=False).captions
    five = captions.filter(pl.len().over("image_id") == 5)
    there = five["image_id"].n_unique()
    copies = [
        five.with_columns(pl.concat_str(pl.lit(f"{n}-"), "image_id").alias("image_id"))
        for n in range(-(-images // there))
    ]
    return pl.concat(copies).head(images * 5)


def main(
    data: str = typer.Option(..., help="As for bench.py."),
    images: int = typer.Option(40_000, min=1),
    suite: str = typer.Option("", hidden=True),
) -> None:
    """Print seconds, rows and peak memory of every suite, as JSON."""
    if suite:
        captions = repeated(data, images)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            made = write_table(table_parts(captions, suite, 0), Path(folder) / "table.parquet")
            seconds = time.perf_counter() - began
            size = (Path(folder) / "table.parquet").stat().st_size
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        row = {"suite": suite, "captions": len(captions), "rows": made.rows, "seconds": round(seconds, 1)}
        print(json.dumps(row | {"peak_mb": peak // 1024, "before_mb": before // 1024, "file_mb": size // 2**20}))
        return
    for name in SUITES:
        command = [sys.executable, __file__, "--data", data, "--images", str(images), "--suite", name]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    typer.run(main)
