"""From weights to a published bundle: everything is written to a folder beside its place and checked there."""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

from exporter.convert import convert
from exporter.expected import Expected, expect
from exporter.graph import graph_files
from exporter.load import Original, load_original
from exporter.preprocess import image_spec, prove_pixels, write_preprocessor_config
from exporter.probes import probes
from exporter.tokenizer import prove_tokens, write_tokenizer
from exporter.towers import Pair, towers_of
from exporter.verify import check_tower, limits
from lgip_ort.bundle import (
    Bundle,
    Graph,
    Manifest,
    Precision,
    Tower,
    sha256_file,
    write_bundle,
    write_manifest,
)
from lgip_ort.text import TextEncoder
from models.zoo import ModelSpec

Log = Callable[[str], None]

ACTIVATIONS = "activations.json"
"""The file of a bundle that holds the largest |value| of every operation of the fp32 towers, where it was looked at."""

PACKAGES = (
    "torch",
    "transformers",
    "open_clip_torch",
    "timm",
    "tokenizers",
    "onnx",
    "onnxscript",
    "onnxruntime-gpu",
    "onnxruntime",
)


def export_model(
    spec: ModelSpec,
    weights: str = "hub",
    precisions: Sequence[Precision] = ("fp16",),
    out: Path = Path("artifacts"),
    overwrite: bool = False,
    seed: int = 0,
    data: str = "demo",
    columns: str | None = None,
    log: Log = lambda _: None,
) -> tuple[Path, Manifest]:
    """Export both towers of `spec` to the bundle `out/<key>`; returns its folder and manifest.

    `precisions`: either tower becomes a graph in each. `data`, `columns`: the data set, named as for the benchmark,
    whose captions the tokenizer is proven on and whose images are among those that are looked at. `log` gets a line a
    step. Raises UsageFault where weights or data can't be had, RunFault where a check fails; nothing is left then.
    """
    folder = out / spec.key
    with write_bundle(folder, overwrite) as work:
        clock = Clock(log)
        known = probes(data, columns)
        clock("to be checked on {captions:,} captions and {images} images of {name}".format(**known.data))
        original = load_original(spec, weights, seed)
        clock(f"{spec.key}: {original.weights.source} weights {original.weights.sha256[:12]}")
        expected = expect(original, known)
        clock(f"{len(known.images)} images and texts embedded by PyTorch in fp32")
        pair = towers_of(original)
        manifest = _inputs(pair, expected, work)
        encoder = TextEncoder(Bundle(work, manifest, ""))
        check: dict[str, Any] = {
            "limits": {precision: limits(precision) for precision in precisions},
            "tokenizer": prove_tokens(expected.text, encoder, [*known.captions, *known.texts]),
            "pixels_max_diff": prove_pixels(expected.images, manifest.image, known.pixels()),
            "data": known.data,
            "parameters": {
                name: sum(p.numel() for p in tower.parameters())
                for name, tower in (("vision", pair.vision), ("text", pair.text))
            },
        }
        clock("tokenizer and preprocessing are the original's")
        graphs: list[Graph] = []
        activations = {}
        for name in get_args(Tower):
            checked, activations[name] = _tower(pair, name, expected, precisions, manifest, work, clock)
            for graph, measured in checked:
                graphs.append(graph)
                check[graph.file] = measured
        if any(activations.values()):
            (work / ACTIVATIONS).write_text(json.dumps(activations, indent=1) + "\n", encoding="utf-8")
        manifest = dataclasses.replace(manifest, graphs=graphs, check=check, files=bundle_files(work, graphs))
        write_manifest(work, manifest)
    clock(f"published {folder}")
    return folder, manifest


def _inputs(pair: Pair, expected: Expected, work: Path) -> Manifest:
    """Write everything but the graphs; returns the manifest, which has no graph yet."""
    original = pair.original
    spec = original.spec
    any_length = pair.text.any_length
    text_spec = write_tokenizer(expected.text, pair.text.context_length, any_length, work / "tokenizer.json")
    pixels = image_spec(expected.images.config, expected.images.reference)
    write_preprocessor_config(pixels, work / "preprocessor_config.json")
    write_config(original_config(original), work)
    return Manifest(
        model=spec.key,
        library=spec.library,
        architecture=spec.name,
        weights=original.weights,
        embedding_dim=pair.dim,
        activation=pair.activation,
        graphs=[],
        text=text_spec,
        image=pixels,
        files={},
        check={},
        created_by=versions(),
    )


def _tower(
    pair: Pair,
    name: Tower,
    expected: Expected,
    precisions: Sequence[Precision],
    manifest: Manifest,
    work: Path,
    clock: Callable[[str], None],
) -> tuple[list[tuple[Graph, dict[str, Any]]], dict[str, float]]:
    """Convert and check one tower. Returns its graphs, each with what was measured, and its largest activations."""
    tower, text, shorter = (pair.text, manifest.text, expected.shorter) if name == "text" else (pair.vision, None, None)
    inputs, rows = expected.inputs[name], expected.rows[name]
    done = convert(tower, inputs, rows, manifest.image.size, precisions, work, clock)
    checked = []
    for precision, graph in done.graphs.items():
        measured = done.measured[precision]
        measured |= check_tower(work / graph.file, graph, inputs, rows, text, shorter)
        clock(f"{graph.file}: checked, least cosine {measured['cosine_min']}")
        checked.append((graph, measured))
    return checked, done.activations


def bundle_files(work: Path, graphs: list[Graph]) -> dict[str, str]:
    """The files of a bundle, the manifest apart, each with its sha256."""
    names = [name for graph in graphs for name in graph_files(graph, work)]
    names += ["tokenizer.json", "preprocessor_config.json", "config.json"]
    names += [ACTIVATIONS] if (work / ACTIVATIONS).is_file() else []
    return {name: sha256_file(work / name) for name in names}


def write_config(config: dict[str, Any], work: Path) -> None:
    """Write `config.json`: equal configurations are equal bytes."""
    text = json.dumps(config, indent=2, sort_keys=True, default=str)
    (work / "config.json").write_text(text + "\n", encoding="utf-8")


def original_config(original: Original) -> dict[str, Any]:
    """The architecture: transformers' own configuration, or open_clip's, without the folder that it was read from."""
    if original.spec.library == "open_clip":
        import open_clip

        return {"model_type": "open_clip", "architecture": original.spec.name} | (
            open_clip.get_model_config(original.spec.name) or {}
        )
    config: Any = original.model.config
    return {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}


def versions() -> dict[str, str]:
    """Of whatever has a part in a bundle."""
    found = {"lgip_ort": _version("lgip-ort"), "python": platform.python_version()}
    return {name: v for name, v in (found | {p: _version(p) for p in PACKAGES}).items() if v}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout, or the other of two packages is installed
        return ""


class Clock:
    """Lines of progress with the seconds since the start."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.start = time.perf_counter()

    def __call__(self, line: str) -> None:
        self.log(f"{time.perf_counter() - self.start:7.1f} s  {line}")
