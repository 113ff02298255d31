"""A bundle made by hand in milliseconds: two tiny graphs that react to every word and every pixel, no training, no torch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from lgip_ort.bundle import (
    Graph,
    ImageSpec,
    Manifest,
    TensorSpec,
    TextSpec,
    Weights,
    sha256_file,
    write_manifest,
)

DIM, SIZE, CONTEXT, VOCABULARY = 16, 8, 24, 512


def make_bundle(folder: Path, seed: int = 0, lengths: str = "any", poison: str | None = None) -> Path:
    """A bundle at `folder`. The text vector of a word called `poison` is NaN."""
    (folder / "onnx").mkdir(parents=True)
    rng = np.random.default_rng(seed)
    tokenizer = _tokenizer(poison)
    table = rng.normal(size=(VOCABULARY, DIM)).astype(np.float32)
    table[0] = 0  # padding adds nothing: any length gives the same vector
    if poison:
        table[tokenizer.token_to_id(poison)] = np.nan
    _save_text(folder / "onnx/text_model_fp16.onnx", table)
    _save_vision(folder / "onnx/vision_model_fp16.onnx", rng.normal(size=(3 * SIZE * SIZE, DIM)).astype(np.float32))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ["onnx/vision_model_fp16.onnx", "onnx/text_model_fp16.onnx", "tokenizer.json"]
    write_manifest(folder, _manifest(folder, names, lengths))
    return folder


def rehash(folder: Path, **changes: object) -> None:
    """Write the manifest again with the hashes of the files as they are now, and with other `changes` to its fields."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    data["files"] = {name: sha256_file(folder / name) for name in data["files"]}
    for name, value in changes.items():
        data[name] = {**data[name], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(data))


def _tokenizer(poison: str | None) -> Tokenizer:
    words = ["<pad>", "</s>", "<unk>", *([poison] if poison else [])]
    words += "a an the of in on is photo image picture scene showing this shows , .".split()
    words += "red blue green yellow black white brown gray orange pink purple".split()
    words += "one two three four five dog cat horse car bus train person bird boat bicycle truck dogs cats".split()
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def _save_text(path: Path, table: np.ndarray) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("ReduceSum", ["words", "axis"], ["sum"], keepdims=0),
        helper.make_node("LpNormalization", ["sum"], ["text_embeds"], axis=-1, p=2),
    ]
    _save(
        path,
        nodes,
        "input_ids",
        TensorProto.INT64,
        ["batch", "sequence"],
        "text_embeds",
        table=table,
        axis=np.array([1]),
    )


def _save_vision(path: Path, weight: np.ndarray) -> None:
    nodes = [
        helper.make_node("Flatten", ["pixel_values"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["projected"]),
        helper.make_node("LpNormalization", ["projected"], ["image_embeds"], axis=-1, p=2),
    ]
    _save(path, nodes, "pixel_values", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE], "image_embeds", weight=weight)


def _save(
    path: Path, nodes: list, source: str, dtype: int, shape: list, target: str, **initializers: np.ndarray
) -> None:
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info(source, dtype, shape)],
        [helper.make_tensor_value_info(target, TensorProto.FLOAT, ["batch", DIM])],
        [numpy_helper.from_array(value, name) for name, value in initializers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.write_bytes(model.SerializeToString())


def _manifest(folder: Path, names: list[str], lengths: str) -> Manifest:
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
            graph("vision", names[0], TensorSpec("pixel_values", "float32", ["batch", 3, SIZE, SIZE]), "image_embeds"),
            graph("text", names[1], TensorSpec("input_ids", "int64", ["batch", "sequence"]), "text_embeds"),
        ],
        text=TextSpec(CONTEXT, 0, 1, "any"),
        image=ImageSpec(SIZE, "squash", "bicubic", "before", [0.5] * 3, [0.5] * 3, "transformers", "toy"),
        files={name: sha256_file(folder / name) for name in names},
        check={},
        created_by={},
    )
    return dataclasses.replace(manifest, text=dataclasses.replace(manifest.text, lengths=lengths))
