"""What the PyTorch original does with the probes: what every graph that is called an export of it is held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from exporter.inputs import OriginalImages, OriginalText, original_images, original_text
from exporter.load import Original, embed_ids, embed_images, sees_padding
from exporter.probes import Probes
from exporter.verify import Rows, half
from lgip_ort.bundle import Tower


@dataclass(frozen=True)
class Expected:
    """An original's tokenizer and preprocessing, and by tower what they make of the probes and what its model makes
    of that: `inputs`, and `rows`, float32 (n, dim).

    `shorter`: the embeddings of texts cut to half of their length; None where the length does not matter.
    """

    original: Original
    text: OriginalText
    images: OriginalImages
    inputs: dict[Tower, NDArray[Any]]
    rows: dict[Tower, Rows]
    shorter: Rows | None


def expect(original: Original, known: Probes) -> Expected:
    """Run an original on the probes, by its library's own functions, in fp32.

    Raises UsageFault where its tokenizer or its preprocessing is not at hand.
    """
    text, images = original_text(original), original_images(original)
    pixels, ids = images.pixels(known.images), text.encode(known.captions)
    rows: dict[Tower, Rows] = {
        "vision": embed_images(original, torch.from_numpy(pixels)).numpy(),
        "text": _texts(original, ids),
    }
    shorter = _texts(original, half(ids)) if sees_padding(original) else None
    return Expected(original, text, images, {"vision": pixels, "text": ids}, rows, shorter)


def _texts(original: Original, ids: NDArray[np.int64]) -> Rows:
    return embed_ids(original, torch.from_numpy(ids)).numpy()
