from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil

import pytest
from toy import TEXT, VISION, in_precisions, make_bundle, rehash

from lgip_ort.bundle import PRECISIONS, Bundle, choose_precision, open_bundle, write_bundle, write_manifest
from lgip_ort.errors import UsageFault


@pytest.fixture
def own(toy, tmp_path):
    """A bundle of the test's own."""
    return shutil.copytree(toy, tmp_path / "own")


def edit(folder, change):
    """Apply `change` to the manifest's data."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_manifest_survives_writing_and_reading(toy, tmp_path):
    first = open_bundle(toy)
    copy = shutil.copytree(toy, tmp_path / "copy")
    write_manifest(copy, first.manifest)
    second = open_bundle(copy)
    assert second.manifest == first.manifest
    assert second.sha256 == first.sha256 == hashlib.sha256((toy / "manifest.json").read_bytes()).hexdigest()
    assert first.manifest.graphs[0].inputs[0].shape == ["batch", 3, 8, 8]
    assert first.manifest.weights.revision is None


@pytest.mark.parametrize("name", [VISION, TEXT, "tokenizer.json"])
def test_one_changed_byte_is_refused(own, name):
    path = own / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageFault, match=rf"own/{name}: sha256 \w+\.\.\. found, \w+\.\.\. expected"):
        open_bundle(own)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=2), "format version 2 found, 1 expected"),
        (lambda m: m.pop("format_version"), "format version None found"),
        (lambda m: m.update(format="another"), "not a manifest"),
        (lambda m: m.update(extra=1), "unknown field 'extra'"),
        (lambda m: m["text"].update(extra=1), "text: unknown field 'extra'"),
        (lambda m: m.pop("embedding_dim"), "field 'embedding_dim' is missing"),
        (lambda m: m["text"].pop("pad_id"), "text: field 'pad_id' is missing"),
        (lambda m: m.update(embedding_dim="16"), "embedding_dim: '16' found, int expected"),
        (lambda m: m.update(embedding_dim=True), "embedding_dim: True found, int expected"),
        (lambda m: m["text"].update(lengths="some"), "lengths: 'some' found, one of 'any', 'trained' expected"),
        (lambda m: m["image"].update(resize="crop"), "resize: 'crop' found, one of 'shortest', 'squash' expected"),
        (lambda m: m["image"].update(mean="0.5"), "mean: '0.5' found"),
        (lambda m: m["image"].update(std=[0.5, 0.5, "x"]), r"std\[2\]: 'x' found, float expected"),
        (lambda m: m["graphs"][1].update(opset="18"), r"graphs\[1\]: opset: '18' found, int expected"),
        (lambda m: m["weights"].update(revision=3), "revision: 3 found"),
        (lambda m: m["files"].update({VISION: 5}), f"files.{VISION}: 5 found, str expected"),
        (lambda m: m["files"].pop(TEXT), f"{TEXT} has no sha256"),
        (lambda m: m["files"].pop("tokenizer.json"), "tokenizer.json has no sha256"),
        (lambda m: m["files"].update({"gone.onnx": "0" * 64}), "own/gone.onnx: named by manifest.json, but missing"),
        (lambda m: m["files"].update({"../outside": "0" * 64}), "'../outside' leaves the bundle's folder"),
        (lambda m: m["files"].update({"onnx/../../outside": "0" * 64}), "'onnx/../../outside' leaves"),
        (lambda m: m["files"].update({"/etc/hostname": "0" * 64}), "'/etc/hostname' leaves"),
    ],
)
def test_manifest_that_is_refused(own, change, message):
    edit(own, change)
    (own.parent / "outside").write_text("not of the bundle")
    with pytest.raises(UsageFault, match=message) as fault:
        open_bundle(own)
    assert str(own) in str(fault.value)


@pytest.mark.parametrize("content", ["{", "[]", "3", ""])
def test_file_that_is_no_manifest(own, content):
    (own / "manifest.json").write_text(content)
    with pytest.raises(UsageFault, match=r"manifest\.json: not "):
        open_bundle(own)


def test_folder_without_manifest(tmp_path):
    with pytest.raises(UsageFault, match=rf"{tmp_path}: not a bundle, manifest\.json is missing"):
        open_bundle(tmp_path)


def test_link_that_leaves_the_folder(own):
    outside = own.parent / "elsewhere.json"
    (own / "tokenizer.json").rename(outside)
    (own / "tokenizer.json").symlink_to(outside)
    with pytest.raises(UsageFault, match=r"'tokenizer\.json' leaves the bundle's folder"):
        open_bundle(own)


def test_whole_numbers_are_floats(own):
    rehash(own, image={"mean": [0, 0, 0]})
    assert open_bundle(own).manifest.image.mean == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("there", "default"),
    [
        (["int8", "fp32", "fp16"], "fp16"),
        (["int8", "fp32"], "fp32"),
        (["int8"], "int8"),
    ],
)
def test_graph_of_a_tower(own, there, default):
    bundle = open_bundle(in_precisions(own, *there))
    assert bundle.precisions == [precision for precision in PRECISIONS if precision in there]
    for tower in ("vision", "text"):
        assert bundle.graph(tower) is bundle.graph(tower, default)
        for precision in there:
            found = bundle.graph(tower, precision)
            assert (found.tower, found.precision) == (tower, precision)


def test_both_towers_are_of_one_precision(toy):
    """A precision that one tower lacks is none of the bundle's."""
    manifest = open_bundle(toy).manifest
    vision, text = manifest.graphs
    full = dataclasses.replace(vision, precision="fp32", file="onnx/vision_model.onnx")
    both = Bundle(toy, dataclasses.replace(manifest, graphs=[full, vision, text]), "")
    assert both.precisions == ["fp16"] and both.graph("vision") is vision
    with pytest.raises(UsageFault, match=r"manifest\.json: precision fp16 found, fp32 expected"):
        both.graph("text", "fp32")
    for graphs in ([full, text], [vision], []):
        with pytest.raises(UsageFault, match="no precision that both towers are there in"):
            Bundle(toy, dataclasses.replace(manifest, graphs=graphs), "").graph("vision")


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        ({"source": "random", "name": "seed 7"}, " --weights random --seed=7"),
        ({"source": "path", "name": "/a b/w"}, " --weights '/a b/w'"),
        ({"source": "hub", "name": "someone/toy"}, ""),
    ],
)
def test_a_precision_that_is_missing_says_how_to_add_it(own, weights, options):
    in_precisions(own, "fp32", "fp16")
    rehash(own, weights=weights)
    bundle = open_bundle(own)
    with pytest.raises(UsageFault) as fault:
        bundle.graph("text", "int8")
    command = (
        f"python exporter/export.py --model toy{options} --precision fp16 --precision fp32 --precision int8 --overwrite"
    )
    assert str(fault.value) == f"{own}/manifest.json: precision fp16, fp32 found, int8 expected; to have it: {command}"


def test_precision_that_is_none():
    assert choose_precision("int8") == "int8"
    with pytest.raises(UsageFault, match="unknown precision 'int'; did you mean 'int8'"):
        choose_precision("int")


def test_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), write_bundle(tmp_path / "model", overwrite=False) as work:
        make_bundle(work / "part")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_bundle_before_it(tmp_path):
    make_bundle(tmp_path / "model")
    before = (tmp_path / "model/manifest.json").read_bytes()
    with pytest.raises(ZeroDivisionError), write_bundle(tmp_path / "model", overwrite=True):
        raise ZeroDivisionError
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model/manifest.json").read_bytes() == before


def test_existing_bundle_is_kept_unless_told(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/manifest.json").touch()
    with pytest.raises(UsageFault, match="model exists; --overwrite"), write_bundle(tmp_path / "model", False):
        pytest.fail("nothing may be computed for a place that is taken")
    with write_bundle(tmp_path / "model", overwrite=True) as work:
        (work / "new").touch()
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_only_a_bundle_is_replaced(tmp_path, kind):
    """`--overwrite` is told of a bundle: a folder of other things, a file and a link stay."""
    place = tmp_path / "model"
    if kind == "folder":
        place.mkdir()
        (place / "thesis.txt").touch()
    elif kind == "file":
        place.touch()
    else:
        make_bundle(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageFault, match="is not a bundle's folder"), write_bundle(place, overwrite=True):
        pytest.fail("nothing may be computed")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "model"][kind != "link" :]


@pytest.mark.parametrize("model", ["../../pwned", "/tmp/pwned", "a/b", "", ".."])
def test_model_that_is_no_name(tmp_path, model):
    """It becomes a folder of a run."""
    rehash(make_bundle(tmp_path / "b"), model=model)
    with pytest.raises(UsageFault, match=r"model .* found, letters, digits"):
        open_bundle(tmp_path / "b")


def test_data_without_a_hash(tmp_path):
    folder = make_bundle(tmp_path / "b")
    (folder / "onnx/text_model_fp16.onnx_data").touch()
    with pytest.raises(UsageFault, match=r"text_model_fp16.onnx_data has no sha256"):
        open_bundle(folder)
