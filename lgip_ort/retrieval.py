"""What the originals alone tell: retrieval, and how far true captions lie above those of other images.

Retrieval is what CLIP-style models are usually judged by, and it is here to show what it does not see. The matched gap,

    mean s(I, c) of true pairs - mean s(J, c) over all other images J,

is the scale of a model's cosines: families use different ranges, and a model that gives everything the same score has a
small E_inv for the wrong reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lgip_ort.bootstrap import ImageSums
from lgip_ort.table import stable_hash

GALLERY = 5_000
"""About how many images captions are sought among: as many as in the customary test split of COCO."""

RANKS = (1, 5, 10)
TO_IMAGE, TO_TEXT = "text_to_image", "image_to_text"
TIE = 1e-6
"""Scores that are closer than this are equal: the last digits of a product in float32 depend on what is beside it."""

CHUNK = 1_024
"""Texts whose scores with all images are in memory at a time."""


def in_gallery(image_id: str, share: float) -> bool:
    """Whether the image is one of the `share` of images that are kept: the same in every run, whatever the shards."""
    return stable_hash("gallery", image_id) < share * 2**64


def image_key(image_id: str) -> int:
    """What the vector of an image is known by, u64."""
    return stable_hash("vision", image_id)


def text_key(text: str, length: int | None) -> int:
    """What the vector of a text is known by, u64: the text, and its padded length where it has one."""
    return stable_hash("text", text) if length is None else stable_hash("text", text, length)


@dataclass(frozen=True)
class Gallery:
    """Images with their captions, each text once.

    image_ids: n of them. images: float32 (n, dim). texts: float32 (m, dim). text, image: int64 (pairs,), which text
    is a caption of which image. Vectors are L2-normalised.
    """

    image_ids: list[str]
    images: NDArray[np.float32]
    texts: NDArray[np.float32]
    text: NDArray[np.int64]
    image: NDArray[np.int64]


def gallery(captions: Iterable[pl.DataFrame], vectors: pl.DataFrame) -> Gallery | None:
    """The captions (image_id, text, text_length; in parts) of which `vectors` (tower, key, vector) has text and image.

    None where there are fewer than two such images.
    """
    images = vectors.filter(pl.col("tower") == "vision")
    texts = vectors.filter(pl.col("tower") == "text")
    image_row, text_row = (dict(zip(part["key"].to_list(), range(len(part)), strict=True)) for part in (images, texts))
    image_ids, pairs = dict[int, str](), dict[tuple[int, int], None]()
    for part in captions:
        found = {image_id: image_row.get(image_key(image_id)) for image_id in part["image_id"].unique()}
        known = {image_id: row for image_id, row in found.items() if row is not None}
        rows = part.filter(pl.col("image_id").is_in(list(known))).unique(maintain_order=True)
        for image_id, text, length in rows.select("image_id", "text", "text_length").iter_rows():
            image_ids[known[image_id]] = image_id
            if (text_at := text_row.get(text_key(text, length))) is not None:
                pairs[text_at, known[image_id]] = None
    if len({image for _, image in pairs}) < 2:
        return None
    text, image = np.array(list(pairs), np.int64).T
    # Only what is a caption, or has one, numbered anew.
    kept_texts, text = np.unique(text, return_inverse=True)
    kept_images, image = np.unique(image, return_inverse=True)
    ids = [image_ids[row] for row in kept_images.tolist()]
    return Gallery(ids, _rows(images, kept_images), _rows(texts, kept_texts), text, image)


def _rows(frame: pl.DataFrame, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.ascontiguousarray(frame["vector"].to_numpy()[rows], dtype=np.float32)


def ranks(of: Gallery) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many wrong answers score as high as the right one: to image int64 (pairs,), to text int64 (images,).

    To image: images that have not this caption, against the one that has it. To text: captions that are not of this
    image, against the best of those that are (the usual rule). A tie counts against the model.
    """
    own = np.einsum("nd,nd->n", of.texts[of.text], of.images[of.image])
    best = np.full(len(of.images), -np.inf, np.float32)
    np.maximum.at(best, of.image, own)
    to_image, to_text = np.zeros(len(of.text), np.int64), np.zeros(len(of.images), np.int64)
    order = np.argsort(of.text, kind="stable")
    starts = np.searchsorted(of.text[order], np.arange(0, len(of.texts) + CHUNK, CHUNK))
    for number, first in enumerate(range(0, len(of.texts), CHUNK)):
        pairs = order[starts[number] : starts[number + 1]]
        scores = of.texts[first : first + CHUNK] @ of.images.T
        scores[of.text[pairs] - first, of.image[pairs]] = -np.inf
        to_text += (scores >= best - TIE).sum(axis=0)
        to_image[pairs] = (scores[of.text[pairs] - first] >= own[pairs, None] - TIE).sum(axis=1)
    return to_image, to_text


def recalls(of: Gallery) -> dict[tuple[str, str], ImageSums]:
    """Recall at RANKS, both ways, as sums over the images of the gallery, by (metric, kind)."""
    to_image, to_text = ranks(of)
    ones = np.ones(len(of.images), np.int64)
    out = {}
    for rank in RANKS:
        out[f"R@{rank}", TO_TEXT] = ImageSums((to_text < rank).astype(np.float64), ones.astype(np.float64), ones)
    for rank in RANKS:
        out[f"R@{rank}", TO_IMAGE] = _by_image(of, (to_image < rank).astype(np.float64))
    return out


def matched_gap(of: Gallery) -> ImageSums:
    """Score of a true pair minus the mean score of its caption with all other images, as sums over images."""
    texts, images = of.texts.astype(np.float64), of.images.astype(np.float64)
    own = np.einsum("nd,nd->n", texts[of.text], images[of.image])
    with_all = (texts @ images.sum(axis=0))[of.text]
    others = (with_all - own) / (len(images) - 1)
    return _by_image(of, own - others)


def _by_image(of: Gallery, value: NDArray[np.float64]) -> ImageSums:
    size = len(of.images)
    count = np.bincount(of.image, minlength=size)
    return ImageSums(
        np.bincount(of.image, value, minlength=size).astype(np.float64),
        count.astype(np.float64),
        count.astype(np.int64),
    )


def spread(sums: ImageSums, image_ids: list[str], place: dict[str, int], images: int) -> ImageSums:
    """Sums over a gallery as sums over `images` images, of which `place` numbers those of the gallery."""
    rows = [place[image_id] for image_id in image_ids]
    out = ImageSums(np.zeros(images), np.zeros(images), np.zeros(images, np.int64))
    out.total[rows], out.weight[rows], out.count[rows] = sums.total, sums.weight, sums.count
    return out
