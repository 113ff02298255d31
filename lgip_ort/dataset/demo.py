"""The committed demo: 400 rendered scenes, five captions each, which the demo models have never seen."""

from __future__ import annotations

from lgip_ort.dataset import Dataset
from lgip_ort.dataset.coco import read_split
from lgip_ort.errors import UsageFault
from models import demo


def read(argument: str) -> Dataset:
    """The demo scenes, which lie in COCO's own layout. Raises UsageFault for an argument: there is only one demo."""
    if argument:
        raise UsageFault(f"demo takes no argument, {argument!r} found")
    return read_split(demo.SCENES, "demo", name="demo")
