"""PyTorch as fast as people run it, and as the released scripts run it: what a bundle's speed is measured against."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from exporter.load import Original, embed_ids, embed_images
from exporter.reference import TorchEngine
from lgip_ort.bundle import Bundle
from lgip_ort.engine import Embeddings
from lgip_ort.image import Pixels, read_image
from lgip_ort.speed.cases import TORCH_TEXTS, Rivals
from lgip_ort.speed.roof import SHAPES, Product, operands
from lgip_ort.text import TokenIds

LOWER = {"cpu": ("bf16", torch.bfloat16), "cuda": ("fp16", torch.float16)}
"""What PyTorch is fastest in, by device."""

TOWERS = ("vision_model", "text_model", "visual", "text", "transformer")
"""The parts of a model that hold its towers: two of transformers, two of open_clip, which has a text tower of either
name."""

Pair = tuple[int, float, float]
"""pair_id, s, s_perturbed."""


class Rival(TorchEngine):
    """The original cast to `dtype`, with the fused attention that transformers chooses where nobody asks for another.

    `compiled`: its towers through torch.compile, for every shape anew.
    """

    def __init__(
        self,
        original: Original,
        batch_size: int = TORCH_TEXTS,
        device: str = "auto",
        padding: str = "trained",
        dtype: torch.dtype = torch.float32,
        compiled: bool = False,
    ) -> None:
        self._dtype = dtype
        model: Any = original.model.to(dtype)
        if hasattr(model, "set_attn_implementation"):
            model.set_attn_implementation("sdpa")
        for name in TOWERS if compiled else ():
            if isinstance(part := getattr(model, name, None), torch.nn.Module):
                part.compile(dynamic=False)
        super().__init__(original, batch_size, device, padding)

    def cast(self, precision: str, dtype: torch.dtype, compiled: bool = False) -> Rival:
        """A copy that computes in `dtype`, called `precision` in its stamp."""
        original = dataclasses.replace(self._original, model=copy.deepcopy(self._original.model))
        made = Rival(original, self.batch_size, self._device, self.stamp.padding, dtype, compiled)
        made.stamp = dataclasses.replace(made.stamp, precision={"asked": "fp32", "executed": precision})
        return made

    def _embed_pixels(self, pixels: Pixels) -> Embeddings:
        found = embed_images(self._original, torch.from_numpy(pixels).to(self._device, self._dtype))
        return found.float().cpu().numpy()

    def _embed_ids(self, ids: TokenIds) -> Embeddings:
        return embed_ids(self._original, torch.from_numpy(ids).to(self._device)).float().cpu().numpy()


def rivals(bundle: Bundle, device: str) -> Rivals:
    """PyTorch with the weights of `bundle` on `device` (cpu, cuda): fp32, and bf16 or fp16, this also compiled.

    bf16 is measured on every CPU; one without the instructions is slow at it. Raises UsageFault as
    `TorchEngine.from_bundle` does.
    """
    fp32 = Rival.from_bundle(bundle, TORCH_TEXTS, device)
    assert isinstance(fp32, Rival)
    name, dtype = LOWER[device]
    engines = {"fp32": fp32, name: fp32.cast(name, dtype)}
    if device == "cuda":
        engines[f"{name} compiled"] = fp32.cast(name, dtype, compiled=True)
    return Rivals(device, engines, products(device), partial(as_released, fp32), torch.get_num_threads())


def as_released(engine: TorchEngine, root: Path, images: pl.DataFrame, table: pl.DataFrame) -> Callable[[], list[Pair]]:
    """What scores the pairs of `table` on `images` (image_id, path under `root`) the way the released scripts do.

    One image at a time, from the file: its vector; the captions of it in one call; then, caption by caption, a call for
    the perturbations of each kind, its paraphrases, its flips. Texts are padded to the length that the library pads to.
    """
    script = []
    for image_id, path in images.select("image_id", "path").iter_rows():
        rows = table.filter(image_id=image_id)
        captions = dict(rows.select("caption_index", "text").iter_rows())
        groups = rows.partition_by("caption_index", "kind", maintain_order=True)
        script.append((root / path, list(captions), list(captions.values()), groups))

    def embed(texts: list[str]) -> Embeddings:
        ((_, ids),) = engine.batches(texts)
        return engine.embed_ids(ids)

    def run() -> list[Pair]:
        pairs: list[Pair] = []
        for path, indices, captions, groups in script:
            image = engine.embed_pixels(engine.pixels(read_image(path))[None])[0]
            originals = dict(zip(indices, embed(captions) @ image, strict=True)) if captions else {}
            for group in groups:
                s = originals[group[0, "caption_index"]]
                scores = embed(group["perturbed"].to_list()) @ image
                pairs += [(key, float(s), float(t)) for key, t in zip(group["pair_id"], scores, strict=True)]
        return pairs

    return run


def products(device: str) -> list[Product]:
    """PyTorch's products of matrices on `device`, in fp32 and in what it is fastest in."""
    made = []
    for precision, dtype in (("fp32", torch.float32), LOWER[device]):
        for shape in SHAPES[device]:
            a, b = (torch.from_numpy(array).to(device, dtype) for array in operands(shape))
            call = partial(_multiply, a, b, torch.empty(len(a), b.shape[1], dtype=dtype, device=device))
            made.append(Product("torch", device, precision, shape, call))
    return made


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)
    if out.is_cuda:
        torch.cuda.synchronize()  # the call itself only puts the work into a queue
