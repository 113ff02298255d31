"""The command, from a bundle to a page; and which numbers are set against which. No time is judged."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
from made import make_coco
from toy import CONTEXT, DIM, SIZE, in_precisions, make_bundle

from lgip_ort import provider
from lgip_ort.bundle import open_bundle
from lgip_ort.engine import OrtEngine
from lgip_ort.errors import UsageFault
from lgip_ort.speed import measure as speed
from lgip_ort.speed import roof
from lgip_ort.speed.cases import Case, Rivals
from lgip_ort.speed.measure import Asked, measure
from lgip_ort.speed.roof import Product
from lgip_ort.speed.rounds import Timing


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Next to no work, and one way to load a bundle: by not loading it."""
    for group in speed.SECONDS:
        monkeypatch.setitem(speed.SECONDS, group, 1e-6)
    monkeypatch.setitem(roof.SHAPES, "cpu", ((6, 8, 10), (4, 4, 4)))
    made = {"batch": 16, "open": 0.5, "engine": 1.0, "first_batch": 2.0, "peak_bytes": 3 << 20}
    monkeypatch.setattr(speed, "load_afresh", lambda folder, key, precision, batch: made | {"batch": batch})


@pytest.fixture
def both(tmp_path):
    """The toy in fp16 and fp32."""
    return in_precisions(make_bundle(tmp_path / "both"), "fp16", "fp32")


def standin(bundle, device):
    """Rivals without PyTorch: the bundle's own engine under their names."""
    engine = OrtEngine(bundle, "cpu", 256)
    products = [Product("torch", device, precision, (5, 5, 5), lambda: None) for precision in ("fp32", "bf16")]
    return Rivals(device, {"fp32": engine, "bf16": engine}, products, lambda *_: lambda: None, 7)


def no_torch(bundle, device):
    raise UsageFault("no PyTorch here")


def run(folder, coco, rivals=standin, **asked):
    return measure(open_bundle(folder), Asked(f"coco:{coco}", **asked), rivals, lambda _: None)


def test_the_object(both, coco):
    found = run(both, coco, rounds=2, providers=["cpu"])
    json.dumps(found, allow_nan=False)
    assert found["status"] == "done" and found["model"] == "toy" and found["weights"] == "random"
    assert found["deduplicated"] is False and found["rounds"] == 2 and found["warm_up"]["seconds"] > 0
    assert found["data"] == {"name": "coco-val", "images": 40, "captions": 80}
    assert found["machine"].keys() == {"cores", "cpu", "system", "used_by_others"}
    assert {"lgip-ort", "python", "onnxruntime", "numpy"} <= found["versions"].keys() and found["left_out"] == []
    cases = {case["name"]: case for case in found["cases"]}
    assert len(cases) == 2 * 5 + 1 + 2 * 6
    for case in cases.values():
        assert len(case["rounds"]) == 2 and case["seconds"] == pytest.approx(np.median(case["rounds"]))
        assert case["rate"] == pytest.approx(case["amount"] / case["seconds"])
        assert (case["latency"] is not None) == (case["batch"] == 1)
        assert case["unit"] == {"images": "images/s", "texts": "texts/s", "run": "pairs/s"}[case["what"]]


def test_a_case(both, coco):
    cases = {case["name"]: case for case in run(both, coco, rounds=2, providers=["cpu"])["cases"]}
    ours, theirs = cases["images ort/cpu fp16 16"], cases["images torch/cpu bf16 32"]
    assert ours["precision"] == {"stored": "fp16", "executed": "fp32 (cast)"}
    assert ours["load"] == {"batch": 16, "open": 0.5, "engine": 1.0, "first_batch": 2.0, "peak_bytes": 3 << 20}
    assert ours["threads"] is None and theirs["threads"] == 7 and theirs["load"] is None
    assert theirs["precision"]["stored"] == "fp32"
    assert ours["amount"] == theirs["amount"] == 32, "the largest batch: all that do it do as much"
    assert ours["flops"] == theirs["flops"] == 32 * 2 * 3 * SIZE * SIZE * DIM
    share = ours["roof"]
    assert share["name"].startswith("roof ") and " fp32 " in share["name"]
    assert 0 < share["low"] <= share["ratio"] <= share["high"]
    single = cases["texts ort/cpu fp32 1"]
    assert single["latency"].keys() == {"p50", "p95", "calls"} and single["latency"]["calls"] == 2 * single["amount"]
    texts = (
        cases[f"texts torch/cpu fp32 256x{CONTEXT}"]["amount"],
        cases[f"texts ort/cpu fp16 {16 * CONTEXT} tokens"]["amount"],
    )
    assert texts == (256, 256)


def test_the_roof_is_the_fastest_of_its_precision(both, coco):
    found = run(both, coco, providers=["cpu"])["roof"]
    names = {(r["engine"], r["precision"]) for r in found}
    assert {("ort", "fp32"), ("numpy", "fp32"), ("torch", "fp32")} <= names
    fp32 = [r for r in found if r["precision"] == "fp32"]
    (best,) = [r for r in fp32 if r["best"]]
    assert best["flops_per_second"] == max(r["flops_per_second"] for r in fp32)


def test_a_roof_is_only_of_what_is_computed(both, coco):
    """The stand-in computes nothing in bf16, whatever it is called."""
    assert {r["precision"] for r in run(both, coco, providers=["cpu"])["roof"]} == {"fp32"}


def made(cases):
    """Cases with the seconds of each of two rounds, for one of something."""

    def case(name):
        what, where, precision, size = name.split()
        engine, provider_ = where.split("/")
        return Case(what, engine, provider_, precision, precision, lambda n: None, None, int(size), size)

    timings = {name: Timing(1, np.array(seconds).reshape(2, 1)) for name, seconds in cases.items()}
    return [case(name) for name in cases], timings


def test_what_is_set_against_what():
    """By hand: of several batches the fastest, single ones never, the median of two rounds is their mean."""
    cases, timings = made(
        {
            "images ort/cpu fp16 16": (2.0, 4.0),
            "images ort/cpu fp16 1": (0.1, 0.1),
            "images ort/cpu fp32 16": (1.0, 4.0),
            "texts ort/cpu fp16 16": (1.0, 1.0),
            "texts ort/cpu fp32 16": (2.0, 2.0),
            "run ort/cpu fp16 0": (1.0, 1.0),
            "run ort/cpu fp32 0": (2.0, 2.0),
            "images torch/cpu fp32 8": (8.0, 9.0),
            "images torch/cpu fp32 16": (4.0, 6.0),
            "images torch/cpu fp32 1": (0.1, 0.1),
            "images torch/cpu bf16 8": (1.0, 1.0),
            "texts torch/cpu fp32 256": (6.0, 10.0),
            "run released/cpu fp32 0": (3.0, 3.0),
        }
    )
    rows = [
        {"name": "images ort/cpu fp16 16", "roof": {"name": "roof x", "ratio": 0.5, "low": 0.4, "high": 0.6}},
        {"name": "images ort/cpu fp32 16", "roof": None},
        {"name": "texts ort/cpu fp16 16", "roof": {"name": "roof x", "ratio": 0.2, "low": 0.1, "high": 0.3}},
    ]
    found = [tuple(ratio.values()) for ratio in speed._ratios(cases, timings, rows)]
    assert found == [
        ("texts", "texts ort/cpu fp16 16", "texts torch/cpu fp32 256", 8.0, 6.0, 10.0),
        ("images", "images ort/cpu fp16 16", "images torch/cpu fp32 16", 1.75, 1.5, 2.0),
        ("images", "images ort/cpu fp16 16", "images torch/cpu bf16 8", 0.375, 0.25, 0.5),
        ("run", "run ort/cpu fp16 0", "run released/cpu fp32 0", 3.0, 3.0, 3.0),
        ("texts", "texts ort/cpu fp32 16", "texts torch/cpu fp32 256", 4.0, 3.0, 5.0),
        ("run", "run ort/cpu fp32 0", "run released/cpu fp32 0", 1.5, 1.5, 1.5),
        ("images", "images ort/cpu fp16 16", "images ort/cpu fp32 16", 0.75, 0.5, 1.0),
        ("texts", "texts ort/cpu fp16 16", "texts ort/cpu fp32 16", 2.0, 2.0, 2.0),
        ("share of roof", "images ort/cpu fp16 16", "roof x", 0.5, 0.4, 0.6),
    ]


def test_without_a_rival_there_are_fewer_ratios(toy, coco):
    found = run(toy, coco, no_torch, providers=["cpu"])
    assert [ratio["what"] for ratio in found["ratios"]] == ["share of roof"]
    assert found["left_out"] == ["torch/cpu: no PyTorch here"]
    assert run(toy, coco, no_torch, providers=["cpu"], torch=False)["left_out"] == []
    with pytest.raises(UsageFault, match="no PyTorch here"):
        run(toy, coco, no_torch, providers=["cpu"], torch=True)


def test_batches_that_are_asked_for(toy, coco):
    cases = run(toy, coco, no_torch, providers=["cpu"], batches=[3, 70])["cases"]
    images = [case for case in cases if case["what"] == "images"]
    assert [(case["batch"], case["amount"] >= 70) for case in images] == [(3, True), (70, True), (1, False)]
    assert images[0]["load"]["batch"] == 70


def test_every_provider_that_works_here(toy, coco, monkeypatch):
    monkeypatch.setattr(provider, "PROVIDERS", provider.PROVIDERS)
    for key in ("openvino", "cuda", "tensorrt"):
        monkeypatch.setitem(
            provider.PROVIDERS, key, provider.Provider(key, f"{key} provider", "cpu", lambda: "it is not")
        )
    assert {case["provider"] for case in run(toy, coco, no_torch)["cases"]} == {"cpu"}
    with pytest.raises(UsageFault, match="cuda provider is not available: it is not"):
        run(toy, coco, no_torch, providers=["cpu", "cuda"])


def test_a_precision_that_does_not_work_is_left_out(both, coco, monkeypatch):
    afresh = speed.load_afresh

    def load(folder, key, precision, batch):
        if precision == "fp32":
            raise UsageFault("not on this provider")
        return afresh(folder, key, precision, batch)

    monkeypatch.setattr(speed, "load_afresh", load)
    found = run(both, coco, no_torch, providers=["cpu"])
    assert found["left_out"][0] == "ort/cpu fp32: not on this provider"
    assert {case["precision"]["stored"] for case in found["cases"]} == {"fp16"}
    with pytest.raises(UsageFault, match="not on this provider"):
        run(both, coco, no_torch, providers=["cpu"], precisions=["fp32"])


def test_weights_are_named_with_their_revision(toy, coco):
    bundle = open_bundle(toy)
    weights = dataclasses.replace(bundle.manifest.weights, source="hub", name="somebody/clip", revision="abc")
    bundle = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, weights=weights))
    assert (
        measure(bundle, Asked(f"coco:{coco}", providers=["cpu"]), no_torch, lambda _: None)["weights"]
        == "somebody/clip@abc"
    )


@pytest.fixture
def command(bench, toy, coco):
    return lambda *options, bundle=toy, data=coco: bench("speed", "--bundle", bundle, "--data", f"coco:{data}", "--provider", "cpu", "--no-torch", "--rounds", 1, *options)  # fmt: skip


def test_the_command(command):
    done = command()
    assert done.code == 0, done.err
    for part in (
        "speed of toy",
        "images ort/cpu fp16 16",
        "roof ",
        "load       cpu fp16",
        "weights    random",
        "toy/speed/speed.html",
    ):
        assert part in done.out, part
    assert "bundle " in done.err


def test_json_is_the_file(command, tmp_path):
    done = command("--json", "--out", tmp_path / "here", "--batch", 8, "--precision", "fp16")
    assert done.code == 0, done.err
    assert done.json() == json.loads((tmp_path / "here/speed.json").read_text())
    assert (
        done.json()["command"].startswith("python bench.py speed --bundle ") and "--batch 8" in done.json()["command"]
    )
    assert (tmp_path / "here/speed.html").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "tiny_clip"), "--model and --bundle exclude each other"),
        (("--provider", "cudo"), "unknown provider 'cudo'; did you mean 'cuda'"),
        (("--precision", "fp61"), "unknown precision 'fp61'"),
        (("--precision", "int8"), "precision fp16 found, int8 expected"),
        (("--torch",), "unknown model 'toy'"),
        (("--batch", 1), "Invalid value for '--batch'"),
        (("--rounds", 0), "Invalid value for '--rounds'"),
    ],
)
def test_what_it_refuses(command, options, message, tmp_path):
    if "--torch" in options:
        pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
    done = command(*options)
    assert done.code == 2
    assert message in " ".join(done.err.replace("│", " ").split())
    assert done.out == "" and not (tmp_path / "runs").exists()


def test_a_score_that_is_not_finite(command, tmp_path):
    folder = make_bundle(tmp_path / "poisoned", poison="blue")
    done = command("--json", bundle=folder)
    assert done.code == 1
    assert done.json()["status"] == "failed" and "scores are not finite" in done.json()["error"]


def test_images_that_are_not_there(command, tmp_path):
    folder = make_coco(tmp_path / "few", images=4)
    (folder / "val/000000000002.png").unlink()
    assert command(data=folder).code == 2
    done = command("--json", "--available-only", data=folder)
    assert done.json()["data"] == {"name": "coco-val", "images": 3, "captions": 8}
    shutil.rmtree(folder / "val")
    assert "none of its 4 images is there" in command("--available-only", data=folder).err


def test_beside_pytorch(bench, coco, monkeypatch):
    """A real bundle and its real original: every ratio that is promised, for a CPU."""
    pytest.importorskip("torch", reason="the exporter's dependencies are not installed")
    from checkpoints import exported

    folder, _ = exported("tiny_clip", "fp16", "fp32")
    done = bench(
        "speed", "--bundle", folder, "--data", f"coco:{coco}", "--provider", "cpu", "--torch", "--rounds", 1, "--json"
    )
    assert done.code == 0, done.err
    found = done.json()
    assert [(r["what"], r["case"], r["against"].rsplit(" ", r["what"] == "images")[0]) for r in found["ratios"][:-2]] == [
        ("texts", "texts ort/cpu fp16 512 tokens", "texts torch/cpu fp32 256x32"),
        ("images", "images ort/cpu fp16 16", "images torch/cpu fp32"),
        ("images", "images ort/cpu fp16 16", "images torch/cpu bf16"),
        ("run", "run ort/cpu fp16", "run released/cpu fp32"),
        ("texts", "texts ort/cpu fp32 512 tokens", "texts torch/cpu fp32 256x32"),
        ("run", "run ort/cpu fp32", "run released/cpu fp32"),
        ("images", "images ort/cpu fp16 16", "images ort/cpu fp32"),
        ("texts", "texts ort/cpu fp16 512 tokens", "texts ort/cpu fp32 512 tokens"),
    ]  # fmt: skip
    assert [(r["what"], r["case"]) for r in found["ratios"][-2:]] == [
        ("share of roof", "images ort/cpu fp16 16"),
        ("share of roof", "images ort/cpu fp32 16"),
    ]
    assert {"torch", "transformers"} <= found["versions"].keys()
    assert {r["precision"] for r in found["roof"]} == {"fp32", "bf16"}
