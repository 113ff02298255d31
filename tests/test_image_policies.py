"""Every kind of image file ends as docs/images.md says: refused with a reason, or with the original's pixels."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError, features

from lgip_ort.bundle import ImageSpec
from lgip_ort.image import MAX_ASPECT, MAX_PIXELS, ImageFault, preprocess, read_image

DOCUMENT = Path(__file__).resolve().parents[1] / "docs/images.md"

REFUSED = {
    "not an image": r"UnidentifiedImageError: cannot identify",
    "damaged": r"(OSError|ValueError|SyntaxError|EOFError|struct\.error|error): ",
    "too large": r"DecompressionBombError: |pixels, more than 89,478,485",
    "too long": r"one side more than 200 times the other",
    "drawing": r"EPS: a drawing",
    "grey of more than 8 bits": r"mode (I;16|I|F): greyscale of more than 8 bits",
}
"""Kind -> the reason that is given."""

TAKEN = [
    "colour",
    "colour of more than 8 bits",
    "grey",
    "black and white",
    "palette",
    "alpha",
    "transparent colour",
    "CMYK",
    "other colours",
    "colour profile",
    "turned by EXIF",
    "several frames",
    "tiny",
]

IN_SHARED = {
    "not an image": 5,
    "damaged": 5,
    "too large": 1,
    "grey of more than 8 bits": 1,
    "colour": 6,
    "colour of more than 8 bits": 1,
    "grey": 3,
    "black and white": 1,
    "palette": 4,
    "alpha": 2,
    "transparent colour": 3,
    "CMYK": 1,
    "colour profile": 5,
    "turned by EXIF": 2,
    "several frames": 2,
    "tiny": 2,
}


def kinds(path: Path) -> set[str]:
    """What a file is, as its header and its pixels tell. Most files are of more than one kind."""
    try:
        image = Image.open(io.BytesIO(path.read_bytes()))
    except UnidentifiedImageError:
        return {"not an image"}
    except Image.DecompressionBombError:
        return {"too large"}
    except (OSError, ValueError):
        return {"damaged"}
    if image.format == "EPS":
        return {"drawing"}
    short, long = sorted(image.size)
    if short * long > MAX_PIXELS:
        return {"too large"}
    if long > MAX_ASPECT * short:
        return {"too long"}
    raw = getattr(image, "tile", [])
    deep = any("16" in str(tile) for tile in raw)
    found = {"several frames"} if getattr(image, "n_frames", 1) > 1 else set()
    try:
        image.load()
    except OSError:
        return {"damaged"}
    modes = {"1": "black and white", "L": "grey", "P": "palette", "RGB": "colour", "CMYK": "CMYK"}
    if image.mode in ("I;16", "I", "F"):
        return {"grey of more than 8 bits"}
    if image.mode in ("RGBA", "LA", "PA"):
        found.add("alpha")
    elif image.mode == "RGB" and deep:
        found.add("colour of more than 8 bits")
    else:
        found.add(modes.get(image.mode, "other colours"))
    info = {
        "transparent colour": "transparency" in image.info,
        "colour profile": "icc_profile" in image.info or "gamma" in image.info,
        "tiny": max(image.size) <= 2,
    }
    try:
        info["turned by EXIF"] = image.getexif().get(0x0112, 1) != 1
    except Exception:  # a block that Pillow can't read turns nothing
        info["turned by EXIF"] = False
    return found | {kind for kind, there in info.items() if there}


def noise(width=33, height=47, mode="RGB") -> Image.Image:
    rng = np.random.default_rng([width, height])
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


def deep_colour() -> bytes:
    """A PNG with 16 bits in each of three channels, which Pillow reads and does not write."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = np.random.default_rng(0).integers(0, 2**16, (47, 33 * 3)).astype(">u2")
    data = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", 33, 47, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def saved(image: Image.Image, kind: str = "png", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def with_alpha(mode: str) -> Image.Image:
    image = noise(mode=mode[:-1])
    image.putalpha(noise(mode="L").transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    return image


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(noise(), "jpeg", exif=exif)


def profiled() -> bytes:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    return saved(noise(), "jpeg", icc_profile=profile.tobytes())


def numbers(dtype, largest) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).uniform(0, largest, (47, 33)).astype(dtype))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\n0 0 moveto 40 40 lineto stroke\n%%EOF\n"

EXAMPLES = {
    "not an image": [lambda: b"", lambda: b"<html>404</html>", lambda: b"\0" * 100],
    "damaged": [
        lambda: saved(noise())[:300],
        lambda: saved(noise(), "jpeg")[:400],
        lambda: saved(noise(), "gif")[:1200],
    ],
    "too large": [lambda: saved(Image.new("1", (12_000, 8_000))), lambda: saved(Image.new("1", (30_000, 20_000)))],
    "too long": [lambda: saved(noise(3, 601)), lambda: saved(noise(601, 3))],
    "drawing": [lambda: EPS],
    "grey of more than 8 bits": [
        lambda: saved(numbers(np.uint16, 65_000)),
        lambda: saved(numbers(np.int32, 70_000), "tiff"),
        lambda: saved(numbers(np.float32, 1), "tiff"),
    ],
    "colour": [partial(saved, noise(), kind) for kind in ("png", "jpeg", "bmp", "tiff", "ppm")],
    "colour of more than 8 bits": [deep_colour],
    "grey": [lambda: saved(noise(mode="L")), lambda: saved(noise(mode="L"), "jpeg")],
    "black and white": [lambda: saved(noise(mode="1"))],
    "palette": [lambda: saved(noise(mode="P")), lambda: saved(noise(), "gif")],
    "alpha": [
        lambda: saved(with_alpha("RGBA")),
        lambda: saved(with_alpha("LA")),
        lambda: saved(with_alpha("RGBA"), "tiff"),
    ],
    "transparent colour": [
        lambda: saved(noise(mode="P"), transparency=3),
        lambda: saved(noise(mode="P"), transparency=bytes(range(256))),
        lambda: saved(noise(mode="L"), transparency=7),
        lambda: saved(noise(), transparency=(1, 2, 3)),
    ],
    "CMYK": [lambda: saved(noise(mode="CMYK"), "jpeg"), lambda: saved(noise(mode="CMYK"), "tiff")],
    "other colours": [
        lambda: saved(noise(mode="YCbCr"), "tiff"),
        lambda: saved(noise().convert("RGB").convert("LAB"), "tiff"),
    ],
    "colour profile": [profiled],
    "turned by EXIF": [turned],
    "several frames": [
        partial(saved, noise(), kind, save_all=True, append_images=[noise(33, 47, "L")]) for kind in ("gif", "tiff")
    ],
    "tiny": [lambda: saved(noise(1, 1)), lambda: saved(noise(2, 1), "gif"), lambda: saved(noise(1, 2, "1"))],
}


def originals() -> dict[str, tuple[object, ImageSpec]]:
    """Both libraries' preprocessing, and the runtime's specification of it."""
    pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
    from open_clip.transform import image_transform

    from exporter.inputs import pil_processor

    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    clip = image_transform(32, is_train=False, mean=tuple(mean), std=tuple(std))
    siglip = pil_processor("Siglip")(size={"height": 32, "width": 32}, do_convert_rgb=True)

    def by_siglip(image):
        # It counts channels to find out where they are, and one pixel has too few of everything.
        return siglip(image.convert("RGB"), return_tensors="np", input_data_format="channels_last")["pixel_values"][0]

    return {
        "open_clip": (
            lambda image: clip(image).numpy(),
            ImageSpec(32, "shortest", "bicubic", "after", mean, std, "open_clip", ""),
        ),
        "transformers": (
            by_siglip,
            ImageSpec(32, "squash", "bicubic", "before", [0.5] * 3, [0.5] * 3, "transformers", ""),
        ),
    }


def check(path: Path, found: set[str], libraries: dict) -> None:
    """The outcome that the kinds of a file have in the document."""
    assert found, path
    if refused := found & REFUSED.keys():
        with pytest.raises(ImageFault, match=REFUSED[refused.pop()]) as fault:
            read_image(path)
        assert str(path.parent) not in str(fault.value)
        return
    ours = read_image(path)
    for name, (original, spec) in libraries.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = original(Image.open(io.BytesIO(path.read_bytes())))  # as users of the library do it
        assert np.array_equal(preprocess([ours], spec)[0], expected), (path.name, name, found)


def test_the_document_says_the_same():
    rows = [row.split(" | ") for row in DOCUMENT.read_text().splitlines() if row.startswith("| ")][1:]
    said = {row[0].removeprefix("| "): row[1] for row in rows}
    assert said == dict.fromkeys(REFUSED, "refused") | dict.fromkeys(TAKEN, "as the original")
    assert f"{MAX_PIXELS:,} pixels" in DOCUMENT.read_text() and f"more than {MAX_ASPECT} times" in DOCUMENT.read_text()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_made_by_hand(kind, tmp_path):
    libraries = originals()
    for number, example in enumerate(EXAMPLES[kind]):
        path = tmp_path / f"{number}.jpg"  # a name is no evidence
        path.write_bytes(example())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            assert kind in kinds(path), number
            check(path, kinds(path), libraries)


def test_there_is_an_example_of_every_kind():
    assert sorted(EXAMPLES) == sorted([*REFUSED, *TAKEN])


def test_every_odd_file_of_other_people_s_tests(shared):
    if not features.check("webp"):
        pytest.skip("this Pillow reads no webp, and one of the files is one")
    libraries = originals()
    files = sorted(path for path in (shared / "weird_images").rglob("*") if path.is_file())
    counted: Counter[str] = Counter()
    for path in files:
        found = kinds(path)
        check(path, found, libraries)
        counted.update(found)
    assert len(files) == 30
    assert counted == IN_SHARED
