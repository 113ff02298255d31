"""Optimum's exporter on an original: the other common way to ONNX, so that the two can be compared."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from exporter.adopt import adopt
from exporter.load import Original, load_original
from exporter.publish import Clock, Log
from lgip_ort.bundle import Manifest, Precision
from lgip_ort.errors import UsageFault
from models.zoo import ModelSpec

TASK = "zero-shot-image-classification"
"""The task whose graph has image_embeds and text_embeds among its outputs, of CLIP and of SigLIP."""

PRECISION = "fp32"
"""What Optimum writes on a CPU; half precision it exports on a CUDA device only."""

PACKAGES = ("optimum", "optimum-onnx")

LOGGERS = ("transformers", "optimum", "torch.onnx")


def export_via_optimum(
    spec: ModelSpec,
    weights: str = "hub",
    precisions: Collection[Precision] = (),
    out: Path = Path("artifacts"),
    overwrite: bool = False,
    seed: int = 0,
    data: str = "demo",
    columns: str | None = None,
    log: Log = lambda _: None,
) -> tuple[Path, Manifest]:
    """`export_model`, with graphs of Optimum's making, which are adopted.

    Raises UsageFault for another precision than fp32 too.
    """
    if other := set(precisions) - {PRECISION}:
        raise UsageFault(
            f"--precision {', '.join(sorted(other))} found, {PRECISION} expected with --via optimum: "
            "it exports fp16 on a CUDA device only, and int8 not at all"
        )
    if spec.library != "transformers":
        raise UsageFault(f"{spec.key}: Optimum exports models of transformers, this one is {spec.library}'s")
    clock = Clock(log)
    original = load_original(spec, weights, seed)
    with tempfile.TemporaryDirectory(prefix="optimum-") as temporary:
        folder = export_with_optimum(original, Path(temporary))
        clock(f"{spec.key}: exported by {made_by()}")
        return adopt(spec, folder, original, (), out, overwrite, data, columns, log, made_by())


def made_by() -> str:
    """Which Optimum this is."""
    return "/".join(f"{package} {version(package)}" for package in PACKAGES)


def export_with_optimum(original: Original, work: Path) -> Path:
    """Let Optimum export a transformers `original` below `work`; returns the folder with its graph.

    Raises UsageFault where Optimum is not installed, or knows no export of such a model.
    """
    try:
        with _quiet():
            from optimum.exporters.onnx import main_export
    except ImportError as error:
        raise UsageFault(f"--via optimum: {error}; pip install 'optimum-onnx' 'transformers<4.58'") from error
    source = original.folder
    if source is None:  # random weights: there is no folder yet
        source = work / "original"
        model: Any = original.model
        model.save_pretrained(source)
    folder = work / "optimum"
    try:
        with _quiet():
            main_export(
                str(source),
                output=folder,
                task=TASK,
                framework="pt",
                library_name="transformers",
                dtype=PRECISION,
                local_files_only=True,
                do_validation=False,  # it compares random inputs and only warns
            )
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UsageFault(f"{original.spec.key}: Optimum can't export it: {error}") from error
    return folder


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of tracing: what they warn of is found by the verification of the graph."""
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
