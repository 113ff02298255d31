from __future__ import annotations

import gc
import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, features

from lgip_ort.bundle import ImageSpec
from lgip_ort.image import ImageFault, preprocess, read_image

HALF = [0.5, 0.5, 0.5]


def spec(**changes):
    fields = {
        "size": 10,
        "resize": "squash",
        "interpolation": "bicubic",
        "convert": "before",
        "mean": HALF,
        "std": HALF,
        "arithmetic": "transformers",
        "reference": "",
    }
    return ImageSpec(**fields | changes)


def noise(width, height, mode="RGB"):
    """An image of random pixels, alpha included."""
    rng = np.random.default_rng([width, height])
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 2**16, (height, width), dtype=np.uint16))
    image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(rng.integers(0, 256, (height, width), dtype=np.uint8)))
    return image


def png(width, height):
    """The file of a black and white picture whose pixels are not there: only its size can be read."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA"])
def test_mode_is_kept(tmp_path, mode):
    noise(7, 5, mode).save(tmp_path / "x.png")
    image = read_image(tmp_path / "x.png")
    assert (image.mode, image.size) == (mode, (7, 5))


def test_orientation_is_not_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    noise(12, 8).save(tmp_path / "x.jpg", exif=exif)
    assert read_image(tmp_path / "x.jpg").size == (12, 8)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "UnidentifiedImageError"),
        (b"<html>not found</html>", "UnidentifiedImageError"),
        (png(12_000, 8_000), "12000 x 8000 pixels, more than 89,478,485"),
        (png(100_000, 100_000), "DecompressionBombError"),
        (png(3, 601), "3 x 601 pixels, one side more than 200 times the other"),
        (png(601, 3), "601 x 3 pixels, one side more than 200 times the other"),
        (png(3, 600), "OSError"),  # the size is allowed, the pixels are missing
        (None, "FileNotFoundError"),
    ],
)
def test_file_that_is_refused(tmp_path, content, reason):
    path = tmp_path / "x.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ImageFault, match=reason) as fault:
        read_image(path)
    assert str(tmp_path) not in str(fault.value)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "gif", "tiff", "bmp", "avif"])
def test_file_that_is_cut_short(tmp_path, kind):
    if not features.check(kind if kind in ("webp", "avif") else "jpg"):
        pytest.skip(f"this Pillow reads no {kind}")
    buffer = io.BytesIO()
    noise(64, 48).save(buffer, kind)
    (tmp_path / "x").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    with pytest.raises(ImageFault):
        read_image(tmp_path / "x")


def test_folder_named_like_an_image(tmp_path):
    (tmp_path / "x.png").mkdir()
    with pytest.raises(ImageFault, match=r"x\.png"):
        read_image(tmp_path / "x.png")


@pytest.mark.parametrize("kind", ["gif", "tiff", "webp"])
def test_first_frame_and_no_open_file(tmp_path, kind):
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "x", kind, save_all=True, append_images=frames[1:])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        image = read_image(tmp_path / "x")
        red, _, blue = np.asarray(image.convert("RGB"))[0, 0]
        del image
        gc.collect()
    assert red > 200 > 50 > blue
    assert told == []


@pytest.mark.parametrize(
    ("resize", "seen"),
    [("squash", {"red", "green"}), ("shortest", {"green"})],
)
def test_a_wide_image_tells_cropping_from_squashing(resize, seen):
    image = Image.new("RGB", (640, 480), "red")
    image.paste("green", (80, 0, 560, 480))
    pixels = preprocess([image], spec(size=48, resize=resize, interpolation="nearest"))[0]
    names = {(255, 0, 0): "red", (0, 128, 0): "green"}
    colours = {tuple(np.rint((p + 1) * 127.5).astype(int)) for p in pixels.reshape(3, -1).T}
    assert {names[colour] for colour in colours} == seen


@pytest.mark.parametrize(
    ("arithmetic", "height", "first"),
    [
        ("open_clip", 11, 0),  # 0.5 to even
        ("open_clip", 13, 2),  # 1.5 to even
        ("open_clip", 15, 2),  # 2.5 to even
        ("transformers", 11, 0),
        ("transformers", 13, 1),
        ("transformers", 15, 2),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_crop_of_an_odd_rest(arithmetic, height, first, turned):
    rows = np.repeat(np.arange(height, dtype=np.uint8)[:, None], 10, axis=1)  # every row holds its number
    image = Image.fromarray(rows.T if turned else rows)
    given = spec(resize="shortest", arithmetic=arithmetic, mean=[0, 0, 0], std=[1, 1, 1])
    numbers = np.rint(preprocess([image], given)[0, 0] * 255)
    assert (numbers.T if turned else numbers)[:, 0].tolist() == list(range(first, first + 10))


def test_fine_checks_become_grey():
    """Without antialiasing they stay black and white."""
    checks = (np.indices((1000, 1000)).sum(0) % 2 * 255).astype(np.uint8)
    pixels = preprocess([Image.fromarray(checks)], spec(size=224, mean=[0, 0, 0], std=[1, 1, 1]))
    assert np.abs(pixels * 255 - 127.5).max() <= 1


@pytest.mark.parametrize("arithmetic", ["open_clip", "transformers"])
def test_normalisation(arithmetic):
    image = Image.new("RGB", (4, 4), (0, 51, 255))
    pixels = preprocess([image], spec(size=4, arithmetic=arithmetic, mean=[0.5, 0.0, 0.2], std=[0.5, 0.1, 0.4]))
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels[0, :, 0, 0], [-1, 2, 2], rtol=1e-6)


@pytest.mark.parametrize("mode", ["P", "RGBA"])
def test_conversion_before_or_after_resizing_matters(mode):
    image = noise(40, 40, mode)
    before, after = (preprocess([image], spec(convert=when)) for when in ("before", "after"))
    assert np.abs(before - after).max() > 0.05


def test_images_of_all_sizes_and_modes_in_one_batch():
    images = [noise(33, 50, mode) for mode in ("1", "L", "P", "RGBA", "LA", "CMYK", "I;16")] + [noise(1, 1)]
    pixels = preprocess(images, spec())
    assert pixels.shape == (8, 3, 10, 10)
    assert all((preprocess([image], spec())[0] == row).all() for image, row in zip(images, pixels, strict=True))


def test_palette_with_alpha_needs_no_warning(tmp_path):
    image = noise(9, 9, "P")
    image.save(tmp_path / "x.png", transparency=bytes(range(256)))
    read = read_image(tmp_path / "x.png")
    assert read.mode == "P"
    assert (np.asarray(read.convert("RGB")) == np.asarray(image.convert("RGB"))).all()
