"""The README's picture of a report: `python benchmarks/screenshot.py`.

Both demo models on PyTorch and on ONNX Runtime, tiny_siglip in both ways of padding: scored, put on one page, and that
photographed by Chromium. Runs that are there are used again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
RUNS = (("tiny_clip", "trained"), ("tiny_siglip", "trained"), ("tiny_siglip", "paper"))
WIDTH, HEIGHT = 1120, 1680


def main(
    out: Annotated[Path, typer.Option(help="The picture.")] = ROOT / "docs/report.png",
    runs: Annotated[Path, typer.Option(help="Where run folders are made.")] = ROOT / "runs",
) -> None:
    """Take the picture."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("error: no chromium and no google-chrome on PATH", file=sys.stderr)
        raise typer.Exit(2)
    made: list[str] = []
    for model, padding in RUNS:
        command = ["bench.py", "--engine", "both", "--model", model, "--padding", padding, "--out", str(runs), "--json"]
        done = subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)

        found = json.loads(done.stdout)
        made += [found["reference"], found["candidate"]]
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder) / "report.html", Path(folder) / "page.png"
        command = ["bench.py", "report", *made, "--out", str(page)]
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/browser",
        ]
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}"]
        subprocess.run([browser, *flags, *size, page.as_uri()], check=True, capture_output=True)
        # 256 colours are enough for a page, and a fifth of the bytes.
        Image.open(picture).convert("RGB").quantize(256).save(out, optimize=True)
    print(out)


if __name__ == "__main__":
    typer.run(main)
