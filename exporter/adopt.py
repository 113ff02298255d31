"""From a folder of ONNX graphs that somebody else exported to a bundle, by the same checks as our own exports."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from exporter import shipped, surgery
from exporter.expected import Expected, expect
from exporter.foreign import Family
from exporter.layouts import TowerFiles, find_towers
from exporter.load import Original, load_original
from exporter.preprocess import prove_pixels
from exporter.probes import Probes, probes
from exporter.publish import Clock, Log, bundle_files, original_config, versions, write_config
from exporter.surgery import TowerGraph
from exporter.tokenizer import prove_tokens
from exporter.tower_check import write_tower
from exporter.towers import towers_of
from exporter.verify import limits
from lgip_ort.bundle import TOKENIZER, Bundle, Graph, Manifest, Precision, Tower, Weights, write_bundle, write_manifest
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.image import preprocess
from lgip_ort.text import TextEncoder
from models.zoo import ModelSpec


def adopt_folder(
    folder: Path,
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
    """`adopt`, with the original of `spec` loaded from `weights`, or with none where that is `none`.

    Raises UsageFault where the weights can't be had, saying that `none` does without.
    """
    find_towers(folder)  # before gigabytes are loaded for nothing
    original = None
    if weights != "none":
        try:
            original = load_original(spec, weights, seed)
        except UsageFault as fault:
            raise UsageFault(f"{fault}\n  --weights none adopts an export without a comparison") from fault
    return adopt(spec, folder, original, precisions, out, overwrite, data, columns, log)


def adopt(
    spec: ModelSpec,
    folder: Path,
    original: Original | None,
    precisions: Collection[Precision] = (),
    out: Path = Path("artifacts"),
    overwrite: bool = False,
    data: str = "demo",
    columns: str | None = None,
    log: Log = lambda _: None,
    exported_by: str = "",
) -> tuple[Path, Manifest]:
    """Make the bundle `out/<key>` of the graphs in `folder`; returns its folder and manifest.

    `original`: what every tower is compared with, None where there is nothing to compare with. `precisions`: which of
    those in the folder are taken, all where it is empty. `data`, `columns`: as for `export_model`. `exported_by`: what
    the manifest names as the exporter, the folder where it is empty. Raises UsageFault where the folder has no layout
    that is known, RunFault where a check fails; nothing is left behind then.
    """
    target = out / spec.key
    found = find_towers(folder)
    config = shipped.read_config(folder)
    family = shipped.family_of(spec, config)
    with write_bundle(target, overwrite) as work:
        clock = Clock(log)
        for line in (f"{folder}: {found.layout}", *found.passed_over):
            clock(line)
        manifest: Manifest | None = None
        for files in found.pairs:
            if precisions and files.precision not in (None, *precisions):
                clock(f"{files.vision.relative_to(folder)}: passed over, {files.precision} is not asked for")
                continue
            cuts = _cut(files, folder, spec, family)
            precision = cuts[0].precision
            if precisions and precision not in precisions:
                clock(f"{cuts[0].file}: passed over, {precision} is not asked for")
                continue
            if manifest is None:
                known = probes(data, columns)
                expected = None if original is None else expect(original, known)
                manifest = _inputs(spec, folder, files, cuts, config, family, expected, work)
                manifest = dataclasses.replace(manifest, exported_by=exported_by or _origin(folder, cuts))
                bundle = Bundle(work, manifest, "")
                check = {"limits": {}, "data": known.data, **_prove(bundle, known, expected)}
                inputs = _probes(bundle, known)
                clock(_compared(original))
            elif precision in {graph.precision for graph in manifest.graphs}:
                raise UsageFault(f"{folder}: {cuts[0].file} is another graph in {precision}, one of each expected")
            check["limits"][precision] = limits(precision)
            for cut in cuts:
                graph, measured = _tower(cut, manifest, inputs, expected, work)
                manifest.graphs.append(graph)
                check[graph.file] = measured
                least = f"least cosine {measured['cosine_min']}" if expected else "not compared with an original"
                clock(f"{graph.file}: checked, {least}")
        if manifest is None:
            raise UsageFault(f"{folder}: no graphs in {' or '.join(precisions)} found")
        graphs = manifest.graphs
        manifest = dataclasses.replace(
            manifest, embedding_dim=_dim(folder, graphs), check=check, files=bundle_files(work, graphs)
        )
        write_manifest(work, manifest)
    clock(f"published {target}")
    return target, manifest


def _compared(original: Original | None) -> str:
    if original is None:
        return "NOT VERIFIED: there is no original to compare with"
    weights = original.weights
    return f"tokenizer and preprocessing are the original's, {weights.source} weights {weights.sha256[:12]}"


def _cut(files: TowerFiles, folder: Path, spec: ModelSpec, family: Family) -> tuple[TowerGraph, TowerGraph]:
    """Both towers, of one precision, which is the one that the names of the files say."""
    vision = surgery.open_tower(files.vision, folder, "vision", family)
    text = surgery.open_tower(files.text, folder, "text", family)
    for cut in (vision, text):
        surgery.fix_shape(cut, spec.image_size, spec.context_length)
        if files.precision not in (None, cut.precision):
            raise RunFault(f"{cut.file}: {cut.precision} weights found, {files.precision} expected of its name")
    if vision.precision != text.precision:
        raise RunFault(
            f"{folder}: {vision.file} in {vision.precision} and {text.file} in {text.precision} found, one expected"
        )
    return vision, text


def _inputs(
    spec: ModelSpec,
    folder: Path,
    files: TowerFiles,
    cuts: Sequence[TowerGraph],
    config: dict[str, Any],
    family: Family,
    expected: Expected | None,
    work: Path,
) -> Manifest:
    """Write everything but the graphs; returns the manifest, which has no graph yet."""
    causal = expected.shorter is None if expected else family == "clip"
    any_length = causal and isinstance(cuts[1].shape[1], str)
    text = expected.text if expected else None
    images = expected.images if expected else None
    config = config or (original_config(expected.original) if expected else {"model_type": family})
    write_config(config, work)
    return Manifest(
        model=spec.key,
        library=spec.library,
        architecture=spec.name,
        weights=expected.original.weights if expected else _unknown(folder, cuts),
        embedding_dim=0,
        activation=towers_of(expected.original).activation if expected else shipped.activations(config),
        graphs=[],
        text=shipped.write_text(folder, files.text.parent, spec, text, any_length, work),
        image=shipped.write_images(folder, files.vision.parent, spec, images, work),
        files={},
        check={},
        created_by=versions(),
    )


def _unknown(folder: Path, cuts: Sequence[TowerGraph]) -> Weights:
    return Weights("unknown", f"adopted from {folder.resolve()}", None, surgery.weights_sha256(cuts))


def _origin(folder: Path, cuts: Sequence[TowerGraph]) -> str:
    by = ", ".join(dict.fromkeys(cut.made_by for cut in cuts if cut.made_by))
    return f"adopted: {folder.resolve().name}" + (f" ({by})" if by else "")


def _prove(bundle: Bundle, known: Probes, expected: Expected | None) -> dict[str, Any]:
    """The bundle's tokenizer and preprocessing against the original's."""
    if expected is None:
        return {"original": "not compared"}
    try:
        tokens = prove_tokens(expected.text, TextEncoder(bundle), [*known.captions, *known.texts])
    except RunFault as fault:
        raise RunFault(f"{fault}\n  a folder without a {TOKENIZER} gets the original's") from fault
    try:
        pixels = prove_pixels(expected.images, bundle.manifest.image, known.pixels())
    except RunFault as fault:
        raise RunFault(f"{fault}\n  a folder without a {shipped.PREPROCESSOR} gets the original's") from fault
    return {"tokenizer": tokens, "pixels_max_diff": pixels, "data": known.data}


def _probes(bundle: Bundle, known: Probes) -> dict[Tower, NDArray[Any]]:
    """The probes as the bundle's own preprocessing and tokenizer make them."""
    encoder = TextEncoder(bundle)
    ids = encoder.pad(encoder.ids(known.captions), bundle.manifest.text.context_length)
    return {"vision": preprocess(known.images, bundle.manifest.image), "text": ids}


def _tower(
    cut: TowerGraph, manifest: Manifest, inputs: dict[Tower, NDArray[Any]], expected: Expected | None, work: Path
) -> tuple[Graph, dict[str, Any]]:
    reference = expected.rows[cut.tower] if expected else None
    if cut.tower == "vision":
        return write_tower(cut, work, inputs["vision"], reference=reference)
    symbolic = isinstance(cut.shape[1], str)
    if manifest.text.lengths == "any" and not symbolic:
        raise RunFault(f"{cut.file}: length fixed at {cut.shape[1]} found, any expected, as in the graph before it")
    shorter = expected.shorter if expected and symbolic else None
    return write_tower(cut, work, inputs["text"], manifest.text, reference, shorter)


def _dim(folder: Path, graphs: Sequence[Graph]) -> int:
    dims = {graph.file: graph.outputs[0].shape[1] for graph in graphs}
    if len(set(dims.values())) != 1:
        raise RunFault(f"{folder}: embeddings of {dims} values found, as many expected of every tower")
    return int(next(iter(dims.values())))
