"""Tinted emoji: one drawing an object, painted in one of the colours.

The drawings come from the Noto Color Emoji font, which is needed only here, to render scenes again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from models.demo.words import COLOURS, OBJECTS

FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
FONT_SHA256 = "e5899ed38b8ed83e08bd3ac5de09791e9d19d288333a796de1d35ad17396f1ec"
"""The version that drew the published scenes; another version has other drawings."""

STRIKE = 109
"""The only size, in pixels, at which the font stores bitmaps."""

LUMA = np.array([0.299, 0.587, 0.114])
MARGIN = 2
"""How far the halo reaches beyond a sprite, in pixels."""


@dataclass(frozen=True)
class Sprite:
    """A painted object ready to paste: RGBA image, and a halo mask wider by MARGIN on every side."""

    image: Image.Image
    halo: Image.Image

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, halo not included."""
        return self.image.size

    def area(self) -> int:
        """Number of pixels that are at least half opaque."""
        return int((np.asarray(self.image)[..., 3] >= 128).sum())


def font_is_the_published_one() -> bool:
    """Whether the installed font is, byte for byte, the one that drew the published scenes."""
    return FONT.is_file() and hashlib.sha256(FONT.read_bytes()).hexdigest() == FONT_SHA256


@cache
def glyph(name: str) -> Image.Image:
    """The font's drawing of object `name` as RGBA, cropped to its ink. Raises OSError without the font."""
    font = ImageFont.truetype(str(FONT), STRIKE)
    canvas = Image.new("RGBA", (2 * STRIKE, 2 * STRIKE), (0, 0, 0, 0))
    character = chr(int(OBJECTS[name].glyph, 16))
    ImageDraw.Draw(canvas).text((STRIKE // 4, STRIKE // 4), character, font=font, embedded_color=True)
    return canvas.crop(canvas.getchannel("A").getbbox())


def ramp(colour: str) -> np.ndarray:
    """Shadow, middle and light tone of a colour, shape (3, 3), sRGB levels.

    Black needs a deep shadow and white a light one: otherwise both would read as gray.
    """
    middle = np.array(COLOURS[colour].rgb, dtype=np.float64)
    shadow = middle * {"black": 0.25, "white": 0.64}.get(colour, 0.41)
    light = middle + (255 - middle) * (0.22 if colour == "black" else 0.38)
    return np.stack([shadow, middle, light])


@cache
def painted(name: str, colour: str) -> Image.Image:
    """Object `name` in `colour` at the font's own size, RGBA.

    The drawing's own luminance picks the tone: its darkest parts get the shadow, its median the colour itself.
    """
    pixels = np.asarray(glyph(name), dtype=np.float64)
    luminance, alpha = pixels[..., :3] @ LUMA, pixels[..., 3]
    low, median, high = np.percentile(luminance[alpha > 128], [3, 50, 97])
    # A drawing that is all of one tone has no room between its percentiles: keep the knots apart.
    knots = [min(low, median - 13), median, max(high, median + 13)]
    tones = np.stack([np.interp(luminance, knots, channel) for channel in ramp(colour).T], axis=-1)
    return Image.fromarray(np.rint(np.dstack([tones, alpha])).astype(np.uint8))


@cache
def sprite(name: str, colour: str, side: int, mirrored: bool) -> Sprite:
    """Object `name` in `colour` with its longer side about `side` pixels, facing left or right."""
    image = painted(name, colour)
    # Tall and flat drawings cover less of their box than square ones do: make up for some of it.
    longest = side * (1.12 if min(image.size) < 0.6 * max(image.size) else 1.0)
    factor = longest / max(image.size)
    width, height = (max(4, round(length * factor)) for length in image.size)
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    halo = Image.new("L", (width + 2 * MARGIN, height + 2 * MARGIN))
    halo.paste(image.getchannel("A"), (MARGIN, MARGIN))
    halo = halo.filter(ImageFilter.GaussianBlur(1.1)).point([level * 3 // 4 for level in range(256)])
    return Sprite(image, halo)
