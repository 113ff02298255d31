"""The model zoo: every model that can be exported, as data.

Nine models of the LGIP benchmark (arXiv 2511.13494) and the two demo models. To add one, add an entry to `zoo.toml`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lgip_ort.errors import UsageFault, did_you_mean

DEMO = Path(__file__).parent / "demo"
ARTIFACTS = Path("artifacts")


@dataclass(frozen=True)
class ModelSpec:
    """Where a model's two towers come from.

    `name` is an open_clip architecture or a hub id; `tag` an open_clip weights tag; `config` the transformers
    configuration of the true architecture, needed only where weights are drawn at random instead of loaded.
    """

    key: str
    library: Literal["open_clip", "transformers"]
    name: str
    tag: str | None
    image_size: int
    context_length: int
    weights: Literal["hub", "demo"] = "hub"
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path | None:
        """The committed weights of a demo model (a transformers folder), None for every other model."""
        return DEMO / self.key / "weights" if self.weights == "demo" else None

    @property
    def committed_bundle(self) -> Path | None:
        """The committed bundle of a demo model, None for every other model."""
        return DEMO / self.key / "bundle" if self.weights == "demo" else None


def load() -> dict[str, ModelSpec]:
    """All models by key, in the order of `zoo.toml`."""
    entries = tomllib.loads(Path(__file__).with_name("zoo.toml").read_text(encoding="utf-8"))
    return {key: ModelSpec(key=key, **{"tag": None, **entry}) for key, entry in entries.items()}


def get(key: str) -> ModelSpec:
    """The model `key`. Raises UsageFault, with the nearest known name, where there is none."""
    models = load()
    if key not in models:
        raise UsageFault(f"unknown model {key!r}{did_you_mean(key, models)}")
    return models[key]


def find_bundle(key: str, artifacts: Path = ARTIFACTS) -> Path:
    """The bundle of model `key`: the one exported to `artifacts`, else the committed one of a demo model.

    Raises UsageFault where neither exists, saying how to make one.
    """
    spec = get(key)
    exported = artifacts / key
    if (exported / "manifest.json").is_file():
        return exported
    if spec.committed_bundle is not None and spec.committed_bundle.is_dir():
        return spec.committed_bundle
    raise UsageFault(f"no bundle of {key} in {exported}; make one: python exporter/export.py --model {key}")
