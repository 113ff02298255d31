from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from types import SimpleNamespace

import onnxruntime
import pytest

from lgip_ort import doctor
from lgip_ort import provider as provider_module
from lgip_ort.doctor import examine, summary


def installed(monkeypatch, **versions):
    """Only these ONNX Runtime wheels are there; names have _ for -."""
    known = {name.replace("_", "-"): version for name, version in versions.items()}
    real = importlib.metadata.version

    def version(name):
        if name in doctor.WHEELS and name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def finding(what):
    (found,) = [found for found in examine() if found.what == what]
    return found


def test_one_wheel_works(monkeypatch):
    installed(monkeypatch, onnxruntime_gpu="1.31.1")
    found = finding("onnxruntime")
    assert (found.state, found.remedy) == ("works", "")
    assert found.found.startswith("onnxruntime-gpu 1.31.1; ") and "CPUExecutionProvider" in found.found


@pytest.mark.parametrize(
    ("other", "kept"), [("onnxruntime", "onnxruntime-gpu"), ("onnxruntime_openvino", "onnxruntime-gpu")]
)
def test_two_wheels_are_broken(monkeypatch, other, kept):
    installed(monkeypatch, onnxruntime_gpu="1.31.1", **{other: "1.30"})
    found = finding("onnxruntime")
    assert found.state == "broken" and "they overwrite each other's files" in found.found
    assert found.remedy.startswith("pip uninstall -y ") and found.remedy.endswith(f"&& pip install {kept}")
    assert set(found.remedy.split(" && ")[0].split()[3:]) == {"onnxruntime-gpu", other.replace("_", "-")}
    assert summary(examine())["status"] == "broken"


def test_providers(monkeypatch):
    cpu, cuda = finding("provider cpu"), finding("provider cuda")
    assert (cpu.state, cpu.found) == ("works", "CPUExecutionProvider, fp32 matrices in fp32")
    monkeypatch.setattr(provider_module, "BUILT_IN", ["CPUExecutionProvider"])
    cuda = finding("provider cuda")
    assert (cuda.state, cuda.found) == (
        "missing",
        "CUDAExecutionProvider: this onnxruntime has no CUDAExecutionProvider",
    )
    assert cuda.remedy == "install onnxruntime-gpu and no onnxruntime beside it"


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("ldd") is None, reason="no ldd here")
def test_libraries_that_are_missing_are_named(monkeypatch, tmp_path):
    """Those that the loader does not find, but for those that pip packages have brought into the process."""
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi/libonnxruntime_providers_cuda.so").touch()
    monkeypatch.setattr(onnxruntime, "__file__", str(tmp_path / "__init__.py"))
    lines = "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibcudnn.so.9 => not found\n\tlibcublas.so.13 => not found\n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=lines))
    monkeypatch.setattr(doctor, "_loads", lambda name: name == "libcublas.so.13")
    found = finding("CUDA libraries")
    assert (found.state, found.found) == ("missing", "not found: libcudnn.so.9")
    assert "pip install 'lgip-ort[cuda]'" in found.remedy
    monkeypatch.setattr(doctor, "_loads", lambda name: True)
    assert finding("CUDA libraries").state == "works"


def test_what_an_extra_would_bring(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert {(f.state, f.remedy) for f in examine() if f.what in ("ray", "torch")} == {
        ("missing", "pip install 'lgip-ort[ray]'"),
        ("missing", "pip install 'lgip-ort[export]'"),
    }


def test_command(bench, monkeypatch):
    installed(monkeypatch, onnxruntime_gpu="1.31.1")
    shown, data = bench("doctor"), bench("doctor", "--json").json()
    assert shown.code == 0 and data["status"] == "done"
    assert {"what", "state", "found", "remedy"} == set(data["findings"][0])
    assert "provider cpu: CPUExecutionProvider, fp32 matrices in fp32" in shown.out
    installed(monkeypatch, onnxruntime_gpu="1.31.1", onnxruntime="1.31.1")
    assert bench("doctor").code == bench("doctor", "--json").code == 2
