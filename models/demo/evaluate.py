"""The LGIP profile of a demo model in a few lines of torch, to steer and to report its training.

The rules are those of the LGIP benchmark (arXiv 2511.13494); the project's own benchmark is the reference.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lgip_ort.perturb.paper import rules
from models.demo.towers import embed_images, embed_texts
from models.demo.words import COLOURS, COUNTS, OBJECTS

WRAPPERS = tuple(template for template in rules()["wrappers"] if template != "{}")
WRAPPERS_DRAWN: int = rules()["paraphrases_drawn"]
FAMILIES = {"colour": list(COLOURS), "count": COUNTS, "object": list(OBJECTS)}
CHUNK = 512

Encode = Callable[[list[str]], np.ndarray]
"""Texts to token ids, shape (texts, length)."""


def flip(caption: str, family: str, rng: random.Random) -> str | None:
    """The caption with its first word of the family replaced by another one, or None where it has none."""
    vocabulary = FAMILIES[family]
    match = re.search(rf"\b({'|'.join(vocabulary)})\b", caption)
    if match is None:
        return None
    other = rng.choice([word for word in vocabulary if word != match[0]])
    return caption[: match.start()] + other + caption[match.end() :]


def in_chunks(embed: Callable[[Any], torch.Tensor], items: Any) -> torch.Tensor:
    """What `embed` makes of all items, a bounded number of them at a time."""
    return torch.cat([embed(items[first : first + CHUNK]) for first in range(0, len(items), CHUNK)])


@torch.inference_mode()
def profile(model: Any, encode: Encode, pixels: np.ndarray, captions: list[list[str]], seed: int) -> dict[str, float]:
    """E_inv over wrappers, E_sens and PR over flips (all and by family), recall@1 of each image's first caption.

    `pixels` has shape (images, SIZE, SIZE, 3), uint8.
    """
    rng = random.Random(seed)
    wrapped, flipped = [], []
    for image, row in enumerate(captions):
        for caption in row:
            wrapped += [(image, caption, pattern.format(caption)) for pattern in rng.sample(WRAPPERS, WRAPPERS_DRAWN)]
            for family in FAMILIES:
                false = flip(caption, family, rng)
                if false is not None:
                    flipped.append((image, caption, false, family))
    firsts = [row[0] for row in captions]
    pairs = [entry[1:3] for entry in [*wrapped, *flipped]]
    unique = list(dict.fromkeys([*firsts, *(text for pair in pairs for text in pair)]))
    texts = in_chunks(lambda part: embed_texts(model, encode(part)), unique)
    images = in_chunks(lambda part: embed_images(model, part), pixels)
    row_of = {text: row for row, text in enumerate(unique)}

    def score(entries: list[tuple[int, str]]) -> torch.Tensor:
        rows, columns = [image for image, _ in entries], [row_of[text] for _, text in entries]
        return (images[rows] * texts[columns]).sum(-1)

    moved = score([(image, true) for image, true, _ in wrapped])
    moved -= score([(image, reworded) for image, _, reworded in wrapped])
    drop = score([(image, true) for image, true, _, _ in flipped])
    drop -= score([(image, false) for image, _, false, _ in flipped])
    drops = defaultdict(list)
    for (*_, family), value in zip(flipped, drop.tolist(), strict=True):
        drops["all"].append(value)
        drops[family].append(value)
    similarity = images @ texts[[row_of[text] for text in firsts]].T
    own = torch.arange(len(firsts))
    found = {"E_inv": moved.abs().mean().item(), "flips": float(len(flipped))}
    for family, values in drops.items():
        found[f"E_sens {family}"] = float(np.mean(values))
        found[f"PR {family}"] = float(np.mean(np.array(values) > 0))
    found["R@1 image to text"] = (similarity.argmax(1) == own).float().mean().item()
    found["R@1 text to image"] = (similarity.argmax(0) == own).float().mean().item()
    return found
