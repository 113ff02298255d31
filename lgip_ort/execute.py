"""Making a run: an engine over a table, shard by shard, into a folder that can be left and gone on with at any time."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
from filelock import FileLock, Timeout

from lgip_ort import __version__, metrics
from lgip_ort.atomic import replacing, write_frame, write_json
from lgip_ort.dataset import Dataset
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.padding import Padding
from lgip_ort.retrieval import GALLERY
from lgip_ort.run import SAMPLED, SCORED, STAMP, Run, read_frame, read_stamp, shard_files, shard_metadata
from lgip_ort.score import SKIPPED, Progress, Scorer, ShardScores
from lgip_ort.stored import StoredTable
from lgip_ort.table import count_kinds

SHARD_IMAGES = 512
LOCK = ".lock"


@dataclass(frozen=True)
class Plan:
    """What is to be scored: the same for every engine, so that runs can be compared.

    `padding`: the arm; the lengths that it sets are in the table (`padding.with_lengths`).
    """

    dataset: Dataset
    table: StoredTable
    suite: str
    seed: int
    batch_size: int
    max_skipped: int = 0
    padding: Padding = "trained"


def execute(
    scorer: Scorer,
    plan: Plan,
    out: Path,
    progress: Progress,
    overwrite: bool = False,
    resume: bool = False,
    load: float = 0.0,
) -> Run:
    """Score `plan` into a folder of its own under `out`.

    The folder's name holds a hash of everything that went in. Where the same run is there and done, nothing is computed
    and nothing written; where it was cut short, its finished shards are kept; `overwrite` starts anew; `resume` starts
    nothing. `load` is how many seconds the engine took to load.

    Raises RunFault where a score is not finite, ValueError where the engine is of another padding arm than the plan,
    UsageFault where another process is at work on the run, and with `resume` where there is none to go on with, naming
    what changed since the one that is nearest. More than `max_skipped` unreadable images make a run that has failed.
    """
    if scorer.stamp.padding != plan.padding:
        raise ValueError(f"padding {scorer.stamp.padding!r} found in the engine, {plan.padding!r} in the plan")
    began = time.perf_counter()
    inputs = _inputs(scorer, plan)
    record = _record(scorer, plan, inputs)
    folder = _folder(scorer, plan, inputs, out)
    if not overwrite and (done := _done(folder, plan)):
        return done
    if resume and not (folder / STAMP).exists():
        raise UsageFault(_nothing_to_resume(folder, record))
    with _locked(folder):
        if overwrite:
            (folder / STAMP).unlink(missing_ok=True)  # first: what is half cleared must not look done
            _clear(folder, "*")
        elif done := _done(folder, plan):
            return done  # by the process that held the lock
        _clear(folder, "**/.*.tmp")  # half-written files of one that was killed
        write_json(folder / STAMP, record)
        try:
            with replacing(folder / "table.parquet") as path:
                shutil.copyfile(plan.table.path, path)
            write_frame(folder / "images.parquet", plan.dataset.images)
            seconds = _score(scorer, plan, folder, progress)
            _finish(folder, plan, record)
        except RunFault as fault:
            write_json(folder / STAMP, record | {"status": "failed", "error": str(fault)})
            raise
        record["finished"] = _now()
        record["seconds"] = {"load": load, **seconds, "total": load + time.perf_counter() - began}
        write_json(folder / STAMP, record)
    return Run(folder, record)


def _done(folder: Path, plan: Plan) -> Run | None:
    """The run in `folder` where it is finished."""
    if (folder / STAMP).exists() and (found := read_stamp(folder))["status"] == "done":
        return Run(folder, _judged(found, folder, plan.max_skipped), reused=True)
    return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder. Raises UsageFault, saying who does, where another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout as error:
        try:
            process = read_stamp(folder)["process"]
            who = f"process {process['pid']} on {process['host']}, since {process['since']}"
        except (UsageFault, KeyError):
            who = "another process"
        raise UsageFault(f"{folder}: {who} is at work on this run") from error


def _clear(folder: Path, pattern: str) -> None:
    """Remove what is in `folder` and matches `pattern`, the lock apart."""
    for path in list(folder.glob(pattern)):
        if path.name == LOCK:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _score(scorer: Scorer, plan: Plan, folder: Path, progress: Progress) -> dict[str, float]:
    """Score every shard that is not there yet. Returns the seconds spent on images, on texts and on the rest."""
    seconds = {"images": 0.0, "texts": 0.0, "score": 0.0}
    gallery = min(1.0, GALLERY / max(1, len(plan.dataset.images)))
    missing = []
    for shard in plan.table.shards(SHARD_IMAGES):
        path = folder / SCORED / shard.name
        # An image that could not be read may be readable now: a shard that skipped one is made again.
        if path.exists() and not shard_metadata(path)["skipped"]:
            progress("images", len(shard.images))
        else:
            missing.append(shard)
    for shard, made in scorer.score(plan.dataset.root, missing, plan.table.pairs, gallery, progress):
        began = time.perf_counter()
        _write_shard(folder, shard.name, made, {"start": shard.start, "rows": shard.rows})
        rest = made.seconds["total"] - made.seconds["images"] - made.seconds["texts"]
        seconds["images"] += made.seconds["images"]
        seconds["texts"] += made.seconds["texts"]
        seconds["score"] += rest + time.perf_counter() - began
    return seconds


def _write_shard(folder: Path, name: str, shard: ShardScores, place: dict[str, int]) -> None:
    """The scores last: a shard counts as done when they are there. Its place in the table, and what it skipped, travel
    in the file's metadata."""
    write_frame(folder / SAMPLED / name, shard.embeddings)
    of_itself = json.dumps(place | {"skipped": shard.skipped.rows()})
    write_frame(folder / SCORED / name, shard.scores, {"shard": of_itself})


def _finish(folder: Path, plan: Plan, record: dict[str, Any]) -> None:
    """From finished shards to skipped.parquet, profile.parquet and the counts in the record."""
    rows = [row for path in shard_files(folder) for row in shard_metadata(path)["skipped"]]
    skipped = pl.DataFrame(rows, schema=SKIPPED, orient="row")
    run = Run(folder, record)
    parts = [metrics.lean(part) for part in run.parts()]
    pairs = pl.concat(parts) if parts else pl.DataFrame(schema={"kind": pl.String})
    write_frame(folder / "skipped.parquet", skipped)
    write_frame(folder / "profile.parquet", metrics.profile(pairs, plan.seed, originals=run.gallery()))
    record["n"] = {
        "original": plan.table.rows,
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


def _inputs(scorer: Scorer, plan: Plan) -> dict[str, Any]:
    """Everything that can change a score, as data."""
    return {
        "engine": scorer.stamp.identity(),
        "lgip_ort": __version__,
        "dataset": plan.dataset.sha256(),
        "table": plan.table.sha256,
        "lengths": plan.table.lengths,
        "suite": plan.suite,
        "seed": plan.seed,
        "batch_size": plan.batch_size,
    }


def _folder(scorer: Scorer, plan: Plan, inputs: dict[str, Any], out: Path) -> Path:
    stamp = scorer.stamp
    kind = f"{stamp.engine}-{stamp.provider['active']}-{stamp.precision['asked']}"
    hash8 = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:8]
    return out / stamp.model / kind / f"{plan.dataset.name}-{plan.suite}-{hash8}"


def _record(scorer: Scorer, plan: Plan, inputs: dict[str, Any]) -> dict[str, Any]:
    stamp = scorer.stamp
    return {
        "status": "started",
        "started": (now := _now()),
        "process": {"pid": os.getpid(), "host": socket.gethostname(), "since": now},
        **stamp.identity(),
        "placement": stamp.placement,
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


IDENTITY = (
    "artifact",
    "weights sha256",
    "table",
    "dataset hash",
    "padding",
    "lengths",
    "seed",
    "batch_size",
    "provider options",
    "precision executed",
    "versions",
    "lgip_ort",
)
"""Fields of the stamp that a run to be resumed must share."""


def _nothing_to_resume(folder: Path, record: dict[str, Any]) -> str:
    """Why there is no run to go on with: what changed since the one that is nearest, where one was cut short."""
    names = folder.name.rsplit("-", 1)[0]
    nearest: tuple[list[str], Path] | None = None
    for path in sorted(folder.parent.glob(f"{names}-*/{STAMP}")):
        found = read_stamp(path.parent)
        if found["status"] == "done":
            continue
        changed = [name for name in IDENTITY if _field(found, name) != _field(record, name)]
        if nearest is None or len(changed) < len(nearest[0]):
            nearest = changed, path.parent
    if nearest is None:
        return f"nothing to resume: no unfinished run of {names} in {folder.parent}; without --resume one is started"
    changed, other = nearest
    found = read_stamp(other)
    words = "; ".join(f"{name} was {_field(found, name)!r}, is {_field(record, name)!r}" for name in changed)
    return f"{other} can't be resumed: {words}; without --resume a run of its own is started"


def _field(stamp: dict[str, Any], name: str) -> Any:
    field, _, part = name.partition(" ")
    return stamp.get(field, {}).get(part) if part else stamp.get(field)


def _git_revision() -> str | None:
    """The revision of this source tree, None where it is installed without one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
