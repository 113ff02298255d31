"""The runtime's pixels against the libraries' own preprocessing, bit for bit, by way of the manifest's ImageSpec."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from exporter.inputs import OriginalImages, original_images, pil_processor
from exporter.preprocess import image_spec, prove_pixels, write_preprocessor_config
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.image import read_image

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
HALF = [0.5, 0.5, 0.5]

SIZES = [
    *((1, 1), (1, 7), (7, 1), (2, 3), (3, 200), (200, 3), (31, 33), (64, 64), (65, 64), (64, 67), (101, 640)),
    *((223, 224), (225, 224), (227, 640), (640, 480), (480, 640), (333, 500), (1000, 999), (4000, 50), (50, 4000)),
]
MODES = ("RGB", "L", "LA", "RGBA", "P", "P with alpha", "1", "I;16", "I", "F", "CMYK", "YCbCr", "PA", "LAB", "HSV")

ORIGINALS = {
    "open_clip shortest bicubic": ("open_clip", {"resize_mode": "shortest", "mean": CLIP_MEAN, "std": CLIP_STD}),
    "open_clip squash bicubic": ("open_clip", {"resize_mode": "squash", "mean": HALF, "std": HALF}),
    "open_clip shortest bilinear": ("open_clip", {"resize_mode": "shortest", "interpolation": "bilinear"}),
    "open_clip squash bilinear": ("open_clip", {"resize_mode": "squash", "interpolation": "bilinear"}),
    "open_clip random": ("open_clip", {"interpolation": "random"}),
    "CLIPImageProcessor": ("clip", {"size": "shortest", "resample": 3}),
    "CLIPImageProcessor bilinear": ("clip", {"size": "shortest", "resample": 2}),
    "CLIPImageProcessor nearest": ("clip", {"size": "shortest", "resample": 0}),
    "SiglipImageProcessor": ("siglip", {"size": "square", "resample": 3, "image_mean": HALF, "image_std": HALF}),
    "SiglipImageProcessor bilinear": ("siglip", {"size": "square", "resample": 2, "do_convert_rgb": True}),
}
"""Name -> library or family, and configuration."""


def _spec(images):
    return image_spec(images.config, images.reference)


def make(name: str, folder, size: int = 64) -> OriginalImages:
    """The preprocessing `name` for images of `size` pixels, as the exporter loads it."""
    kind, settings = ORIGINALS[name]
    if kind == "open_clip":
        return open_clip_images(size=size, **settings)
    square = {"height": size, "width": size}
    if settings["size"] == "shortest":
        sizes = {"size": {"shortest_edge": size}, "crop_size": square}
    else:
        sizes = {"size": square}
    family = "CLIP" if kind == "clip" else "Siglip"
    pil_processor(family)(**settings | sizes).save_pretrained(folder)
    return transformers_images(folder, kind)


def open_clip_images(**config) -> OriginalImages:
    spec = SimpleNamespace(library="open_clip", key="x")
    return original_images(SimpleNamespace(spec=spec, preprocess=config))


def transformers_images(folder, kind="clip") -> OriginalImages:
    spec = SimpleNamespace(library="transformers", key="x", image_size=64)
    model = SimpleNamespace(config=SimpleNamespace(model_type=kind))
    return original_images(SimpleNamespace(spec=spec, model=model, folder=folder))


def picture(width: int, height: int, mode: str) -> Image.Image:
    """Random pixels, alpha included, over the whole range of a mode."""
    rng = np.random.default_rng([width, height])
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 2**16, (height, width), dtype=np.uint16))
    if mode == "I":
        return Image.fromarray(rng.integers(-300, 700, (height, width), dtype=np.int32))
    if mode == "F":
        return Image.fromarray(rng.uniform(-20, 300, (height, width)).astype(np.float32))
    if mode in ("LAB", "HSV"):
        return Image.frombytes(mode, (width, height), rng.bytes(3 * width * height))
    image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8), "RGB")
    if mode == "P with alpha":
        image = image.convert("P")
        image.info["transparency"] = 3
        return image
    if mode == "PA":
        return image.convert("P").convert("PA")
    image = image.convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(rng.integers(0, 256, (height, width), dtype=np.uint8)))
    return image


@pytest.mark.parametrize("name", ORIGINALS)
def test_sizes_are_bit_for_bit_the_original_s(name, tmp_path):
    images = make(name, tmp_path)
    assert prove_pixels(images, _spec(images), [picture(*size, "RGB") for size in SIZES]) == 0


@pytest.mark.parametrize("name", ORIGINALS)
def test_modes_are_bit_for_bit_the_original_s(name, tmp_path):
    images = make(name, tmp_path)
    some = [(1, 1), (7, 1), (101, 640), (223, 224), (333, 250)]
    assert prove_pixels(images, _spec(images), [picture(*size, mode) for mode in MODES for size in some]) == 0


@pytest.mark.parametrize("name", [name for name in ORIGINALS if "bilinear" not in name and "nearest" not in name])
def test_photographs_are_bit_for_bit_the_original_s(name, shared, tmp_path):
    photographs = sorted((shared / "coco").glob("*2017/*.jpg"))
    assert len(photographs) == 54
    images = make(name, tmp_path, size=224)
    assert prove_pixels(images, _spec(images), [read_image(path) for path in photographs]) == 0


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_original_is_the_library_called_as_its_users_do(name, tmp_path):
    """`OriginalImages.pixels` tells transformers where the channels are; otherwise it adds nothing."""
    images = make(name, tmp_path)
    for size in ((640, 480), (333, 500), (20, 31)):
        image = picture(*size, "RGB")
        if ORIGINALS[name][0] == "open_clip":
            from open_clip.transform import image_transform_v2

            plain = image_transform_v2(images.config, is_train=False)(image).numpy()
        else:
            plain = images.config(image, return_tensors="np")["pixel_values"][0]
        assert np.array_equal(images.pixels([image])[0], plain)


def test_what_a_specification_says(tmp_path):
    made = {name: _spec(make(name, tmp_path)) for name in ORIGINALS}
    assert {(s.size, s.convert, s.arithmetic) for n, s in made.items() if "open_clip" in n} == {
        (64, "after", "open_clip")
    }
    assert {(s.size, s.convert, s.arithmetic) for n, s in made.items() if "open_clip" not in n} == {
        (64, "before", "transformers")
    }
    said = {name: (s.resize, s.interpolation, s.mean[0]) for name, s in made.items()}
    assert said["open_clip shortest bicubic"] == ("shortest", "bicubic", CLIP_MEAN[0])
    assert said["open_clip squash bicubic"] == ("squash", "bicubic", 0.5)
    assert said["open_clip random"] == ("shortest", "bicubic", CLIP_MEAN[0]), "drawn in training only"
    assert said["CLIPImageProcessor nearest"] == ("shortest", "nearest", CLIP_MEAN[0])
    assert said["SiglipImageProcessor bilinear"][:2] == ("squash", "bilinear")
    assert made["CLIPImageProcessor"].reference == f"transformers.{pil_processor('CLIP').__name__}"


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_file_that_is_written_gives_the_same_pixels(name, tmp_path):
    """`preprocessor_config.json` in transformers' hands, where colours are converted first anyway."""
    spec = _spec(make(name, tmp_path))
    (tmp_path / "written").mkdir()
    write_preprocessor_config(spec, tmp_path / "written/preprocessor_config.json")
    kind = "clip" if spec.resize == "shortest" else "siglip"
    theirs = transformers_images(tmp_path / "written", kind)
    read = _spec(theirs)
    assert dataclasses.replace(read, convert=spec.convert, arithmetic=spec.arithmetic, reference="") == (
        dataclasses.replace(spec, reference="")
    )


WRONG = {
    "resize": "squash",
    "interpolation": "bilinear",
    "convert": "before",
    "mean": HALF,
    "std": [0.26862954, 0.26130258, 0.27577],
    "arithmetic": "transformers",
}


@pytest.mark.parametrize("field", WRONG)
def test_every_field_of_a_specification_matters(field, tmp_path):
    images = make("open_clip shortest bicubic", tmp_path)
    wrong = dataclasses.replace(_spec(images), **{field: WRONG[field]})
    # A high one in two modes, and one with 1.5 rows to cut off at the top.
    probes = [picture(101, 640, "RGB"), picture(101, 640, "RGBA"), picture(64, 67, "RGB")]
    with pytest.raises(RunFault, match=r"\d+ x \d+ RGBA? image, pixels differ from open_clip.* by \S+, 0 expected"):
        prove_pixels(images, wrong, probes)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"resize_mode": "longest"}, "resize mode 'longest' found, a square, 'shortest' or 'squash' expected"),
        ({"size": (224, 336)}, "size 224 x 336"),
        ({"resize_mode": "stretch"}, "open_clip knows no preprocessing .*stretch"),
        ({"interpolation": "nearest"}, "open_clip knows no preprocessing .*nearest"),
        ({"interpolation": "lanczos"}, "open_clip knows no preprocessing .*lanczos"),
    ],
)
def test_unknown_preprocessing_of_open_clip_is_refused(config, message):
    with pytest.raises(UsageFault, match=message):
        _spec(open_clip_images(**config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resample": 1}, "unknown resampling"),
        ({"size": {"shortest_edge": 72}}, "unknown resizing: size .*72.* crop .*64"),
        ({"size": {"height": 64, "width": 96}}, "unknown resizing"),
        ({"do_center_crop": False}, "unknown resizing"),
        ({"do_resize": False}, "resize, rescale by 1/255 and normalise expected"),
        ({"do_normalize": False}, "resize, rescale by 1/255 and normalise expected"),
        ({"rescale_factor": 0.5}, "resize, rescale by 1/255 and normalise expected"),
        ({"image_processor_type": "SiglipImageProcessor"}, "SiglipImageProcessor found, CLIPImageProcessor expected"),
        ({"image_processor_type": "Siglip2ImageProcessorFast"}, "Siglip2ImageProcessorFast found"),
    ],
)
def test_unknown_preprocessing_of_transformers_is_refused(change, message, tmp_path):
    make("CLIPImageProcessor", tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageFault, match=message):
        _spec(transformers_images(tmp_path))


@pytest.mark.parametrize("name", ["CLIPImageProcessorFast", "CLIPFeatureExtractor", None])
def test_other_names_of_the_same_processor(name, tmp_path):
    """The one that resizes tensors is configured alike; the one that resizes with Pillow is the reference."""
    make("CLIPImageProcessor", tmp_path)
    path = tmp_path / "preprocessor_config.json"
    config = json.loads(path.read_text())
    del config["image_processor_type"]
    path.write_text(json.dumps(config | ({"image_processor_type": name} if name else {})))
    assert _spec(transformers_images(tmp_path)).reference == f"transformers.{pil_processor('CLIP').__name__}"


def test_a_folder_without_a_processor_is_refused(tmp_path):
    with pytest.raises(UsageFault, match=r"preprocessor_config\.json"):
        transformers_images(tmp_path)


def test_old_configurations_say_less(tmp_path):
    """What OpenAI's checkpoints have had since 2021."""
    config = {
        "crop_size": 64,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "resample": 3,
        "size": 64,
    }
    config |= {"feature_extractor_type": "CLIPFeatureExtractor", "image_mean": CLIP_MEAN, "image_std": CLIP_STD}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    images = transformers_images(tmp_path)
    spec = _spec(images)
    assert (spec.size, spec.resize, spec.interpolation) == (64, "shortest", "bicubic")
    assert prove_pixels(images, spec, [picture(101, 99, mode) for mode in ("RGB", "RGBA", "L")]) == 0
