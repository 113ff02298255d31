"""What is shown of a measurement, on a terminal and as a page."""

from __future__ import annotations

import copy
import io
import json
import re

import pytest
from rich.console import Console
from test_report import Page

from lgip_ort.report.speed import print_speed, roof_chart, write_speed

LOAD = {"batch": 16, "open": 0.25, "engine": 1.5, "first_batch": 2.0, "peak_bytes": 300 << 20}
ROOF = "roof numpy/cpu fp32 8x8x8"


def case(name, rate, unit, share=None, latency=None, load=None):
    what, where, precision = name.split()[:3]
    engine, provider = where.split("/")
    return {
        "name": name,
        "what": what,
        "engine": engine,
        "provider": provider,
        "precision": {"stored": precision, "executed": f"{precision} (so to say)"},
        "rate": rate,
        "unit": unit,
        "latency": latency,
        "roof": None if share is None else {"name": ROOF, "ratio": share, "low": share, "high": share},
        "load": load,
    }


RESULT = {
    "model": "made",
    "weights": "random",
    "weights_sha256": "0" * 64,
    "machine": {"cores": 2, "cpu": "A processor", "system": "Linux", "used_by_others": 0.05},
    "versions": {"onnxruntime": "1", "torch": "2"},
    "data": {"name": "coco-val", "images": 34, "captions": 25014},
    "rounds": 3,
    "cases": [
        case("run ort/cpu fp16", 54.36, "pairs/s", load=LOAD),
        case("images ort/cpu fp16 16", 1234.5, "images/s", 0.815, load=LOAD),
        case("images ort/cpu fp16 1", 100.0, "images/s", 0.5, {"p50": 0.0101, "p95": 0.0502, "calls": 9}, LOAD),
        case("texts torch/cpu fp32 256x77", 42.0, "texts/s", 0.3),
    ],
    "roof": [
        {"name": ROOF, "precision": "fp32", "flops_per_second": 451.7e9, "best": True},
        {"name": "roof torch/cpu fp32 8x8x8", "precision": "fp32", "flops_per_second": 99e9, "best": False},
    ],
    "ratios": [
        {"what": "images", "case": "images ort/cpu fp16 16", "against": "other", "ratio": 1.5, "low": 1.25, "high": 2.75},
        {"what": "share of roof", "case": "one", "against": ROOF, "ratio": 0.815, "low": 0.8, "high": 0.83},
    ],
    "left_out": ["ort/openvino int8: <b>no</b> kernel [red]"],
    "command": "python bench.py speed --bundle '<i>'",
}  # fmt: skip


def page_of(tmp_path, **changes):
    path = write_speed(copy.deepcopy(RESULT) | changes, tmp_path / "new/folder")
    return path, Page(path.read_text("utf-8"))


def test_the_page_shows_every_number(tmp_path):
    path, page = page_of(tmp_path)
    assert path == tmp_path / "new/folder/speed.html"
    assert json.loads((path.parent / "speed.json").read_text()) == RESULT
    for part in (
        "Speed of made",
        "Weights: random",
        "1,234 images/s",
        "54.4 pairs/s",
        "10.10 / 50.20 ms",
        "82%",
        "fp16 (so to say)",
        "1.50 ×",
        "1.25 to 2.75 in the rounds",
        "80 to 83 % in the rounds",
        "452",
        "(the roof)",
        "opened and checked in 0.25 s, engine built in 1.50 s, first batches in 2.00 s, 300 MiB",
        "onnxruntime 1, torch 2",
        "34 images, 25,014 captions",
    ):
        assert part in page.text, part
    assert page.text.count("300 MiB") == 1, "once for a bundle, not for each of its cases"


def test_the_page_needs_no_network_and_runs_nothing(tmp_path):
    _, page = page_of(tmp_path)
    assert page.count("script") == page.count("iframe") == page.count("link", rel="stylesheet") == 0
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "data"):
                assert value.startswith(("data:", "#")), (tag, name, value)
    assert not re.search(r"@import|url\(", " ".join(page.texts))


def test_what_comes_from_outside_is_text(tmp_path):
    _, page = page_of(tmp_path)
    assert "<b>no</b> kernel [red]" in page.text and "--bundle '<i>'" in page.text
    assert page.count("i") == 0


def test_charts_are_of_what_was_measured(tmp_path):
    """A chart of each rate that there is, and one of shares; single images are no throughput."""
    _, page = page_of(tmp_path)
    assert page.count("svg") == 4
    without = [dict(case, roof=None) for case in RESULT["cases"] if case["what"] != "texts"]
    _, page = page_of(tmp_path, cases=without)
    assert page.count("svg") == 2
    svg = roof_chart(RESULT)
    assert "images ort/cpu fp16 16" in svg and "images ort/cpu fp16 1<" not in svg and "82%" in svg


@pytest.mark.parametrize(("cores", "said"), [(None, False), (0.05, False), (0.93, True)])
def test_a_busy_machine_is_named(tmp_path, cores, said):
    machine = RESULT["machine"] | {"used_by_others": cores}
    _, page = page_of(tmp_path, machine=machine)
    assert ("BUSY: other processes used 0.93 cores of it meanwhile" in page.text) == said


def test_the_terminal_shows_the_same():
    console = Console(file=io.StringIO(), width=60, force_terminal=False)
    print_speed(console, RESULT)
    text = console.file.getvalue()
    for part in (
        "speed of made",
        "1,234 images/s",
        "10.10 / 50.20 ms",
        "82%",
        "1.50",
        "1.25 .. 2.75",
        "roof       numpy/cpu fp32 8x8x8: 452 GFLOP/s",
        "left out   ort/openvino int8: <b>no</b> kernel [red]",
        "medians of 3 rounds",
        "machine    A processor, 2 cores, Linux\n",
    ):
        assert part in text, part
    assert "99" not in text, "of the roof the best alone"


def test_memory_that_nobody_knows():
    console = Console(file=io.StringIO(), width=60, force_terminal=False)
    print_speed(console, RESULT | {"cases": [dict(RESULT["cases"][0], load=LOAD | {"peak_bytes": None})]})
    assert "first batches in 2.00 s\n" in console.file.getvalue()
