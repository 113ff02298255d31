"""What a run costs in time and memory as the data grows: `python benchmarks/scale.py --data coco:DIR:SPLIT`.

The images that are there are repeated under new ids until there are enough, each with five captions of the source; the
captions of later copies differ by a number, so that none is encoded for another. Two engines: the committed tiny_clip,
and `wide`, whose 768 numbers a text cost nothing, so that what is left is the evaluator's own. Each run is a process
of its own; the peak of its memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import polars as pl
import typer
from PIL.Image import Image

from lgip_ort import metrics
from lgip_ort.atomic import write_json
from lgip_ort.bundle import open_bundle
from lgip_ort.dataset import Dataset, open_dataset
from lgip_ort.engine import EngineStamp, OrtEngine
from lgip_ort.execute import Plan, execute
from lgip_ort.pairs import Wanted, parts_of
from lgip_ort.report.html import write_report
from lgip_ort.run import Run
from lgip_ort.score import Local
from lgip_ort.speed.fresh import peak_bytes
from lgip_ort.stored import store
from models import zoo

WIDE = 768


class Wide:
    """An engine of 768 dimensions that computes next to nothing: random rows, drawn by what comes in."""

    name = "wide"
    dim = WIDE
    batch_size = 256
    stamp = EngineStamp(
        "wide",
        "wide",
        {"source": "random", "name": "seed 0", "revision": None, "sha256": ""},
        "",
        {"asked": "cpu", "active": "cpu", "options": {}},
        {"asked": "fp32", "executed": "fp32"},
        "trained",
    )

    def __init__(self) -> None:
        rows = np.random.default_rng(0).normal(size=(4096, WIDE)).astype(np.float32)
        self._rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def pixels(self, image: Image) -> np.ndarray:
        """float32 (1, 1, 1): the mean of the image."""
        return np.full((1, 1, 1), np.asarray(image).mean(), np.float32)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """float32 (n, 768)."""
        return self._rows[(pixels[:, 0, 0, 0] * 1000).astype(np.int64) % len(self._rows)]

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        """Each text as one number."""
        ids = np.array([[sum(text.encode())] for text in texts], np.int64)
        yield list(range(len(texts))), ids

    def embed_ids(self, ids: np.ndarray) -> np.ndarray:
        """float32 (n, 768)."""
        return self._rows[ids[:, 0] % len(self._rows)]


def repeated(data: str, images: int) -> Dataset:
    """`images` images with five captions each: those of `data` that are there, over and over under new ids."""
    source = open_dataset(data, available_only=True)
    captions = source.captions.filter(pl.col("caption_index") < 5).filter(pl.len().over("image_id") == 5)
    there = source.images.join(captions, on="image_id", how="semi", maintain_order="left")
    copies = range(-(-images // len(there)))
    new_id = [pl.concat_str(pl.lit(f"{n}-"), "image_id").alias("image_id") for n in copies]
    many = pl.concat([there.with_columns(new_id[n]) for n in copies]).head(images)
    numbered = [pl.concat_str("text", pl.lit(f" {n}" if n else "")).alias("text") for n in copies]
    texts = pl.concat([captions.with_columns(new_id[n], numbered[n]) for n in copies])
    texts = texts.join(many, on="image_id", how="semi", maintain_order="left")
    return replace(source, name="repeated", images=many, captions=texts, missing=[], named=images, annotated=None)


def one(engine: str, data: str, images: int) -> dict[str, Any]:
    """One run from captions to report: seconds by stage, pairs, peak memory in MB."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        dataset = repeated(data, images)
        seconds["data"] = time.perf_counter() - began
        began = time.perf_counter()
        parts = parts_of(Wanted(data=data), dataset, "paper")
        table = store(parts, dataset.images, Path(folder) / "table.parquet")
        seconds["table"] = time.perf_counter() - began
        began = time.perf_counter()
        made = Wide() if engine == "wide" else OrtEngine(open_bundle(zoo.find_bundle(engine)), "cpu")
        plan = Plan(dataset, table, "paper", 0, made.batch_size)
        seconds["load"] = time.perf_counter() - began
        began = time.perf_counter()
        run = execute(Local(made), plan, Path(folder), lambda *_: None)
        seconds["run"] = time.perf_counter() - began
        seconds |= {
            f"run: {name}": spent for name, spent in run.stamp["seconds"].items() if name not in ("total", "load")
        }
        seconds |= {"run: profile alone": _profile_again(run)}
        began = time.perf_counter()
        write_report(run)
        seconds["report"] = time.perf_counter() - began
        pairs = run.stamp["n"]["effective"]
    return {
        "engine": engine,
        "dim": made.dim,
        "images": images,
        "pairs": pairs,
        "seconds": {name: round(spent, 2) for name, spent in seconds.items()},
        "peak_mb": (peak_bytes() or 0) // 2**20,
    }


def _profile_again(run: Run) -> float:
    """Seconds from scored rows on disk to a profile with its 1,000 resamples."""
    began = time.perf_counter()
    metrics.profile(pl.concat([metrics.lean(part) for part in run.parts()]), 0)
    return time.perf_counter() - began


def main(
    data: Annotated[str, typer.Option(help="As for bench.py; images that are not there are left out.")],
    images: Annotated[list[int] | None, typer.Option(min=1, help="Sizes, the smaller first: 4000 and 40000.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="wide, or a key of the zoo: wide and tiny_clip.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result there, too.")] = None,
    child: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Print every run as JSON, and by engine the ratio of peak memory between the largest and the smallest."""
    images, engine = images or [4_000, 40_000], engine or ["wide", "tiny_clip"]
    if child:
        print(json.dumps(one(engine[0], data, images[0])))
        return
    runs = []
    for name in engine:
        for size in images:
            command = [sys.executable, __file__, "--data", data, "--images", str(size), "--engine", name, "--child"]
            runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            print(json.dumps(runs[-1]), flush=True)
    peaks = {name: [run["peak_mb"] for run in runs if run["engine"] == name] for name in engine}
    result = {"runs": runs, "memory_ratio": {name: round(found[-1] / found[0], 3) for name, found in peaks.items()}}
    print(json.dumps({"memory_ratio": result["memory_ratio"]}))
    if out is not None:
        write_json(out, result)


if __name__ == "__main__":
    typer.run(main)
