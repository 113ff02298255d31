"""Deployments that differ from the committed one in ways that must not matter."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx

from benchmarks.damage.kinds import Change, Variant, manifest
from lgip_ort.bundle import MANIFEST

ROOT = Path(__file__).resolve().parents[2]


def exported(precision: str = "fp16", opset: int | None = None) -> Change:
    """The model exported again, in another precision or for another opset."""

    def change(folder: Path) -> None:
        out = folder.parent / f"exported-{precision}-{opset}"
        lower = f"import exporter.graph as g; g.OPSET = {opset}\n" if opset else ""
        code = f"{lower}from exporter.export import app\napp()"
        command = [sys.executable, "-c", code, "--model", folder.name, "--precision", precision, "--out", str(out)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        shutil.rmtree(folder)
        shutil.copytree(out / folder.name, folder)

    return change


def external_data(folder: Path) -> None:
    """Weights beside the graph, as exporters write large models."""
    content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for graph in content["graphs"]:
        path = folder / graph["file"]
        model = onnx.load(path)
        data = f"{path.name}_data"
        onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=1024)
        content["files"][f"{graph['file']}_data"] = ""
    (folder / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def _renamed(content: dict[str, Any]) -> None:
    files = dict(content["files"])
    for graph in content["graphs"]:
        old = graph["file"]
        graph["file"] = f"{graph['tower']}.onnx"
        files[graph["file"]] = files.pop(old)
    content["files"] = files


def renamed(folder: Path) -> None:
    """Graphs under other names, in another folder."""
    for tower in ("vision", "text"):
        (folder / "onnx" / f"{tower}_model_fp16.onnx").rename(folder / f"{tower}.onnx")
    manifest(_renamed)(folder)


VARIANTS = (
    Variant("as it is", "honest", "the committed bundle, fp16"),
    Variant("fp32", "honest", "the same, stored in fp32", exported("fp32")),
    Variant("opset 18", "honest", "the same, for an older runtime", exported(opset=18)),
    Variant("opset 23", "honest", "the same, for a newer runtime", exported(opset=23)),
    Variant("batch of 1", "honest", "one text, one image at a time", options=(("batch_size", 1),)),
    Variant("batch of 7", "honest", "an odd batch", options=(("batch_size", 7),)),
    Variant("batch of 64", "honest", "a large batch", options=(("batch_size", 64),)),
    Variant("1 thread", "honest", "a smaller machine", options=(("threads", 1),)),
    Variant("2 threads", "honest", "a larger one", options=(("threads", 2),)),
    Variant("not optimised", "honest", "ONNX Runtime's graph optimisation off", options=(("level", 0),)),
    Variant("basic optimisation", "honest", "the first level", options=(("level", 1),)),
    Variant("extended optimisation", "honest", "the second level", options=(("level", 2),)),
    Variant("external data", "honest", "weights beside the graph", external_data),
    Variant("another layout", "honest", "other names of files", renamed),
    Variant("OpenVINO", "honest", "another provider", options=(("provider", "openvino"),)),
)
"""`level` of an option is ONNX Runtime's: 0 nothing, 1 basic, 2 extended."""

INFORMATION = (Variant("int8", "information", "dynamic quantisation, which is not what was chosen", exported("int8")),)
