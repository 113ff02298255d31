"""A run: an engine over a table, kept in a folder with its stamp, shard by shard.

run.json            the stamp: what went in, what ran it, how it ended
table.parquet       the pairs, with the lengths that their texts were padded to
images.parquet      the images: image_id, path, split
scores/*.parquet    a file a shard, named by what went in: a run that was cut short goes on where it was
embeddings/*.parquet  a fixed sample of vectors, to compare runs by cosine
skipped.parquet     images that could not be read, with the reason
profile.parquet     the metrics
report.html
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from lgip_ort import __version__, metrics
from lgip_ort.atomic import replacing, write_json
from lgip_ort.dataset import Dataset
from lgip_ort.engine import Engine
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.padding import Padding, lengths_of
from lgip_ort.score import SCORES, SKIPPED, Progress, ShardScores, score_shard
from lgip_ort.table import count_kinds, table_sha256

SHARD_IMAGES = 512
SAMPLED_VECTORS = 20_000
STAMP = "run.json"


@dataclass(frozen=True)
class Plan:
    """What is to be scored: the same for every engine, so that runs can be compared.

    `padding`: the arm; the lengths that it sets are in the table (`padding.with_lengths`).
    """

    dataset: Dataset
    table: pl.DataFrame
    suite: str
    seed: int
    batch_size: int
    max_skipped: int = 0
    padding: Padding = "trained"


@dataclass(frozen=True)
class Run:
    """A finished run. `stamp` is the content of run.json; `reused` says that nothing had to be computed."""

    folder: Path
    stamp: dict[str, Any]
    reused: bool = False

    @property
    def failed(self) -> bool:
        """Whether the result can't be trusted; `stamp["error"]` says why."""
        return bool(self.stamp["status"] != "done")

    @property
    def weights(self) -> str:
        """Which weights, in a word or two: `random`, a hub id with its revision, or a path."""
        weights = self.stamp["weights"]
        if weights["source"] == "random":
            return "random"
        return f"{weights['name']}@{weights['revision']}" if weights["revision"] else str(weights["name"])

    def table(self) -> pl.DataFrame:
        """The pairs, scored or not."""
        return read_frame(self.folder / "table.parquet")

    def pairs(self) -> pl.DataFrame:
        """The scored pairs: table and scores."""
        return metrics.join_scores(self.table(), _read_all(self.folder / "scores"))

    def profile(self) -> pl.DataFrame:
        """The profile, see `metrics.PROFILE`."""
        return read_frame(self.folder / "profile.parquet")

    def skipped(self) -> pl.DataFrame:
        """Images that could not be read: image_id, path, reason."""
        return read_frame(self.folder / "skipped.parquet")

    def embeddings(self) -> pl.DataFrame:
        """The sampled vectors: tower, key, vector. A text of several shards was encoded in each: the first counts."""
        return _read_all(self.folder / "embeddings").unique(["tower", "key"], keep="first", maintain_order=True)


def open_run(folder: Path) -> Run:
    """A run that was finished before. Raises UsageFault where the folder holds none."""
    stamp = _read_stamp(folder)
    if stamp["status"] != "done":
        raise UsageFault(f"{folder}: the run is {stamp['status']!r}, not done")
    return Run(folder, stamp, reused=True)


def _read_stamp(folder: Path) -> dict[str, Any]:
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageFault(f"{folder}: not a run, {STAMP} is missing") from error
    except ValueError as error:
        raise UsageFault(f"{folder / STAMP}: not JSON: {error}") from error
    if not isinstance(stamp, dict) or "status" not in stamp:
        raise UsageFault(f"{folder / STAMP}: not the stamp of a run")
    return stamp


def execute(
    engine: Engine, plan: Plan, out: Path, progress: Progress, overwrite: bool = False, load: float = 0.0
) -> Run:
    """Score `plan` with `engine` into a folder of its own under `out`.

    The folder's name holds a hash of everything that went in. Where the same run is there and done, nothing is computed
    and nothing written; where it was cut short, its finished shards are kept; `overwrite` starts anew. `load` is how
    many seconds the engine took to load.

    Raises RunFault where a score is not finite, ValueError where the engine is of another padding arm than the plan.
    More than `max_skipped` unreadable images make a run that has failed.
    """
    if engine.stamp.padding != plan.padding:
        raise ValueError(f"padding {engine.stamp.padding!r} found in the engine, {plan.padding!r} in the plan")
    began = time.perf_counter()
    inputs = _inputs(engine, plan)
    name = f"{plan.dataset.name}-{plan.suite}-{_hash8(inputs)}"
    stamp = engine.stamp
    kind = f"{stamp.engine}-{stamp.provider['active']}-{stamp.precision['asked']}"
    folder = out / stamp.model / kind / name
    if overwrite and (folder / STAMP).exists():
        shutil.rmtree(folder)
    if (folder / STAMP).exists():
        found = _read_stamp(folder)
        if found["status"] == "done":
            return Run(folder, _judged(found, folder, plan.max_skipped), reused=True)
    record = _record(engine, plan, inputs)
    write_json(folder / STAMP, record)
    try:
        with replacing(folder / "table.parquet") as path:
            plan.table.write_parquet(path)
        with replacing(folder / "images.parquet") as path:
            plan.dataset.images.write_parquet(path)
        seconds = _score(engine, plan, folder, progress)
        _finish(folder, plan, record)
    except RunFault as fault:
        write_json(folder / STAMP, record | {"status": "failed", "error": str(fault)})
        raise
    record["finished"] = _now()
    record["seconds"] = {"load": load, **seconds, "total": load + time.perf_counter() - began}
    write_json(folder / STAMP, record)
    return Run(folder, record)


def _score(engine: Engine, plan: Plan, folder: Path, progress: Progress) -> dict[str, float]:
    """Score every shard that is not there yet. Returns the seconds spent on images, on texts and on the rest."""
    seconds = {"images": 0.0, "texts": 0.0, "score": 0.0}
    sample = min(1.0, SAMPLED_VECTORS / max(1, len(plan.table)))
    for index, images in enumerate(plan.dataset.images.iter_slices(SHARD_IMAGES)):
        table = plan.table.join(images, on="image_id", how="semi", maintain_order="left")
        name = f"{index:05d}-{table_sha256(table)[:8]}.parquet"
        # An image that could not be read may be readable now: a shard that skipped one is made again.
        if (folder / "scores" / name).exists() and not _skipped_by(folder / "scores" / name):
            progress("images", len(images))
            continue
        began = time.perf_counter()
        shard = score_shard(engine, plan.dataset.root, images, table, sample, progress)
        _write_shard(folder, name, shard)
        for stage, spent in shard.seconds.items():
            seconds[stage] += spent
        seconds["score"] += time.perf_counter() - began - sum(shard.seconds.values())
    return seconds


def _write_shard(folder: Path, name: str, shard: ShardScores) -> None:
    """The scores last: a shard counts as done when they are there. What it skipped travels in the file's metadata."""
    with replacing(folder / "embeddings" / name) as path:
        shard.embeddings.write_parquet(path)
    with replacing(folder / "scores" / name) as path:
        shard.scores.write_parquet(path, metadata={"skipped": json.dumps(shard.skipped.rows())})


def _skipped_by(shard: Path) -> list[list[str]]:
    rows: list[list[str]] = json.loads(pl.read_parquet_metadata(shard)["skipped"])
    return rows


def _finish(folder: Path, plan: Plan, record: dict[str, Any]) -> None:
    """From finished shards to skipped.parquet, profile.parquet and the counts in the record."""
    shards = sorted((folder / "scores").glob("*.parquet"))
    skipped = pl.DataFrame(
        [row for path in shards for row in _skipped_by(path)],
        schema=SKIPPED,
        orient="row",
    )
    pairs = metrics.join_scores(plan.table, _read_all(folder / "scores"))
    with replacing(folder / "skipped.parquet") as path:
        skipped.write_parquet(path)
    with replacing(folder / "profile.parquet") as path:
        metrics.profile(pairs, plan.seed).write_parquet(path)
    record["n"] = {
        "original": len(plan.table),
        "effective": len(pairs),
        "images": len(plan.dataset.images) - len(skipped),
        "skipped": len(skipped),
    }
    record["pairs"] = count_kinds(pairs)
    record["status"] = "done"
    record |= _judged(record, folder, plan.max_skipped)


def _judged(stamp: dict[str, Any], folder: Path, max_skipped: int) -> dict[str, Any]:
    """The stamp of a scored run, failed where it skipped more images than are tolerated."""
    if stamp["n"]["skipped"] <= max_skipped:
        return stamp
    first = read_frame(folder / "skipped.parquet").row(0, named=True)
    error = (
        f"{stamp['n']['skipped']} images could not be read, --max-skipped allows {max_skipped}; "
        f"the first is {first['path']}: {first['reason']}"
    )
    return stamp | {"status": "failed", "error": error}


def _inputs(engine: Engine, plan: Plan) -> dict[str, Any]:
    """Everything that can change a score, as data."""
    return {
        "engine": dataclasses.asdict(engine.stamp),
        "lgip_ort": __version__,
        "dataset": plan.dataset.sha256(),
        "table": table_sha256(plan.table),
        "lengths": lengths_of(plan.table),
        "suite": plan.suite,
        "seed": plan.seed,
        "batch_size": plan.batch_size,
    }


def _record(engine: Engine, plan: Plan, inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "started",
        "started": _now(),
        **dataclasses.asdict(engine.stamp),
        **{name: inputs[name] for name in ("lgip_ort", "table", "lengths", "suite", "seed", "batch_size")},
        "dataset": {
            "name": plan.dataset.name,
            "hash": inputs["dataset"],
            "root": str(plan.dataset.root.resolve()),
            "images": len(plan.dataset.images),
            "captions": len(plan.dataset.captions),
            "missing": len(plan.dataset.missing),
            "named": plan.dataset.named,
        },
        "git": _git_revision(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def read_frame(path: Path) -> pl.DataFrame:
    """A frame of a run. A folder's name may hold what means something in a pattern: [, *, ?.

    Raises UsageFault where the file is missing or damaged.
    """
    try:
        return pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageFault(f"{path}: can't be read: {error}; --overwrite computes the run again") from error


def _read_all(folder: Path) -> pl.DataFrame:
    frames = [read_frame(path) for path in sorted(folder.glob("*.parquet"))]
    return pl.concat(frames) if frames else pl.DataFrame(schema=SCORES)


def _hash8(inputs: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:8]


def _git_revision() -> str | None:
    """The revision of this source tree, None where it is installed without one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
