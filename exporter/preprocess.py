"""Preprocessing as data: what the original is configured to do, in the manifest's words and in transformers' format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL.Image import Image

from exporter.inputs import OriginalImages
from lgip_ort.bundle import ImageSpec
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.image import preprocess

RESAMPLE: dict[int, Literal["bicubic", "bilinear", "nearest"]] = {0: "nearest", 2: "bilinear", 3: "bicubic"}


def image_spec(config: Any, reference: str) -> ImageSpec:
    """The ImageSpec of an original's preprocessing: `config` and `reference` as OriginalImages has them.

    Raises UsageFault for a configuration that the runtime can't repeat.
    """
    if reference.startswith("open_clip"):
        return _from_open_clip(config, reference)
    return _from_transformers(config, reference)


def write_preprocessor_config(spec: ImageSpec, path: Path) -> None:
    """`preprocessor_config.json` as transformers reads it."""
    square = {"height": spec.size, "width": spec.size}
    crop: dict[str, Any] = {"do_center_crop": True, "crop_size": square} if spec.resize == "shortest" else {}
    config = {
        "image_processor_type": "CLIPImageProcessor" if spec.resize == "shortest" else "SiglipImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": spec.size} if spec.resize == "shortest" else square,
        "resample": next(code for code, name in RESAMPLE.items() if name == spec.interpolation),
        **crop,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": spec.mean,
        "image_std": spec.std,
    }
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def prove_pixels(images: OriginalImages, spec: ImageSpec, probes: Iterable[Image]) -> float:
    """Largest difference between the runtime's pixels and the original's over `probes`, which is 0.

    Raises RunFault where it is not: the image is named by its size and mode.
    """
    for image in probes:
        difference = np.abs(preprocess([image], spec) - images.pixels([image]))
        if not difference.max() == 0:
            raise RunFault(
                f"preprocessing: {image.width} x {image.height} {image.mode} image, "
                f"pixels differ from {images.reference} by {difference.max():.3g}, 0 expected"
            )
    return 0.0


def _from_open_clip(config: Any, reference: str) -> ImageSpec:
    height, width = (config.size, config.size) if isinstance(config.size, int) else config.size
    # In training it is drawn, in evaluation open_clip takes this one.
    name = "bicubic" if config.interpolation == "random" else config.interpolation
    interpolation = next((known for known in RESAMPLE.values() if known == name), None)
    if height != width or config.resize_mode not in ("shortest", "squash"):
        raise UsageFault(
            f"{reference}: size {height} x {width}, resize mode {config.resize_mode!r} found, "
            "a square, 'shortest' or 'squash' expected"
        )
    if interpolation is None:
        raise UsageFault(f"{reference}: interpolation {name!r} found, bicubic or bilinear expected")
    mean, std = ([float(x) for x in _triple(values)] for values in (config.mean, config.std))
    return ImageSpec(
        size=int(height),
        resize=config.resize_mode,
        interpolation=interpolation,
        convert="after",
        mean=mean,
        std=std,
        arithmetic="open_clip",
        reference=reference,
    )


def _triple(values: float | Sequence[float]) -> Sequence[float]:
    return values if isinstance(values, Sequence) else [values] * 3


def _from_transformers(processor: Any, reference: str) -> ImageSpec:
    size = {name: value for name, value in dict(processor.size).items() if value is not None}
    crop = dict(processor.crop_size) if getattr(processor, "do_center_crop", False) else None
    resize: Literal["shortest", "squash"]
    if set(size) == {"shortest_edge"} and crop and {crop["height"], crop["width"]} == {size["shortest_edge"]}:
        resize, side = "shortest", size["shortest_edge"]
    elif set(size) == {"height", "width"} and size["height"] == size["width"] and crop is None:
        resize, side = "squash", size["height"]
    else:
        raise UsageFault(f"{reference}: unknown resizing: size {size}, crop {crop}")
    steps = processor.do_resize, processor.do_rescale, processor.do_normalize
    if steps != (True, True, True) or not np.isclose(processor.rescale_factor, 1 / 255):
        raise UsageFault(f"{reference}: resize, rescale by 1/255 and normalise expected, {steps} found")
    if int(processor.resample) not in RESAMPLE:
        raise UsageFault(f"{reference}: unknown resampling {processor.resample!r}")
    return ImageSpec(
        size=int(side),
        resize=resize,
        interpolation=RESAMPLE[int(processor.resample)],
        convert="before",
        mean=[float(x) for x in processor.image_mean],
        std=[float(x) for x in processor.image_std],
        arithmetic="transformers",
        reference=reference,
    )
