"""The bundle: a folder with one model's two ONNX graphs, its tokenizer, its preprocessing and a manifest.

The layout is the one of transformers.js and the onnx-community exports: either side's tools open the other's files.

    onnx/vision_model_fp16.onnx   pixel_values -> image_embeds   (+ .onnx_data where it is large)
    onnx/text_model_fp16.onnx     input_ids    -> text_embeds    (_fp16, _int8, or no suffix: fp32)
    tokenizer.json  preprocessor_config.json  config.json
    manifest.json                 what this module reads and checks
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
import shutil
import tempfile
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lgip_ort.errors import UsageFault, did_you_mean
from lgip_ort.schema import build

FORMAT = "lgip-ort bundle"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
EXPORTER = "lgip-ort"
TOKENIZER = "tokenizer.json"

Tower = Literal["vision", "text"]
Precision = Literal["fp16", "fp32", "int8"]
PRECISIONS: tuple[Precision, ...] = typing.get_args(Precision)
"""In the order in which a bundle's default is chosen."""


@dataclass(frozen=True)
class Weights:
    """Which weights the graphs hold.

    `source`: `hub`, `path`, `demo`, `random`, or `unknown` where the graphs are somebody else's and were compared with
    nothing; `name`: hub id or weights tag, path, or `seed N`; `sha256` is taken over the tensors (name, dtype, shape,
    bytes, sorted by name), so that it does not depend on the file format they came in, over the graphs' own
    tensors where the source is unknown.
    """

    source: Literal["hub", "path", "demo", "random", "unknown"]
    name: str
    revision: str | None
    sha256: str


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a graph. A `str` in `shape` is a symbolic dimension."""

    name: str
    dtype: str
    shape: list[int | str]


@dataclass(frozen=True)
class Graph:
    """One tower in one precision. `fp32` lists what stayed in fp32 in a graph of lower precision, and why.

    `int8`: weights of matrix multiplications in 8 bits, their inputs quantised as they come; the rest is fp32.
    """

    tower: Tower
    precision: Precision
    file: str
    opset: int
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    fp32: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TextSpec:
    """How text becomes `input_ids`.

    `lengths`: `any` where the tower is causal and pools at the end-of-text token, so that padding changes nothing;
    `trained` where only `context_length` is right. `source`: `original`, or `stand-in` where weights are random and
    the original tokenizer is out of reach. `clean`: what the original does to a text that `tokenizer.json` can't say,
    in this order, before it: `ftfy` mends mojibake, curly quotes and ligatures, `html` resolves entities, twice.
    `ignores`: what two texts may differ in and still have the same ids, as measured on the original: `case`, ASCII
    `punctuation`, `spaces` (more than one, or at the ends). `reference`: the class of the original tokenizer.
    Every text ends with `eot_id`, one that is cut at `context_length` too.
    """

    context_length: int
    pad_id: int
    eot_id: int
    lengths: Literal["any", "trained"]
    source: Literal["original", "stand-in"] = "original"
    clean: list[Literal["ftfy", "html"]] = field(default_factory=list)
    ignores: list[Literal["case", "punctuation", "spaces"]] = field(default_factory=list)
    reference: str = ""


@dataclass(frozen=True)
class ImageSpec:
    """How an image becomes `pixel_values`.

    `resize`: `shortest` scales the shortest side to `size` and crops the centre, `squash` ignores the aspect.
    `interpolation`: Pillow's, which widens its filter with the scale (antialiasing) for all but `nearest`.
    `convert`: whether the colour mode is made RGB `before` or `after` resizing; it changes palette and alpha images.
    `arithmetic`: whose rounding of the crop and of the normalisation, so that results are equal to the last bit.
    """

    size: int
    resize: Literal["shortest", "squash"]
    interpolation: Literal["bicubic", "bilinear", "nearest"]
    convert: Literal["before", "after"]
    mean: list[float]
    std: list[float]
    arithmetic: Literal["open_clip", "transformers"]
    reference: str


@dataclass(frozen=True)
class Manifest:
    """Everything a runtime must know about a bundle. Read with `open_bundle`, written by the exporter.

    `exported_by`: what made the graphs; where it is not this project, they were adopted.
    """

    model: str
    library: Literal["open_clip", "transformers"]
    architecture: str
    weights: Weights
    embedding_dim: int
    activation: dict[str, str]
    graphs: list[Graph]
    text: TextSpec
    image: ImageSpec
    files: dict[str, str]
    check: dict[str, Any]
    created_by: dict[str, str]
    exported_by: str = EXPORTER
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @property
    def adopted(self) -> bool:
        """Whether somebody else exported the graphs."""
        return self.exported_by != EXPORTER


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its folder, its manifest, and the sha256 of the manifest, which stands for all of it."""

    folder: Path
    manifest: Manifest
    sha256: str

    @property
    def precisions(self) -> list[Precision]:
        """The precisions that both towers are there in, the default first."""
        towers = [{g.precision for g in self.manifest.graphs if g.tower == tower} for tower in typing.get_args(Tower)]
        return [precision for precision in PRECISIONS if all(precision in found for found in towers)]

    def graph(self, tower: Tower, precision: Precision | None = None) -> Graph:
        """The graph of `tower` in `precision`; None is fp16 where both towers have it, else fp32, else int8.

        Raises UsageFault naming the precisions that are there and the command that adds one.
        """
        there = self.precisions
        wanted = precision or next(iter(there), None)
        for graph in self.manifest.graphs:
            if graph.tower == tower and graph.precision == wanted:
                return graph
        path, found = self.folder / MANIFEST, ", ".join(there) or "none"
        if precision is None:
            raise UsageFault(f"{path}: no precision that both towers are there in")
        if self.manifest.adopted:
            by = self.manifest.exported_by
            raise UsageFault(f"{path}: precision {found} found, {precision} expected; the graphs are not ours ({by})")
        raise UsageFault(
            f"{path}: precision {found} found, {precision} expected; to have it: {self._export(precision)}"
        )

    def _export(self, added: Precision) -> str:
        """The command that exports the same model again, with one precision more."""
        weights = self.manifest.weights
        source = {
            "random": f" --weights random --{weights.name.replace(' ', '=')}",
            "path": f" --weights {shlex.quote(weights.name)}",
        }.get(weights.source, "")
        precisions = "".join(f" --precision {p}" for p in [*self.precisions, added])
        return f"python exporter/export.py --model {self.manifest.model}{source}{precisions} --overwrite"

    def parts(self, graph: Graph) -> list[Path]:
        """The files of a graph: itself, and those beside it that hold its weights."""
        return [self.path(name) for name in self.manifest.files if name == graph.file or _data_of(name, graph.file)]

    def path(self, name: str) -> Path:
        """The absolute path of the bundle's file `name`."""
        return self.folder / name


def _data_of(name: str, graph: str) -> bool:
    """`model.onnx_data` and `model.onnx_data_1` of `model.onnx`, as ONNX's tools and transformers.js name them."""
    return name.startswith((f"{graph}_data", f"{graph}.data"))


def choose_precision(asked: str) -> Precision:
    """The precision `asked`. Raises UsageFault, with the nearest known name, where there is none."""
    for precision in PRECISIONS:
        if precision == asked:
            return precision
    raise UsageFault(f"unknown precision {asked!r}{did_you_mean(asked, PRECISIONS)}")


def open_bundle(folder: Path) -> Bundle:
    """Open and check a bundle: format version, every file inside the folder, every sha256.

    Raises UsageFault naming the file, what was found and what was expected.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UsageFault(f"{folder}: not a bundle, {MANIFEST} is missing")
    raw = path.read_bytes()
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise UsageFault(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageFault(f"{path}: not a manifest of a {FORMAT}")
    if data.get("format_version") != FORMAT_VERSION:
        raise UsageFault(
            f"{path}: format version {data.get('format_version')!r} found, {FORMAT_VERSION} expected; export again"
        )
    manifest = build(Manifest, data, str(path))
    if not re.fullmatch(r"\w[\w.-]*", manifest.model):  # it becomes the name of a folder
        raise UsageFault(f"{path}: model {manifest.model!r} found, letters, digits, '.', '-' and '_' expected")
    for graph in manifest.graphs:
        data = f"{graph.file}_data"
        if data not in manifest.files and (folder / data).exists():
            raise UsageFault(f"{path}: {data} has no sha256 under 'files'")
    for name in [*(graph.file for graph in manifest.graphs), TOKENIZER]:
        if name not in manifest.files:
            raise UsageFault(f"{path}: {name} has no sha256 under 'files'")
    for name, expected in manifest.files.items():
        file = _inside(folder, name, path)
        if not file.is_file():
            raise UsageFault(f"{file}: named by {MANIFEST}, but missing")
        found = sha256_file(file)
        if found != expected:
            raise UsageFault(f"{file}: sha256 {found[:12]}... found, {expected[:12]}... expected by {MANIFEST}")
    return Bundle(folder=folder, manifest=manifest, sha256=hashlib.sha256(raw).hexdigest())


@contextmanager
def write_bundle(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place when the block ends without an exception.

    After an exception nothing is left. Raises UsageFault where `folder` exists and `overwrite` is False,
    and where something else than a bundle stands there.
    """
    if folder.exists() and not overwrite:
        raise UsageFault(f"{folder} exists; --overwrite replaces it")
    if folder.is_symlink() or (folder.exists() and not (folder / MANIFEST).is_file()):
        raise UsageFault(f"{folder} is not a bundle's folder: --overwrite replaces nothing else")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    temporary.chmod(0o755)  # mkdtemp makes folders private, a published bundle is not
    try:
        yield temporary
        if folder.exists():
            retired = temporary.with_name(temporary.name + "-old")
            folder.replace(retired)
            temporary.replace(folder)
            shutil.rmtree(retired)
        else:
            temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, with a stable order and format: equal manifests are equal bytes."""
    text = json.dumps(dataclasses.asdict(manifest), indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def sha256_file(path: Path) -> str:
    """The sha256 of a file, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(folder: Path, name: str, manifest: Path) -> Path:
    root = folder.resolve()
    file = (root / name).resolve()
    if not file.is_relative_to(root):
        raise UsageFault(f"{manifest}: {name!r} leaves the bundle's folder")
    return folder / name
