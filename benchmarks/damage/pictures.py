"""The scenes of the demo as a camera would have them: three times as large, with grain, wider than high.

The scenes themselves are as large as the demo models' input, so that nothing would be resized and no damage to resizing
could show.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

from lgip_ort.dataset import open_dataset

TIMES, SIDE, GRAIN = 3, 16, 24.0


def write_pictures(folder: Path) -> str:
    """Write the pictures and their captions into `folder`; what `--data` is given for them is returned."""
    demo = open_dataset("demo")
    for number, path in enumerate(demo.images["path"]):
        rng = np.random.default_rng(number)
        scene = np.asarray(Image.open(demo.root / path).convert("RGB"), np.float32)
        large = scene.repeat(TIMES, axis=0).repeat(TIMES, axis=1)
        wide = np.pad(large, ((0, 0), (SIDE, SIDE), (0, 0)), mode="edge")
        grain = rng.normal(0, GRAIN, wide.shape)
        Image.fromarray((wide + grain).clip(0, 255).astype(np.uint8)).save(folder / f"{Path(path).stem}.png")
    images = demo.images.select("image_id", image=pl.col("path").str.extract(r"([^/]+)\.[a-z]+$") + ".png")
    captions = demo.captions.join(images, on="image_id", maintain_order="left").select("image", caption="text")
    captions.write_parquet(folder / "captions.parquet")
    return f"frame:{folder / 'captions.parquet'}"
