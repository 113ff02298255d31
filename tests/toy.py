"""A bundle made by hand in milliseconds: two tiny graphs that react to every word and every pixel, no training, no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from lgip_ort.bundle import Graph, ImageSpec, Manifest, TensorSpec, TextSpec, Weights, sha256_file, write_manifest

DIM, SIZE, CONTEXT, VOCABULARY = 16, 8, 24, 512
PAD, EOT, UNKNOWN = 0, 1, 2
VISION, TEXT = "onnx/vision_model_fp16.onnx", "onnx/text_model_fp16.onnx"
WORDS = (
    "a an the of in on is photo image picture scene showing this shows , . "
    "red blue green yellow black white brown gray orange pink purple "
    "one two three four five dog cat horse car bus train person bird boat bicycle truck dogs cats"
)


def make_bundle(folder: Path, seed: int = 0, pad_matters: bool = False, poison: str | None = None) -> Path:
    """A bundle at `folder`: a text's vector is the normalised sum of its tokens' vectors, an image's is linear.

    Padding adds nothing, so that any length gives the same vector; with `pad_matters` it does, and the bundle says that
    only the trained length is right. The vector of a word called `poison` is NaN.
    """
    (folder / "onnx").mkdir(parents=True)
    rng = np.random.default_rng(seed)
    tokenizer = _tokenizer(poison)
    table = rng.normal(size=(VOCABULARY, DIM)).astype(np.float32)
    table[PAD] *= 0.2 * pad_matters
    if poison:
        table[tokenizer.token_to_id(poison)] = np.nan
    _save_text(folder / TEXT, table)
    _save_vision(folder / VISION, rng.normal(size=(3 * SIZE * SIZE, DIM)).astype(np.float32))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_manifest(folder, _manifest(folder, "trained" if pad_matters else "any"))
    return folder


def rehash(folder: Path, **changes: object) -> None:
    """Write the manifest again with the hashes of the files as they are now, and with other `changes` to its fields."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    data["files"] = {name: sha256_file(folder / name) for name in data["files"]}
    for name, value in changes.items():
        data[name] = {**data[name], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(data))


def in_precisions(folder: Path, *precisions: str) -> Path:
    """Give the bundle at `folder` copies of its graphs under the names of `precisions`, and no others."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    found, data["graphs"] = data["graphs"], []
    contents = {graph["file"]: (folder / graph["file"]).read_bytes() for graph in found}
    for graph in found:
        del data["files"][graph["file"]]
        (folder / graph["file"]).unlink()
        for precision in precisions:
            suffix = "" if precision == "fp32" else f"_{precision}"
            file = f"onnx/{graph['tower']}_model{suffix}.onnx"
            (folder / file).write_bytes(contents[graph["file"]])
            data["files"][file] = ""
            data["graphs"].append({**graph, "precision": precision, "file": file})
    path.write_text(json.dumps(data))
    rehash(folder)
    return folder


def edit_graph(file: Path, edit: Callable[[onnx.GraphProto], None]) -> None:
    """Change an ONNX file in place."""
    model = onnx.load(file)
    edit(model.graph)
    file.write_bytes(model.SerializeToString())


def fix_length(folder: Path) -> Path:
    """Make the text graph of a bundle take texts of CONTEXT tokens only; returns the folder."""

    def fix(graph: onnx.GraphProto) -> None:
        dim = graph.input[0].type.tensor_type.shape.dim[1]
        dim.ClearField("dim_param")
        dim.dim_value = CONTEXT

    edit_graph(folder / TEXT, fix)
    graphs = json.loads((folder / "manifest.json").read_text())["graphs"]
    for graph in graphs:
        if graph["tower"] == "text":
            graph["inputs"][0]["shape"] = ["batch", CONTEXT]
    rehash(folder, graphs=graphs)
    return folder


def weights(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a graph by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(file).graph.initializer}


def save_graph(path: Path, nodes: list, inputs: list, outputs: list, **tensors: np.ndarray) -> None:
    """An ONNX file. `inputs` and `outputs`: (name, TensorProto type, shape)."""
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.write_bytes(model.SerializeToString())


def _tokenizer(poison: str | None) -> Tokenizer:
    words = ["<pad>", "</s>", "<unk>", *([poison] if poison else []), *WORDS.split()]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOT)])
    return tokenizer


def _save_text(path: Path, table: np.ndarray) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("ReduceSum", ["words", "axis"], ["sum"], keepdims=0),
        helper.make_node("LpNormalization", ["sum"], ["text_embeds"], axis=-1, p=2),
    ]
    inputs = [("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    save_graph(path, nodes, inputs, [_output("text_embeds")], table=table, axis=np.array([1]))


def _save_vision(path: Path, weight: np.ndarray) -> None:
    nodes = [
        helper.make_node("Flatten", ["pixel_values"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["projected"]),
        helper.make_node("LpNormalization", ["projected"], ["image_embeds"], axis=-1, p=2),
    ]
    inputs = [("pixel_values", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])]
    save_graph(path, nodes, inputs, [_output("image_embeds")], weight=weight)


def _output(name: str) -> tuple[str, int, list]:
    return name, TensorProto.FLOAT, ["batch", DIM]


def _manifest(folder: Path, lengths: str) -> Manifest:
    def graph(tower: str, file: str, source: TensorSpec, target: str) -> Graph:
        return Graph(tower, "fp16", file, 18, [source], [TensorSpec(target, "float32", ["batch", DIM])])

    manifest = Manifest(
        model="toy",
        library="transformers",
        architecture="toy",
        weights=Weights("random", "seed 0", None, "0" * 64),
        embedding_dim=DIM,
        activation={"vision": "none", "text": "none"},
        graphs=[
            graph("vision", VISION, TensorSpec("pixel_values", "float32", ["batch", 3, SIZE, SIZE]), "image_embeds"),
            graph("text", TEXT, TensorSpec("input_ids", "int64", ["batch", "sequence"]), "text_embeds"),
        ],
        text=TextSpec(CONTEXT, PAD, EOT, "any"),
        image=ImageSpec(SIZE, "squash", "bicubic", "before", [0.5] * 3, [0.5] * 3, "transformers", "toy"),
        files={name: sha256_file(folder / name) for name in (VISION, TEXT, "tokenizer.json")},
        check={},
        created_by={},
    )
    return dataclasses.replace(manifest, text=dataclasses.replace(manifest.text, lengths=lengths))
