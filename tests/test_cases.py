"""What cases work on, and that all of them do the same work."""

from __future__ import annotations

import numpy as np
import pytest
from toy import CONTEXT, DIM, SIZE, in_precisions, make_bundle

from lgip_ort.bundle import open_bundle
from lgip_ort.dataset import open_dataset
from lgip_ort.engine import OrtEngine
from lgip_ort.errors import UsageFault
from lgip_ort.speed import cases
from lgip_ort.speed.cases import TORCH_TEXTS, Case, Inputs, Operations, Rivals, ort_cases, roof_cases, torch_cases
from lgip_ort.speed.roof import Product


@pytest.fixture
def inputs(toy, coco, tmp_path):
    return Inputs(open_bundle(toy), f"coco:{coco}", False, 64, tmp_path)


@pytest.fixture
def engine(toy):
    return OrtEngine(open_bundle(toy), "cpu", 4)


def named(cases):
    return {case.name: case for case in cases}


def test_inputs_are_the_data_s(inputs, engine, coco):
    data = open_dataset(f"coco:{coco}")
    assert inputs.pixels.shape == (64, 3, SIZE, SIZE) and inputs.distinct == 40
    np.testing.assert_array_equal(inputs.pixels[40:], inputs.pixels[:24])
    assert len({image.tobytes() for image in inputs.pixels}) == 40
    assert inputs.dataset.images.equals(data.images) and inputs.texts == data.captions["text"].to_list()


def test_what_can_not_be_read_is_passed_over(toy, spoiled, tmp_path):
    inputs = Inputs(open_bundle(toy), f"coco:{spoiled}", False, 2, tmp_path)
    assert inputs.dataset.images["image_id"].to_list() == ["1", "3", "4"] and inputs.distinct == 3
    assert inputs.dataset.captions["image_id"].unique().sort().to_list() == ["1", "3", "4"]
    for path in (spoiled / "val").iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(UsageFault, match="none of its images can be read"):
        Inputs(open_bundle(toy), f"coco:{spoiled}", False, 2, tmp_path)


def test_captions_of_absent_images_count(toy, spoiled, tmp_path):
    (spoiled / "val/000000000001.png").unlink()
    inputs = Inputs(open_bundle(toy), f"coco:{spoiled}", True, 2, tmp_path)
    assert inputs.distinct == 2 and len(inputs.texts) == 8


def test_only_so_many_images_are_read(toy, coco, tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "POOL", 7)
    inputs = Inputs(open_bundle(toy), f"coco:{coco}", False, 3, tmp_path)
    assert len(inputs.pixels) == inputs.distinct == len(inputs.dataset.images) == 7


def test_texts_are_spread_and_not_deduplicated(inputs):
    assert inputs.spread(80) == inputs.texts
    assert inputs.spread(4) == inputs.texts[::20]
    many = inputs.spread(160)
    assert many[::2] == many[1::2] == inputs.texts


def test_images_come_in_full_batches(inputs):
    found = inputs.images(10)(25)
    assert [len(batch) for batch in found] == [10, 10, 10]
    np.testing.assert_array_equal(np.concatenate(found), inputs.pixels[:30])
    again = inputs.images(32)(96)
    assert again[0].base is again[2].base and (again[0] == again[2]).all(), "from the start again, without a copy"


def test_cases_of_a_bundle(inputs, engine):
    found = named(ort_cases("cpu", engine, inputs, [8, 3]))
    assert list(found) == [
        "run ort/cpu fp16",
        "images ort/cpu fp16 8",
        "images ort/cpu fp16 3",
        "images ort/cpu fp16 1",
        f"texts ort/cpu fp16 {4 * CONTEXT} tokens",
        "texts ort/cpu fp16 1",
    ]
    assert {case.arithmetic for case in found.values()} == {"fp32"}
    assert [case.group for case in found.values()] == [
        "cpu run", "cpu images", "cpu images", "cpu images single", "cpu texts", "cpu texts single",
    ]  # fmt: skip
    assert (
        len(found["images ort/cpu fp16 8"].make(20).calls) == 3 and found["images ort/cpu fp16 8"].make(20).amount == 24
    )
    assert len(found["images ort/cpu fp16 1"].make(5).calls) == 5
    single = found["texts ort/cpu fp16 1"].make(6)
    assert len(single.calls) == single.amount == 6


def test_texts_have_their_own_length_or_the_full_one(inputs, engine):
    tokens = named(ort_cases("cpu", engine, inputs, []))[f"texts ort/cpu fp16 {4 * CONTEXT} tokens"].arrays(80)
    assert sum(map(len, tokens)) == 80
    assert len({ids.shape[1] for ids in tokens}) > 1 and max(ids.size for ids in tokens) <= 4 * CONTEXT
    rivals = Rivals("cpu", {"fp32": engine}, [], lambda *_: None, 1)
    padded = named(torch_cases(rivals, inputs))[f"texts torch/cpu fp32 {TORCH_TEXTS}x{CONTEXT}"].arrays(300)
    assert [ids.shape for ids in padded] == [(256, CONTEXT), (44, CONTEXT)]
    ids = sorted(tuple(row[row != 0]) for batch in tokens for row in batch)
    assert ids == sorted(tuple(row[row != 0]) for row in inputs.encoder.pad(inputs.encoder.ids(inputs.texts), CONTEXT))


def test_both_sides_of_a_run_have_the_same_pairs(inputs, engine):
    asked = []

    def released(root, images, table):
        asked.append((root, images, table))
        return lambda: None

    run = named(torch_cases(Rivals("cpu", {"fp32": engine}, [], released, 1), inputs))["run released/cpu fp32"].make(3)
    ours = named(ort_cases("cpu", engine, inputs, []))["run ort/cpu fp16"].make(3)
    ((root, images, table),) = asked
    assert run.amount == ours.amount == len(table)
    assert images["image_id"].to_list() == ["1", "2", "3"] == table["image_id"].unique(maintain_order=True).to_list()
    assert root == inputs.dataset.root and set(table["suite"]) == {"paper"}
    ((shard, scores),) = ours.calls[0]()
    assert shard.rows == len(scores.scores) == len(table)
    assert scores.scores["pair_id"].to_list() == table["pair_id"].to_list()


def test_cases_call_the_towers(inputs, engine):
    """What is timed is the embedding, and nothing else."""
    found = named(ort_cases("cpu", engine, inputs, [8]))
    (first, *_) = found["images ort/cpu fp16 8"].make(8).calls
    np.testing.assert_array_equal(first(), engine.embed_pixels(inputs.pixels[:8]))
    (first, *_) = found["texts ort/cpu fp16 1"].make(1).calls
    ((_, ids),) = engine.batches(inputs.texts[:1])
    np.testing.assert_array_equal(first(), engine.embed_ids(ids))


def test_operations_of_a_case(inputs, engine):
    found, count = named(ort_cases("cpu", engine, inputs, [8])), Operations(inputs.bundle)
    assert count(found["images ort/cpu fp16 8"], 16) == 16 * 2 * 3 * SIZE * SIZE * DIM
    assert count(found["texts ort/cpu fp16 1"], 5) == 0
    assert count(found["run ort/cpu fp16"], 5) is None


def test_operations_are_counted_by_length_and_once(inputs, engine, monkeypatch):
    """One row of each length is run, and counts for all of it."""
    seen = []
    monkeypatch.setattr(cases, "flops", lambda graph, arrays: [seen.append(a.shape) or a.size**2 for a in arrays])
    found, count = named(ort_cases("cpu", engine, inputs, [])), Operations(inputs.bundle)
    lengths = [len(ids) for ids in inputs.encoder.ids(inputs.texts)]
    for case in found.values():
        if case.what == "texts":
            assert count(case, 80) == sum(n**2 for n in lengths)
    assert sorted(seen) == [(1, n) for n in sorted(set(lengths))]
    monkeypatch.setattr(cases, "flops", lambda graph, arrays: [None for _ in arrays])
    assert Operations(inputs.bundle)(case, 80) is None


def test_operations_are_of_the_graph_in_its_precision(coco, tmp_path, monkeypatch):
    bundle = open_bundle(in_precisions(make_bundle(tmp_path / "b"), "fp16", "fp32"))
    inputs, asked = Inputs(bundle, f"coco:{coco}", False, 2, tmp_path), []
    monkeypatch.setattr(cases, "flops", lambda graph, arrays: [asked.append(graph.name) or 1 for _ in arrays])
    engine, count = OrtEngine(bundle, "cpu", 2, precision="fp32"), Operations(bundle)
    for case in [
        *ort_cases("cpu", engine, inputs, [2]),
        *torch_cases(Rivals("cpu", {"fp32": engine}, [], lambda *_: None, 1), inputs),
    ]:
        count(case, 1)
    ours, theirs = {"vision_model.onnx", "text_model.onnx"}, {"vision_model_fp16.onnx", "text_model_fp16.onnx"}
    assert set(asked) == ours | theirs, "PyTorch's towers are counted in the bundle's default"


def test_devices_share_no_work():
    """What a GPU does in a second takes a CPU minutes."""
    cpu, openvino, cuda = (
        Case("images", "ort", key, "fp16", "fp16", lambda n: None, batch=8) for key in ("cpu", "openvino", "cuda")
    )
    assert cpu.group == openvino.group != cuda.group


def test_products_are_cases():
    done = []
    (case,) = roof_cases([Product("numpy", "cpu", "fp32", (2, 3, 4), lambda: done.append(1))])
    work = case.make(5)
    for call in work.calls:
        call()
    assert (len(done), work.amount) == (5, 5 * 48)
    assert case.name == case.group == "roof numpy/cpu fp32 2x3x4" and case.device == "cpu"
