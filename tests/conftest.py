"""What more than one test file uses. The helper modules beside it (`toy`, `made`) make what is tested on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


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
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images with two captions each in COCO's layout, split `val`, that nothing may write to."""
    from made import make_coco

    return make_coco(tmp_path_factory.mktemp("coco"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Optional real data: COCO captions with a few images, and odd image files."""
    folder = Path(os.environ.get("LGIP_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; LGIP_SHARED names the folder that holds data/")
    return folder
