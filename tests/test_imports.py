"""The runtime needs neither torch nor a hub client, and nothing that its package does not declare."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

BLOCK = """
import sys

BLOCKED = "torch torchvision transformers open_clip huggingface_hub optimum onnx onnxscript timm safetensors".split()
BLOCKED += ["ray", "onnxruntime_ep_openvino"]
sys.modules |= dict.fromkeys(BLOCKED)  # None: as if it were not installed
"""


def modules():
    """Every module of the runtime, and of models what needs no training."""
    files = [
        *sorted((ROOT / "lgip_ort").rglob("*.py")),
        *(ROOT / "models" / n for n in ("__init__.py", "zoo.py", "demo/__init__.py")),
    ]
    return [".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in files]


def python(code, *arguments, cwd, block=BLOCK):
    command = [sys.executable, "-c", block + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_block_blocks(tmp_path):
    done = python("import torch", cwd=tmp_path)
    assert "import of torch halted" in done.stderr


IMPORT_ALL = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import importlib, bench
for name in {modules()!r}:
    importlib.import_module(name)
"""


def test_every_module_imports(tmp_path):
    assert len(modules()) > 20
    done = python(IMPORT_ALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_nothing_is_imported_where_it_is_installed(tmp_path):
    done = python(
        IMPORT_ALL + "print({'torch', 'transformers', 'onnx', 'ray'} & set(sys.modules))", cwd=tmp_path, block=""
    )
    assert done.stdout.strip() == "set()"


def test_the_command_scores_a_bundle(toy, coco, tmp_path):
    code = f"import runpy\nsys.argv[0] = 'bench.py'\nsys.path.insert(0, {str(ROOT)!r})\nrunpy.run_path({str(ROOT / 'bench.py')!r}, run_name='__main__')"
    done = python(code, "--bundle", toy, "--data", f"coco:{coco}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "LGIP profile of toy" in done.stdout


def test_help_loads_no_library_that_takes_time(tmp_path):
    code = f"sys.path.insert(0, {str(ROOT)!r})\nimport bench\nprint(sorted({{'numpy', 'polars', 'onnxruntime', 'altair'}} & set(sys.modules)))"
    assert python(code, cwd=tmp_path).stdout.strip() == "[]"


def packages(requirements):
    """The names that the packages of these requirements are imported by, but for those that are named otherwise."""
    return {re.match(r"[\w-]+", line).group().lower().replace("-", "_") for line in requirements}


def imported(tree):
    """The top-level packages that are imported anywhere in a piece of source."""
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        yield from (name.partition(".")[0] for name in names)


@pytest.mark.parametrize("folder", ["lgip_ort", "bench.py"])
def test_every_import_is_declared(folder):
    """What an extra brings is imported where it is used, never by a module as a whole."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = packages(project["dependencies"]) | {"PIL", "vl_convert", "lgip_ort", "models", *sys.stdlib_module_names}
    optional = {name for extra in ("openvino", "ray") for name in packages(project["optional-dependencies"][extra])}
    optional.add("exporter")  # only where torch is asked for
    files = [ROOT / folder] if folder.endswith(".py") else sorted((ROOT / folder).rglob("*.py"))
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert set(imported(tree)) <= known | optional, file
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                node.body = []
        assert set(imported(tree)) <= known, file
