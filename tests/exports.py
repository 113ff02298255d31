"""ONNX exports of the demo models as other people make them: by Optimum, and as transformers.js has them."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path

from checkpoints import open_clip_spec

from models import zoo


@cache
def _home() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="exports-")


def original(kind: str):
    """The committed PyTorch model: tiny_clip or tiny_siglip."""
    from exporter.load import load_original

    return load_original(zoo.get(kind), "hub")


@cache
def optimum(kind: str) -> Path:
    """Optimum's export of a demo model, that nothing may write to."""
    from exporter.via_optimum import export_with_optimum

    home = Path(_home().name) / f"{kind}-via"
    home.mkdir()
    return export_with_optimum(original(kind), home)


@cache
def transformers_js(kind: str, noise: float = 0.0, batch: int | None = None) -> Path:
    """onnx/vision_model.onnx and onnx/text_model.onnx with the outputs of transformers' towers, that nothing may write to.

    Not normalised, last_hidden_state beside the embedding, attention_mask beside input_ids. `noise`: added to every weight
    matrix, as a share of its standard deviation; `batch`: fixed, or any.
    """
    import torch

    from exporter.inputs import original_text
    from exporter.tokenizer import write_tokenizer

    class Text(torch.nn.Module):
        def __init__(self, model) -> None:
            super().__init__()
            self.tower, self.projection = model.text_model, getattr(model, "text_projection", None)

        def forward(self, input_ids, attention_mask):
            out = self.tower(input_ids=input_ids, attention_mask=attention_mask)
            return self.projection(out.pooler_output) if self.projection else out.pooler_output, out.last_hidden_state

    class Vision(torch.nn.Module):
        def __init__(self, model) -> None:
            super().__init__()
            self.tower, self.projection = model.vision_model, getattr(model, "visual_projection", None)

        def forward(self, pixel_values):
            out = self.tower(pixel_values)
            return self.projection(out.pooler_output) if self.projection else out.pooler_output, out.last_hidden_state

    folder = Path(_home().name) / f"{kind}-{noise}-{batch}-js"
    (folder / "onnx").mkdir(parents=True)
    known = original(kind)
    spec, model = known.spec, known.model
    torch.manual_seed(0)
    for matrix in [p for p in model.parameters() if p.ndim > 1] if noise else []:
        matrix.add_(torch.randn_like(matrix) * matrix.std() * noise)
    ids = torch.ones(batch or 2, spec.context_length, dtype=torch.int64)
    pixels = torch.zeros(batch or 2, 3, spec.image_size, spec.image_size)
    pooled = {"text": "text_embeds", "vision": "image_embeds"} if kind == "tiny_clip" else {}
    for tower, module, inputs in (
        ("text", Text(model), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}),
        ("vision", Vision(model), {"pixel_values": pixels}),
    ):
        axes = {name: {0: "batch_size", **({1: "sequence_length"} if tower == "text" else {})} for name in inputs}
        outputs = [pooled.get(tower, "pooler_output"), "last_hidden_state"]
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                tuple(inputs.values()),
                folder / f"onnx/{tower}_model.onnx",
                input_names=list(inputs),
                output_names=outputs,
                dynamic_axes=None if batch else {**axes, **{name: {0: "batch_size"} for name in outputs}},
                opset_version=17,
                dynamo=False,
            )
    for file in spec.folder.glob("*.json"):
        shutil.copy(file, folder)
    write_tokenizer(original_text(known), spec.context_length, kind == "tiny_clip", folder / "tokenizer.json")
    return folder


def open_clip():
    """A small open_clip model with random weights."""
    from exporter.load import load_original

    return load_original(open_clip_spec(Path(_home().name)), "random")


@cache
def two_files() -> Path:
    """What people write in ten lines with open_clip and torch.onnx: image.onnx and text.onnx, nothing beside them."""
    import torch

    model = open_clip().model

    class Text(torch.nn.Module):
        def forward(self, text):
            return model.encode_text(text)

    folder = Path(_home().name) / "two-files"
    folder.mkdir()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it has no ONNX form
    for name, module, example in (
        ("text", Text(), torch.ones(2, 77, dtype=torch.int32)),
        ("image", model.visual, torch.zeros(2, 3, 32, 32)),
    ):
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                (example,),
                folder / f"{name}.onnx",
                input_names=[name],
                output_names=["embedding"],
                dynamic_axes={name: {0: "n"}, "embedding": {0: "n"}},
                opset_version=17,
                dynamo=False,
            )
    torch.backends.mha.set_fastpath_enabled(fast)
    return folder


def adopt_demo(folder: Path, out: Path, kind: str = "tiny_clip", known="same", **options):
    """The bundle of an export of a demo model; `known`: the original to compare with, None for none."""
    from exporter.adopt import adopt

    return adopt(zoo.get(kind), folder, original(kind) if known == "same" else known, out=out, **options)


def copy(folder: Path, to: Path) -> Path:
    """A copy of an export that a test may change."""
    return Path(shutil.copytree(folder, to))
