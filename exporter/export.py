"""The command `python exporter/export.py`: a model's weights become a verified bundle of ONNX graphs."""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

ROOT = str(Path(__file__).resolve().parent.parent)
if sys.path[0] == str(Path(__file__).resolve().parent):
    sys.path[0] = ROOT  # as a file: its siblings must not shadow packages of the same name
elif ROOT not in sys.path:
    sys.path.insert(0, ROOT)

import typer
from rich.console import Console
from rich.table import Table

from lgip_ort.errors import RunFault, UsageFault
from models import zoo

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class PrecisionName(StrEnum):
    """What the graphs are stored in."""

    FP16 = "fp16"
    FP32 = "fp32"
    INT8 = "int8"


class Via(StrEnum):
    """Other exporters."""

    OPTIMUM = "optimum"


@app.command()
def export(
    model: Annotated[str, typer.Option(help="Key of the model; --list prints them.")] = "",
    weights: Annotated[str, typer.Option(help="hub, random, or the path of a checkpoint.")] = "hub",
    precision: Annotated[
        list[PrecisionName] | None,
        typer.Option(help="What the graphs are stored in; again for one more in the same bundle. Default: fp16."),
    ] = None,
    data: Annotated[
        str, typer.Option(help="What the export is checked on, besides odd texts and pictures: as --data of bench.py.")
    ] = "demo",
    columns: Annotated[str | None, typer.Option(help="For frame data: image=NAME,caption=NAME.")] = None,
    from_onnx: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an ONNX export made by somebody else: check that and publish it. Default precisions: all "
            "that it has. --weights none: there is nothing to compare it with."
        ),
    ] = None,
    via: Annotated[Via | None, typer.Option(help="Let another exporter make the graphs, in fp32.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that the bundle's folder is made in.")] = zoo.ARTIFACTS,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a bundle that is there.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of random weights.")] = 0,
    as_list: Annotated[bool, typer.Option("--list", help="Print the models that can be exported.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Export both towers of a model to a verified ONNX bundle.

    Exit code 0: published. 1: a check failed, nothing was left behind. 2: usage or environment.
    """
    try:
        if as_list:
            _print_zoo(as_json)
        elif not model:
            raise UsageFault("--model KEY expected; --list prints the keys")
        else:
            if from_onnx is not None and via is not None:
                raise UsageFault("--from-onnx and --via exclude each other")
            if weights == "none" and from_onnx is None:
                raise UsageFault("--weights none goes with --from-onnx: an export needs weights")
            default = [PrecisionName.FP16] if from_onnx is None and via is None else []
            precisions = [chosen.value for chosen in dict.fromkeys(precision or default)]
            _export(model, weights, precisions, out, overwrite, seed, data, columns, from_onnx, via, as_json)
    except UsageFault as fault:
        _fail(str(fault), 2)
    except RunFault as fault:
        _fail(f"{fault}\nnothing was published", 1)
    except typer.Exit:
        raise
    except Exception as error:
        # Exit code 1 is a failed check: a damaged file or a fault of the program must not look like one.
        traceback.print_exc()
        _fail(f"{type(error).__name__}: {error}\nnothing was published", 2)


def _export(
    model: str,
    weights: str,
    precisions: list[Any],
    out: Path,
    overwrite: bool,
    seed: int,
    data: str,
    columns: str | None,
    from_onnx: Path | None,
    via: Via | None,
    as_json: bool,
) -> None:
    spec = zoo.get(model)
    if (out / spec.key).exists() and not overwrite:  # said before seconds go into importing
        raise UsageFault(f"{out / spec.key} exists; --overwrite replaces it")
    try:
        make = _exporter(from_onnx, via)
    except ModuleNotFoundError as error:
        raise UsageFault(f"{error}; the exporter needs: pip install 'lgip-ort[export]'") from error
    console = Console(stderr=True, highlight=False, emoji=False)

    def log(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    folder, manifest = make(spec, weights, precisions, out, overwrite, seed, data, columns, log)
    if as_json:
        print(json.dumps({"status": "published", "folder": str(folder), "manifest": dataclasses.asdict(manifest)}))
    else:
        print(folder)


def _exporter(from_onnx: Path | None, via: Via | None) -> Callable[..., tuple[Path, Any]]:
    """What makes the bundle: all have the parameters of `export_model`."""
    if via is Via.OPTIMUM:
        from exporter.via_optimum import export_via_optimum

        return export_via_optimum
    if from_onnx is not None:
        from exporter.adopt import adopt_folder

        return partial(adopt_folder, from_onnx)
    from exporter.publish import export_model

    return export_model


def _print_zoo(as_json: bool) -> None:
    specs = zoo.load().values()
    if as_json:
        print(json.dumps([dataclasses.asdict(spec) for spec in specs]))
        return
    table = Table("key", "library", "name", "weights", "px", "tokens", box=None, pad_edge=False)
    for s in specs:
        tag = s.tag or ("committed" if s.weights == "demo" else "")
        table.add_row(s.key, s.library, s.name, tag, str(s.image_size), str(s.context_length))
    width = None if sys.stdout.isatty() else 160  # a pipe's 80 columns would cut the names
    Console(highlight=False, width=width).print(table)


def _fail(message: str, code: int) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True, emoji=False).print(
        f"error: {message}", style="red", markup=False
    )
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
