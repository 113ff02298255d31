"""Which files of a folder are taken for the two towers, and what is said about the others."""

from __future__ import annotations

import pytest

from exporter.layouts import FORMS, LAYOUTS, find_towers
from lgip_ort.errors import UsageFault


def _make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def _pairs(folder):
    """vision, text and precision of every pair, paths relative to the folder."""
    found = find_towers(folder)
    return [
        (p.vision.relative_to(folder).as_posix(), p.text.relative_to(folder).as_posix(), p.precision)
        for p in found.pairs
    ]


@pytest.mark.parametrize(
    ("names", "layout", "pairs"),
    [
        (
            ["onnx/vision_model.onnx", "onnx/text_model.onnx"],
            "transformers.js",
            [("onnx/vision_model.onnx", "onnx/text_model.onnx", None)],
        ),
        (
            ["onnx/vision_model_quantized.onnx", "onnx/text_model_quantized.onnx"],
            "transformers.js",
            [("onnx/vision_model_quantized.onnx", "onnx/text_model_quantized.onnx", "int8")],
        ),
        (["clip_visual.onnx", "clip_textual.onnx"], "two files", [("clip_visual.onnx", "clip_textual.onnx", None)]),
        (["ImageEncoder.onnx", "TextEncoder.onnx"], "two files", [("ImageEncoder.onnx", "TextEncoder.onnx", None)]),
        (
            ["b16-image-fp16.onnx", "b16-text-fp16.onnx", "b16-image.fp32.onnx", "b16-text.fp32.onnx"],
            "two files",
            [
                ("b16-image.fp32.onnx", "b16-text.fp32.onnx", "fp32"),
                ("b16-image-fp16.onnx", "b16-text-fp16.onnx", "fp16"),
            ],
        ),
        (
            ["visual/model.onnx", "textual/model.onnx"],
            "two folders",
            [("visual/model.onnx", "textual/model.onnx", None)],
        ),
        (["model.onnx", "readme.md"], "Optimum", [("model.onnx", "model.onnx", None)]),
        (["onnx/model_fp16.onnx"], "one graph", [("onnx/model_fp16.onnx", "onnx/model_fp16.onnx", "fp16")]),
    ],
)
def test_layouts(names, layout, pairs, tmp_path):
    _make(tmp_path, *names)
    found = find_towers(tmp_path)
    assert found.layout.startswith(layout) and found.passed_over == []
    assert _pairs(tmp_path) == pairs


def test_every_known_precision_is_taken_and_the_rest_is_named(tmp_path):
    forms = ["", "_fp16", "_int8", "_quantized", "_q4", "_q4f16", "_bnb4", "_uint8"]
    _make(tmp_path, *(f"onnx/{tower}_model{form}.onnx" for tower in ("vision", "text") for form in forms))
    _make(tmp_path, "onnx/model.onnx", "onnx/vision_model_fp32.onnx", "onnx/vision_model_fp16.onnx_data")
    assert _pairs(tmp_path) == [
        (f"onnx/vision_model{form}.onnx", f"onnx/text_model{form}.onnx", precision)
        for form, precision in (("", None), ("_fp16", "fp16"), ("_int8", "int8"))
    ]
    lines = find_towers(tmp_path).passed_over
    assert len(lines) == 12
    assert "onnx/text_model_quantized.onnx: passed over, there is another graph in int8" in lines
    assert "onnx/vision_model_q4f16.onnx: passed over, q4f16 is none of fp32, fp16, int8, quantized" in lines
    assert "onnx/model.onnx: passed over, it is not part of the layout, or has no other tower beside it" in lines
    assert any(line.startswith("onnx/vision_model_fp32.onnx: passed over, ") for line in lines)


def test_a_tower_without_the_other_is_no_layout_and_a_later_layout_is_taken(tmp_path):
    _make(tmp_path, "onnx/vision_model.onnx", "model.onnx", "image_a.onnx", "image_b.onnx")
    assert _pairs(tmp_path) == [("model.onnx", "model.onnx", None)]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["encoder.onnx", "decoder.onnx"], "decoder.onnx, encoder.onnx found"),
        ([], "no .onnx file found"),
        (["onnx/text_model.onnx"], "onnx/text_model.onnx found"),
        (["deep/er/vision.onnx", "deep/er/text.onnx"], "no .onnx file found"),
        ([f"part{i:02}.onnx" for i in range(12)], "part09.onnx and 2 more found"),
    ],
)
def test_unknown_layouts_are_refused_with_what_was_found_and_what_is_known(names, found, tmp_path):
    _make(tmp_path, *names)
    with pytest.raises(UsageFault) as fault:
        find_towers(tmp_path)
    assert found in str(fault.value)
    for layout in LAYOUTS:
        assert layout.name in str(fault.value)


def test_precisions_that_are_not_known_alone_are_refused(tmp_path):
    _make(tmp_path, "onnx/vision_model_q4.onnx", "onnx/text_model_q4.onnx")
    with pytest.raises(
        UsageFault, match=r"text_model_q4\.onnx, onnx/vision_model_q4\.onnx found, fp32, fp16 or int8 expected"
    ):
        find_towers(tmp_path)
    assert "q4" not in FORMS


def test_two_files_for_one_tower_are_refused(tmp_path):
    _make(tmp_path, "a_vision.onnx", "b_vision.onnx", "text.onnx")
    with pytest.raises(UsageFault, match=r"a_vision\.onnx and b_vision\.onnx found, one of them expected"):
        find_towers(tmp_path)


def test_no_folder(tmp_path):
    for path in (tmp_path / "nothing", _make(tmp_path, "model.onnx") / "model.onnx"):
        with pytest.raises(UsageFault, match="no such folder"):
            find_towers(path)


def test_links_that_stay_are_followed_and_links_that_leave_are_refused(tmp_path):
    _make(tmp_path, "export/blobs/one", "elsewhere.onnx")
    folder = tmp_path / "export"
    (folder / "model.onnx").symlink_to("blobs/one")
    assert _pairs(folder) == [("model.onnx", "model.onnx", None)]
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to("../elsewhere.onnx")
    with pytest.raises(UsageFault, match=rf"model\.onnx leads to {tmp_path}/elsewhere\.onnx, out of the folder"):
        find_towers(folder)
