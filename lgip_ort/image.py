"""Image files to `pixel_values`, exactly as the original preprocessing does it, with Pillow and NumPy alone."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lgip_ort.bundle import ImageSpec
from lgip_ort.dataset import archive
from lgip_ort.errors import UsageFault

MAX_PIXELS = 89_478_485
"""Largest image that is decoded: a quarter of a gibibyte in RGB. Known before any pixel is read."""

MAX_ASPECT = 200
"""Longest side over shortest of an image that is decoded: resizing by the shortest makes the other this much longer."""

LARGE = 16_000_000
"""Pixels of an image above which it is decoded alone: as many threads as there are, memory holds one such at a time."""

DEEP = ("I", "F")
"""Greyscale modes of more than 8 bits begin so. Pillow's conversion to RGB cuts them off at 255, which leaves white."""

DRAWINGS = ("EPS", "WMF")
"""Formats that are programs: another program, if it is there, would have to be run to get pixels."""

INTERPOLATION = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


Pixels = NDArray[np.float32]

_ALONE = threading.Lock()


class ImageFault(Exception):
    """An image file that can't be read. The message is the reason, without the path."""


def read_image(path: Path) -> Image.Image:
    """Decode an image file whole, in its own colour mode; its EXIF orientation is not applied.

    The path may lead into a zip archive: `val2017.zip/val2017/000000000139.jpg`.

    What becomes of every kind of file is written in docs/images.md. Raises ImageFault with the reason where the file is
    no image, is cut short, has more than MAX_PIXELS pixels, has one side more than MAX_ASPECT times the other, or is of
    a kind that the conversion to RGB would destroy; UsageFault where the archive it lies in is broken.
    """
    with quiet(), _open(path) as file:
        return _decode(file)


def read_pixels(path: Path, prepare: Callable[[Image.Image], Pixels]) -> Pixels:
    """What `prepare` makes of the image at `path`. Raises as `read_image` does.

    For several threads, in a block of `quiet`: of LARGE images one is in memory at a time.
    """
    with _open(path) as file, _ALONE if file.width * file.height > LARGE else nullcontext():
        return prepare(_decode(file))


@contextmanager
def quiet() -> Iterator[None]:
    """Without Pillow's warnings, in all threads: about large images, which have a bound of their own, and about EXIF
    blocks and transparency, which are not used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    """An image file whose header was read and whose size is bounded; a fault within the block becomes an ImageFault."""
    opened: Path | BytesIO = path
    try:
        opened = archive.readable(path)
        with Image.open(opened) as file:
            if file.format in DRAWINGS:
                raise ImageFault(f"{file.format}: a drawing, not an image of pixels")
            _refuse_large(*file.size)
            yield file
    except (ImageFault, UsageFault):
        raise
    except Exception as error:  # decoders raise what they like at a damaged file, RuntimeError among it
        reason = f"{type(error).__name__}: {error}"
        # Neither where the file lies nor where in memory its content does: the same file, the same reason.
        reason = reason.replace(repr(opened), repr(path.name)).replace(str(path), path.name)
        raise ImageFault(reason) from error


def _decode(file: Image.Image) -> Image.Image:
    image = file.copy()  # holds no file open, as one with more frames would
    if image.mode.startswith(DEEP):
        raise ImageFault(f"mode {image.mode}: greyscale of more than 8 bits, which RGB cuts off at 255")
    if image.mode == "P":
        image.info.pop("transparency", None)  # unused by a conversion to RGB, which warns about some kinds of it
    return image


def _refuse_large(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageFault(f"{width} x {height} pixels, more than {MAX_PIXELS:,}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageFault(f"{width} x {height} pixels, one side more than {MAX_ASPECT} times the other")


def preprocess(images: Sequence[Image.Image], spec: ImageSpec) -> Pixels:
    """Decoded images in any colour mode -> float32 (n, 3, size, size)."""
    out = np.empty((len(images), 3, spec.size, spec.size), np.float32)
    for row, image in zip(out, images, strict=True):
        row[:] = pixels_of(image, spec)
    return out


def pixels_of(image: Image.Image, spec: ImageSpec) -> Pixels:
    """One decoded image in any colour mode -> float32 (3, size, size), a view."""
    return _normalise(_pixels(image, spec), spec).transpose(2, 0, 1)


def _pixels(image: Image.Image, spec: ImageSpec) -> NDArray[np.uint8]:
    """One image as uint8 (size, size, 3). The order of resizing and conversion matters for palette and alpha images."""
    if spec.convert == "before":
        image = image.convert("RGB")
    image = image.resize(_target(image, spec), INTERPOLATION[spec.interpolation])
    image = _centre(image, spec)
    return np.asarray(image.convert("RGB"))


def _target(image: Image.Image, spec: ImageSpec) -> tuple[int, int]:
    """Width and height to resize to; the long side is cut, not rounded, by both reference libraries."""
    if spec.resize == "squash":
        return spec.size, spec.size
    short = min(image.size)
    width, height = (int(spec.size * side / short) if side != short else spec.size for side in image.size)
    return width, height


def _centre(image: Image.Image, spec: ImageSpec) -> Image.Image:
    """The central square; torchvision rounds half a pixel to even, transformers rounds it down."""
    spare = image.width - spec.size, image.height - spec.size
    if spec.arithmetic == "open_clip":
        left, top = (round(n / 2) for n in spare)
    else:
        left, top = (n // 2 for n in spare)
    return image.crop((left, top, left + spec.size, top + spec.size))


def _normalise(pixels: NDArray[np.uint8], spec: ImageSpec) -> NDArray[np.float32]:
    """uint8 -> float32 with the rounding of the reference: one divides in float32, the other multiplies in float64."""
    mean, std = (np.array(values, np.float32) for values in (spec.mean, spec.std))
    scaled: NDArray[np.float32]
    if spec.arithmetic == "open_clip":
        scaled = np.divide(pixels, np.float32(255), dtype=np.float32)
    else:
        scaled = np.multiply(pixels, 1 / 255, dtype=np.float64).astype(np.float32)
    scaled -= mean
    scaled /= std
    return scaled
