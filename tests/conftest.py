"""What more than one test file uses. The helper modules beside it (`toy`, `made`) make what is tested on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

# The same examples in every run, however slow the machine, and no folder of them.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.load_profile("same")


class Outcome(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)


@pytest.fixture
def bench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """Runs bench.py with arguments, in this process and in tmp_path, which is its `folder`."""
    import bench

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bench.py", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            bench.main()
        return Outcome(int(end.value.code or 0), *capsys.readouterr())

    call.folder = tmp_path  # type: ignore[attr-defined]
    return call


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy bundle that nothing may write to."""
    from toy import make_bundle

    return make_bundle(tmp_path_factory.mktemp("bundles") / "toy")


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformers CLIP checkpoint that nothing may write to."""
    from checkpoints import clip_folder

    return clip_folder(tmp_path_factory.mktemp("clip") / "weights")


@pytest.fixture(scope="session")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformers SigLIP checkpoint that nothing may write to."""
    from checkpoints import siglip_folder

    return siglip_folder(tmp_path_factory.mktemp("siglip") / "weights")


@pytest.fixture(scope="session")
def open_clip_toy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The specification of a small open_clip architecture."""
    from checkpoints import open_clip_spec

    return open_clip_spec(tmp_path_factory.mktemp("open_clip"))


@pytest.fixture(scope="session")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images with two captions each in COCO's layout, split `val`, that nothing may write to."""
    from made import make_coco

    return make_coco(tmp_path_factory.mktemp("coco"))


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without charts: they take most of a small run's time, and have tests of their own."""
    monkeypatch.setattr("lgip_ort.report.charts.svg", lambda chart: "")


@pytest.fixture
def score(bench: Callable[..., Outcome], toy: Path, coco: Path) -> Callable[..., Outcome]:
    """Scores the toy on the small data set, with other options."""
    return lambda *options, bundle=toy, data=coco: bench("--bundle", bundle, "--data", f"coco:{data}", *options)


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """A data set of four images, the second of which is cut short."""
    from made import make_coco

    folder = make_coco(tmp_path / "spoiled", images=4)
    path = folder / "val/000000000002.png"
    path.write_bytes(path.read_bytes()[:60])
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """Optional real data: COCO captions with a few images, and odd image files."""
    folder = Path(os.environ.get("LGIP_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; LGIP_SHARED names the folder that holds data/")
    return folder


class Real(NamedTuple):
    """captions: image_id, caption_index, text. annotated: image_id, category, of the images that have annotations."""

    captions: pl.DataFrame
    annotated: pl.DataFrame


@pytest.fixture(scope="session")
def val2017(shared: Path) -> Real:
    """All captions of COCO val2017, read with nothing but json, and the instance annotations at hand."""
    folder = shared / "coco/annotations"
    captions = json.loads((folder / "captions_val2017.json").read_bytes())["annotations"]
    instances = json.loads((folder / "instances_val2017_subset.json").read_bytes())
    names = {category["id"]: category["name"] for category in instances["categories"]}
    seen: dict[str, int] = {}
    rows = []
    for row in captions:
        image_id = str(row["image_id"])
        seen[image_id] = seen.get(image_id, -1) + 1
        rows.append((image_id, seen[image_id], row["caption"]))
    schema = {"image_id": pl.String, "caption_index": pl.UInt16, "text": pl.String}
    pairs = {(str(row["image_id"]), names[row["category_id"]]) for row in instances["annotations"]}
    annotated = pl.DataFrame(sorted(pairs), schema={"image_id": pl.String, "category": pl.String}, orient="row")
    return Real(pl.DataFrame(rows, schema=schema, orient="row"), annotated)


@pytest.fixture(scope="session")
def strict_val2017(val2017: Real) -> pl.DataFrame:
    """The table of suite `strict` over COCO val2017."""
    from lgip_ort.table import build_table

    return build_table(val2017.captions, "strict", 0, annotated=val2017.annotated)
