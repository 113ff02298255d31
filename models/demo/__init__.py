"""Two small trained dual encoders and their held-out scenes; importing this needs no third-party library."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent
SCENES = ROOT / "scenes"
SPLIT = "demo"
IMAGES = SCENES / SPLIT
CAPTIONS = SCENES / "annotations" / f"captions_{SPLIT}.json"
INSTANCES = SCENES / "annotations" / f"instances_{SPLIT}.json"

SIZE = 64
"""Side of every scene, in pixels."""

HELD_OUT = 400
"""Number of published scenes; their image ids are 1 to 400."""

TRAIN_SEED = 11
DEV_SEED = 12
PUBLISHED_SEED = 20_260
"""Three disjoint streams. Nothing may be tuned on the published one: choose on the development scenes."""
