"""How far a metric may move: the table of margins, the project's own or a file that stands in for parts of it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from lgip_ort.errors import UsageFault, did_you_mean

LEAST_IMAGES = "min_images"
RECALL = "recall"


@dataclass(frozen=True)
class Margin:
    """The larger of `absolute`, in the metric's unit, and `relative` times the reference's value."""

    absolute: float
    relative: float

    def at(self, reference: float) -> float:
        """The margin beside this value of the reference."""
        return max(self.absolute, self.relative * abs(reference))


@dataclass(frozen=True)
class Margins:
    """`min_images`: fewer settle nothing. `by_metric`: E_inv, E_sens, PR, matched_gap, and `recall` for every R@k."""

    min_images: int
    by_metric: Mapping[str, Margin]

    def of(self, metric: str) -> Margin:
        """The margin of a metric of the profile."""
        return self.by_metric[RECALL if metric.startswith("R@") else metric]

    def table(self) -> dict[str, Any]:
        """As the file has it."""
        return {LEAST_IMAGES: self.min_images, **{name: asdict(m) for name, m in self.by_metric.items()}}


def read_margins(path: Path | None = None) -> Margins:
    """The margins of `margins.toml`, where `path` names a file with its entries in their place.

    Raises UsageFault where the file can't be read, names what is no metric, or holds what is no number from zero up.
    """
    own = tomllib.loads(files(__package__).joinpath("margins.toml").read_text(encoding="utf-8"))
    for name, entry in (_read(path) if path is not None else {}).items():
        if name not in own:
            raise UsageFault(f"{path}: no metric {name!r}{did_you_mean(name, own)}")
        if name == LEAST_IMAGES:
            if type(entry) is not int or entry < 2:
                raise UsageFault(f"{path}: {LEAST_IMAGES} is {entry!r}, a whole number from 2 up expected")
            own[name] = entry
            continue
        if not isinstance(entry, dict):
            raise UsageFault(f"{path}: {name} is {entry!r}, a table of absolute and relative expected")
        for key, value in entry.items():
            if key not in own[name]:
                raise UsageFault(f"{path}: {name}.{key} is unknown{did_you_mean(key, own[name])}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise UsageFault(f"{path}: {name}.{key} is {value!r}, a number from 0 up expected")
        own[name] |= entry
    least = own.pop(LEAST_IMAGES)
    return Margins(least, {name: Margin(**entry) for name, entry in own.items()})


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageFault(f"{path}: not a table of margins: {error}") from error
