"""Every model of the zoo through the exporter: `python benchmarks/zoo.py [--only KEY ...]`, `make zoo`.

Each is exported in a process of its own, the demo models with their weights, all others with seeded random ones, so
that no network is needed. What its checks measured, seconds and peak memory go to docs/measurements/exports.json
as soon as they are known; the tables in exports.md and in docs/models.md are made of it. A model that is there with the
same recipe (command, entry of the zoo, code of the exporter, versions of the packages) is not exported again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from lgip_ort.atomic import replacing, write_json
from lgip_ort.errors import UsageFault
from models import zoo
from models.zoo import ModelSpec

ROOT = Path(__file__).resolve().parents[1]
EXPORT = "exporter/export.py"
PACKAGES = (
    "torch",
    "transformers",
    "open_clip_torch",
    "timm",
    "onnxruntime-gpu",
    "onnxruntime",
    "onnxscript",
    "pillow",
)
SHARED = ("bundle", "image", "text")
KEPT = ("architecture", "weights", "embedding_dim", "activation", "graphs", "text", "image", "check")
"""Of a manifest: what is measured or says how a model is used."""

BEGIN, END = "<!-- made by benchmarks/zoo.py -->", "<!-- end -->"

Entry = dict[str, Any]
Columns = list[tuple[str, Callable[[Entry], str]]]


def main(
    only: Annotated[list[str] | None, typer.Option(help="This model; again for more of them. Default: all.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Export again what is there already.")] = False,
    docs: Annotated[Path, typer.Option(help="Folder with measurements/ and models.md.")] = ROOT / "docs",
    keep: Annotated[Path | None, typer.Option(help="Folder that the bundles are left in. Default: none are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as one JSON object on stdout.")] = False,
) -> None:
    """Export and measure. Exit code 1: a model failed; the others are measured all the same."""
    try:
        specs = [zoo.get(key) for key in only] if only else list(zoo.load().values())
    except UsageFault as fault:
        raise typer.BadParameter(str(fault)) from fault
    path = docs / "measurements/exports.json"
    entries = _read(path)
    for spec in specs:
        recipe = _recipe(spec)
        if not overwrite and entries.get(spec.key, {}).get("recipe") == recipe and "error" not in entries[spec.key]:
            _log(f"{spec.key}: there already")
            continue
        entries[spec.key] = {"model": spec.key, "recipe": recipe} | _export(spec, keep)
        _log(f"{spec.key}: {entries[spec.key].get('error', 'published')}")
        made = [entries[key] for key in zoo.load() if key in entries]
        write_json(path, {"command": "make zoo", "exports": made})
        _write(docs / "measurements/exports.md", exports_table(made))
        _write(docs / "models.md", models_table(made))
    chosen = [entries[spec.key] for spec in specs]
    if as_json:
        print(json.dumps({"exports": chosen}))
    if any("error" in entry for entry in chosen):
        raise typer.Exit(1)


def _command(spec: ModelSpec) -> list[str]:
    weights = [] if spec.weights == "demo" else ["--weights", "random"]
    return ["python", EXPORT, "--model", spec.key, *weights]


def _recipe(spec: ModelSpec) -> str:
    """What an entry is made by, as a hash."""
    made_by = [_command(spec), dataclasses.asdict(spec), _versions(), _source()]
    return hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()[:12]


def _source() -> str:
    """The exporter's code, and the runtime's that it is checked with, as a hash."""
    files = [*sorted((ROOT / "exporter").glob("*.py")), *(ROOT / f"lgip_ort/{name}.py" for name in SHARED)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _export(spec: ModelSpec, keep: Path | None) -> Entry:
    """One model in a process of its own: what its manifest says, seconds, peak memory; or how it failed."""
    with tempfile.TemporaryDirectory() as temporary:
        out = keep or Path(temporary)
        command = [sys.executable, str(ROOT / EXPORT), *_command(spec)[2:], "--out", str(out), "--overwrite"]
        errors = Path(temporary) / "stderr.txt"
        began = time.perf_counter()
        with errors.open("w+") as stream:
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=stream)
            _, status, usage = os.wait4(process.pid, 0)  # the memory of this child alone
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = round(time.perf_counter() - began, 1)
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        measured: Entry = {"seconds": seconds, "peak_gb": round(peak / 1e9, 2), "versions": _versions()}
        if process.returncode != 0:
            lines = [line for line in errors.read_text().splitlines() if line.strip()]
            return measured | {"error": f"exit code {process.returncode}: {' '.join(lines[-3:])}"}
        manifest = json.loads((out / spec.key / "manifest.json").read_text(encoding="utf-8"))
        sizes = {name: _megabytes(out / spec.key, name) for name in manifest["files"] if name.startswith("onnx/")}
    return measured | {"megabytes": sizes, "manifest": {name: manifest[name] for name in KEPT}}


def _megabytes(folder: Path, name: str) -> float:
    return round((folder / name).stat().st_size / 1e6, 1)


def _read(path: Path) -> dict[str, Entry]:
    """The entries that are there, without those that know no recipe."""
    if not path.is_file():
        return {}
    entries = json.loads(path.read_text(encoding="utf-8"))["exports"]
    return {entry["model"]: entry for entry in entries if "recipe" in entry}


def exports_table(entries: Sequence[Entry]) -> list[str]:
    """What the checks of every export measured, a row a model."""
    columns: Columns = [
        ("key", lambda e: e["model"]),
        ("seconds", lambda e: f"{e['seconds']:,.0f}"),
        ("peak GB", lambda e: f"{e['peak_gb']:.1f}"),
        ("vision MB", lambda e: f"{_size(e, 'vision'):,.0f}"),
        ("text MB", lambda e: f"{_size(e, 'text'):,.0f}"),
        ("vision cosine, least", lambda e: _number(_checked(e, "vision"), "cosine_min")),
        ("centred", lambda e: _number(_checked(e, "vision"), "centred_cosine_min")),
        ("true fp16", lambda e: _number(_checked(e, "vision").get("true_fp16", {}), "centred_cosine_min")),
        ("text cosine, least", lambda e: _number(_checked(e, "text"), "cosine_min")),
        ("centred", lambda e: _number(_checked(e, "text"), "centred_cosine_min")),
        ("true fp16", lambda e: _number(_checked(e, "text").get("true_fp16", {}), "centred_cosine_min")),
        (
            "largest difference",
            lambda e: f"{max(_checked(e, t).get('max_abs_diff', 0) for t in ('vision', 'text')):.1e}",
        ),
    ]
    return _table(entries, columns)


def models_table(entries: Sequence[Entry]) -> list[str]:
    """What every exported model is and how it is used, a row a model."""
    columns: Columns = [
        ("key", lambda e: e["model"]),
        ("weights", lambda e: e["manifest"]["weights"]["source"]),
        ("parameters, vision", lambda e: _millions(e, "vision")),
        ("text", lambda e: _millions(e, "text")),
        ("embedding", lambda e: str(e["manifest"]["embedding_dim"])),
        ("px", lambda e: str(e["manifest"]["image"]["size"])),
        ("resizing", lambda e: "{resize}, {interpolation}".format(**e["manifest"]["image"])),
        ("tokens", lambda e: str(e["manifest"]["text"]["context_length"])),
        ("padding", _padding),
        ("ignores", lambda e: ", ".join(e["manifest"]["text"]["ignores"]) or "nothing"),
        ("activation", _activation),
        ("fp32 islands", lambda e: " + ".join(_islands(e, tower) for tower in ("vision", "text"))),
        ("ids equal to those of", lambda e: f"{e['manifest']['text']['reference']}{_stand_in(e)}"),
        ("pixels of", lambda e: e["manifest"]["image"]["reference"]),
    ]
    return _table(entries, columns)


def _table(entries: Sequence[Entry], columns: Columns) -> list[str]:
    rows = [f"| {' | '.join(name for name, _ in columns)} |", f"|{'---|' * len(columns)}"]
    for entry in entries:
        if "manifest" in entry:
            rows.append(f"| {' | '.join(make(entry) for _, make in columns)} |")
        else:
            rows.append(f"| {entry['model']} | failed{' |' * (len(columns) - 1)}")
    return rows


def _graph(entry: Entry, tower: str) -> Any:
    return next(graph for graph in entry["manifest"]["graphs"] if graph["tower"] == tower)


def _checked(entry: Entry, tower: str) -> dict[str, Any]:
    """What the check of a tower's first graph measured."""
    return entry["manifest"]["check"].get(_graph(entry, tower)["file"], {})


def _size(entry: Entry, tower: str) -> float:
    file = _graph(entry, tower)["file"]
    return sum(size for name, size in entry["megabytes"].items() if name in (file, f"{file}_data"))


def _number(measured: dict[str, Any], name: str) -> str:
    return f"{measured[name]:.7f}" if name in measured else "not measured"


def _millions(entry: Entry, tower: str) -> str:
    return f"{entry['manifest']['check']['parameters'][tower] / 1e6:,.1f} M"


def _padding(entry: Entry) -> str:
    text = entry["manifest"]["text"]
    return f"{text['pad_id']}, " + ("any length" if text["lengths"] == "any" else "always to the full length")


def _activation(entry: Entry) -> str:
    return ", ".join(dict.fromkeys(entry["manifest"]["activation"].values()))


def _islands(entry: Entry, tower: str) -> str:
    found = _checked(entry, tower).get("islands")
    return "not measured" if found is None else str(found if isinstance(found, int) else len(found))


def _stand_in(entry: Entry) -> str:
    return " (stand-in)" if entry["manifest"]["text"]["source"] == "stand-in" else ""


def _write(path: Path, table: Sequence[str]) -> None:
    """Put `table` between the marks in `path`. Raises ValueError where a mark is missing."""
    before, mark, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise ValueError(f"{path}: no {BEGIN} ... {END} to put a table between")
    with replacing(path) as temporary:
        temporary.write_text("\n".join([before + mark, "", *table, "", end + after]), encoding="utf-8")


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
