"""What this machine can do, and how to mend what it can't."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import onnxruntime as ort

from lgip_ort.errors import UsageFault
from lgip_ort.provider import PLUGIN, PROVIDERS, arithmetic

State = Literal["works", "missing", "broken"]

WHEELS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-training")
"""Packages that bring the same files: of two that are installed together, neither is whole."""

EXTRAS = {
    "torch": ("torch", "export"),
    "transformers": ("transformers", "export"),
    "open_clip": ("open_clip_torch", "export"),
    "onnx": ("onnx", "export"),
    "onnxscript": ("onnxscript", "export"),
    "optimum": ("optimum-onnx", "export"),
    PLUGIN: ("onnxruntime-ep-openvino", "openvino"),
    "ray": ("ray", "ray"),
}
"""Modules that are not needed to score a bundle -> the package that each is in, and the extra that brings it."""

SPEEDS = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_fp16", "avx512f", "avx2", "asimd", "bf16", "i8mm")
"""Instruction sets that decide how fast matrices are multiplied."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `remedy`: how to mend it, empty where there is nothing to mend.

    `missing` is what nobody need have; `broken` is what is there and does not work.
    """

    what: str
    state: State
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything, without changing anything."""
    return [_machine(), _wheels(), *(_provider(key) for key in PROVIDERS), *_libraries(), *map(_module, EXTRAS)]


def summary(findings: list[Finding]) -> dict[str, Any]:
    """The findings as one JSON object; its status is `broken` where one of them is."""
    broken = any(finding.state == "broken" for finding in findings)
    return {"status": "broken" if broken else "done", "findings": [asdict(finding) for finding in findings]}


def _machine() -> Finding:
    name, flags = cpu()
    sets = ", ".join(flag for flag in SPEEDS if flag in flags) or "instruction sets unknown"
    memory = f", {_memory() / 2**30:.0f} GiB of memory" if _memory() else ""
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return Finding("machine", "works", f"{name}, {os.cpu_count()} cores{memory}; {sets}; {system}")


def _wheels() -> Finding:
    installed = {}
    for name in WHEELS:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found = ", ".join(f"{name} {version}" for name, version in installed.items()) or f"from source, {ort.__version__}"
    if len(installed) > 1:
        remedy = f"pip uninstall -y {' '.join(installed)} && pip install {_wanted(installed)}"
        return Finding("onnxruntime", "broken", f"{found}: they overwrite each other's files", remedy)
    return Finding("onnxruntime", "works", f"{found}; {', '.join(ort.get_available_providers())}")


def _wanted(installed: dict[str, str]) -> str:
    """The one of several wheels that can do most."""
    return next((name for name in ("onnxruntime-gpu", "onnxruntime-openvino") if name in installed), "onnxruntime")


def _provider(key: str) -> Finding:
    provider = PROVIDERS[key]
    if problem := provider.problem():
        return Finding(f"provider {key}", "missing", f"{provider.name}: {problem.split('; ')[0]}", _after(problem))
    try:
        measured = arithmetic(provider)
    except (UsageFault, RuntimeError) as error:
        return Finding(f"provider {key}", "broken", f"{provider.name}: {error}", "see the message of ONNX Runtime")
    fp16 = ", fp16 graphs in fp16" if provider.computes_fp16 else ""
    return Finding(f"provider {key}", "works", f"{provider.name}, fp32 matrices in {measured}{fp16}")


def _after(problem: str) -> str:
    return "; ".join(problem.split("; ")[1:])


def _libraries() -> list[Finding]:
    """The libraries that the CUDA provider needs, where there is such a provider and something to ask."""
    library = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if sys.platform != "linux" or not library.exists() or shutil.which("ldd") is None:
        return []
    PROVIDERS["cuda"].problem()  # loads what pip packages bring
    listed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
    needed = [line.split("=>")[0].strip() for line in listed.splitlines() if "not found" in line]
    lacking = [name for name in needed if not _loads(name)]
    if not lacking:
        return [Finding("CUDA libraries", "works", "all that the CUDA provider needs are found")]
    return [
        Finding(
            "CUDA libraries",
            "missing",
            f"not found: {', '.join(sorted(lacking))}",
            "pip install 'lgip-ort[cuda]' brings CUDA and cuDNN; libcuda.so.1 comes with the NVIDIA driver",
        )
    ]


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _module(name: str) -> Finding:
    """Whether a module is there, without importing it."""
    package, extra = EXTRAS[name]
    if find_spec(name) is None:
        return Finding(name, "missing", "not installed", f"pip install 'lgip-ort[{extra}]'")
    return Finding(name, "works", importlib.metadata.version(package))


def cpu() -> tuple[str, set[str]]:
    """The name of the processor and its flags, as Linux knows them."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return name, flags
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        if key.strip() in ("flags", "Features"):
            flags |= set(value.split())
    return name, flags


def _memory() -> int:
    """Bytes of memory, 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
