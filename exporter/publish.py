"""From weights to a published bundle: everything is written to a folder beside its place and checked there."""

from __future__ import annotations

import dataclasses
import gc
import json
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from exporter.graph import export_graph, graph_files
from exporter.inputs import OriginalImages, OriginalText, original_images, original_text
from exporter.load import Original, embed_ids, embed_images, load_original
from exporter.precision import to_half
from exporter.preprocess import image_spec, prove_pixels, write_preprocessor_config
from exporter.probes import pictures, probes
from exporter.structure import check_structure
from exporter.tokenizer import prove_tokens, write_tokenizer
from exporter.towers import Pair, TextTower, VisionTower, towers_of
from exporter.verify import check_tower, limits
from lgip_ort.bundle import (
    Bundle,
    Graph,
    Manifest,
    Precision,
    sha256_file,
    write_bundle,
    write_manifest,
)
from lgip_ort.text import TextEncoder
from models.zoo import ModelSpec

Log = Callable[[str], None]

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
    precision: Precision = "fp16",
    out: Path = Path("artifacts"),
    overwrite: bool = False,
    seed: int = 0,
    captions: Sequence[str] = (),
    log: Log = lambda _: None,
) -> tuple[Path, Manifest]:
    """Export both towers of `spec` to the bundle `out/<key>`; returns its folder and manifest.

    `captions`: texts that the tokenizer is proven on, besides the golden and the demo's. `log` gets a line a step.
    Raises UsageFault where the weights can't be had, RunFault where a check fails; nothing is left behind then.
    """
    folder = out / spec.key
    with write_bundle(folder, overwrite) as work:
        clock = _Clock(log)
        original = load_original(spec, weights, seed)
        clock(f"{spec.key}: {original.weights.source} weights {original.weights.sha256[:12]}")
        text, images, known = original_text(original), original_images(original), probes(captions)
        pixels, ids = images.pixels(known.images), text.encode(known.captions)
        image_rows = embed_images(original, torch.from_numpy(pixels)).numpy()
        text_rows = embed_ids(original, torch.from_numpy(ids)).numpy()
        clock(f"{len(pixels)} images and texts embedded by PyTorch in fp32")
        pair = towers_of(original)
        manifest = _inputs(pair, text, images, work)
        encoder = TextEncoder(Bundle(work, manifest, ""))
        check: dict[str, Any] = {
            "limits": limits(precision),
            "tokenizer": prove_tokens(text, encoder, [*known.captions, *known.texts]),
            "pixels_max_diff": prove_pixels(images, manifest.image, [*pictures(), *known.images]),
        }
        clock("tokenizer and preprocessing are the original's")
        graphs: list[Graph] = []
        for tower, rows, expected in ((pair.vision, pixels, image_rows), (pair.text, ids, text_rows)):
            graph, measured = _tower(tower, rows, expected, precision, manifest, work, clock)
            graphs.append(graph)
            check[graph.tower] = measured
        manifest = dataclasses.replace(manifest, graphs=graphs, check=check, files=_files(work, graphs))
        write_manifest(work, manifest)
    clock(f"published {folder}")
    return folder, manifest


def _inputs(pair: Pair, text: OriginalText, images: OriginalImages, work: Path) -> Manifest:
    """Write everything but the graphs; returns the manifest, which has no graph yet."""
    original = pair.original
    spec = original.spec
    any_length = pair.text.any_length
    text_spec = write_tokenizer(text, pair.text.context_length, any_length, work / "tokenizer.json")
    pixels = image_spec(images)
    write_preprocessor_config(pixels, work / "preprocessor_config.json")
    config = json.dumps(_config(original), indent=2, sort_keys=True, default=str)
    (work / "config.json").write_text(config + "\n", encoding="utf-8")
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
        created_by=_versions(),
    )


def _tower(
    tower: VisionTower | TextTower,
    rows: NDArray[Any],
    expected: NDArray[np.float32],
    precision: Precision,
    manifest: Manifest,
    work: Path,
    clock: Callable[[str], None],
) -> tuple[Graph, dict[str, Any]]:
    """Export and check one tower. The tower is used up: its tensors are freed, so that only one is in memory twice."""
    fp32 = to_half(tower) if precision == "fp16" else []
    graph = export_graph(tower, manifest.image.size, precision, fp32, work)
    tower.to("meta")
    gc.collect()
    size = sum((work / name).stat().st_size for name in graph_files(graph, work))
    clock(f"{graph.file}: {size / 1e6:,.1f} MB written")
    measured = check_structure(work / graph.file, graph)
    text = manifest.text if graph.tower == "text" else None
    measured |= check_tower(work / graph.file, graph, rows, expected, text)
    clock(f"{graph.file}: checked, least cosine {measured['cosine_min']}")
    return graph, measured


def _files(work: Path, graphs: list[Graph]) -> dict[str, str]:
    names = [name for graph in graphs for name in graph_files(graph, work)]
    names += ["tokenizer.json", "preprocessor_config.json", "config.json"]
    return {name: sha256_file(work / name) for name in names}


def _config(original: Original) -> dict[str, Any]:
    """The architecture: transformers' own configuration, or open_clip's, without the folder that it was read from."""
    if original.spec.library == "open_clip":
        import open_clip

        return {"model_type": "open_clip", "architecture": original.spec.name} | (
            open_clip.get_model_config(original.spec.name) or {}
        )
    config: Any = original.model.config
    return {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}


def _versions() -> dict[str, str]:
    found = {"lgip_ort": _version("lgip-ort"), "python": platform.python_version()}
    return {name: v for name, v in (found | {p: _version(p) for p in PACKAGES}).items() if v}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout, or the other of two packages is installed
        return ""


class _Clock:
    """Lines of progress with the seconds since the start."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.start = time.perf_counter()

    def __call__(self, line: str) -> None:
        self.log(f"{time.perf_counter() - self.start:7.1f} s  {line}")
