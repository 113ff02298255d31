"""PyTorch as it is measured: the same vectors as the original's, and the released scripts' way of calling it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the exporter's dependencies are not installed")

from checkpoints import exported, open_clip_spec  # noqa: E402

from exporter import rivals as module  # noqa: E402
from exporter.reference import TorchEngine  # noqa: E402
from exporter.rivals import Rival, as_released, products, rivals  # noqa: E402
from lgip_ort.bundle import open_bundle  # noqa: E402
from lgip_ort.engine import OrtEngine  # noqa: E402
from lgip_ort.score import Local  # noqa: E402
from lgip_ort.speed import roof  # noqa: E402
from lgip_ort.speed.cases import Inputs  # noqa: E402
from lgip_ort.speed.roof import operands  # noqa: E402
from models import zoo  # noqa: E402


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Products that take no time."""
    monkeypatch.setitem(roof.SHAPES, "cpu", ((6, 8, 10),))


def some(bundle, n=3):
    """Pixels and ids of a full length."""
    rng, manifest = np.random.default_rng(0), bundle.manifest
    pixels = rng.normal(size=(n, 3, manifest.image.size, manifest.image.size)).astype(np.float32)
    ids = np.full((n, manifest.text.context_length), manifest.text.pad_id)
    ids[:, :4] = rng.integers(3, 20, (n, 4))
    ids[:, 4] = manifest.text.eot_id
    return pixels, ids


@pytest.mark.parametrize("kind", ["tiny_clip", "tiny_siglip", "open_clip"])
def test_every_rival_is_the_original(kind, tmp_path, monkeypatch):
    known = zoo.load()
    monkeypatch.setattr(zoo, "load", lambda: {**known, "toy_open_clip": open_clip_spec(tmp_path)})
    bundle = open_bundle(exported(kind)[0])
    original, found = TorchEngine.from_bundle(bundle, 4, "cpu"), rivals(bundle, "cpu")
    assert list(found.engines) == ["fp32", "bf16"] and found.threads == torch.get_num_threads()
    pixels, ids = some(bundle)
    for precision, least in (("fp32", 0.99999), ("bf16", 0.98)):
        engine = found.engines[precision]
        assert engine.stamp.precision == {"asked": "fp32", "executed": precision}
        for a, b in (
            (engine.embed_pixels(pixels), original.embed_pixels(pixels)),
            (engine.embed_ids(ids), original.embed_ids(ids)),
        ):
            assert a.dtype == np.float32 and a.shape == b.shape
            assert (a * b).sum(1).min() / np.linalg.norm(a, axis=1).max() > least
    assert (found.engines["bf16"].embed_pixels(pixels) != found.engines["fp32"].embed_pixels(pixels)).any()


def test_weights_are_in_the_precision_that_is_named():
    found = rivals(open_bundle(exported("tiny_clip")[0]), "cpu").engines
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = found[name]._original.model
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert model.config._attn_implementation == "sdpa", "what the library chooses where nobody asks"


def test_compiled_towers(monkeypatch):
    """Every tower goes through torch.compile; the compiler itself takes half a minute, and is not ours."""
    compiled = []

    def compile_(part, **options):
        compiled.append((type(part).__name__, options))

    monkeypatch.setattr(torch.nn.Module, "compile", compile_)
    bundle = open_bundle(exported("tiny_clip")[0])
    plain = Rival.from_bundle(bundle, 4, "cpu")
    assert compiled == []
    made = plain.cast("bf16", torch.bfloat16, compiled=True)
    assert compiled == [("CLIPVisionTransformer", {"dynamic": False}), ("CLIPTextTransformer", {"dynamic": False})]
    assert made.stamp.precision["executed"] == "bf16"


def test_open_clip_s_towers_have_other_names(tmp_path):
    from exporter.load import load_original

    model = load_original(open_clip_spec(tmp_path), "random").model
    assert [name for name in module.TOWERS if isinstance(getattr(model, name, None), torch.nn.Module)] == [
        "visual",
        "transformer",
    ]


class Recorded:
    """An engine that writes down every call."""

    def __init__(self, engine):
        self.engine, self.calls = engine, []
        self.pixels, self.batches = engine.pixels, engine.batches

    def embed_pixels(self, pixels):
        self.calls.append(("images", len(pixels)))
        return self.engine.embed_pixels(pixels)

    def embed_ids(self, ids):
        self.calls.append(("texts", *ids.shape))
        return self.engine.embed_ids(ids)


@pytest.mark.parametrize("kind", ["tiny_clip", "tiny_siglip"])
def test_released_scripts_score_the_same_pairs(kind, coco, tmp_path):
    bundle = open_bundle(exported(kind)[0])
    dataset, stored = Inputs(bundle, f"coco:{coco}", False, 2, tmp_path).table(3)
    table = stored.scan().collect()
    engine = Recorded(Rival.from_bundle(bundle, 256, "cpu"))
    pairs = as_released(engine, dataset.root, dataset.images, table)()

    ours = Local(OrtEngine(bundle, "cpu"))
    ((_, shard),) = ours.score(dataset.root, list(stored.shards(512)), stored.pairs, 0.0, lambda *_: None)
    expected = {key: (s, t) for key, s, t in shard.scores.select("pair_id", "s", "s_perturbed").iter_rows()}
    assert {key for key, _, _ in pairs} == set(expected) and len(pairs) == len(table)
    found = np.array([(s, t) for _, s, t in pairs])
    np.testing.assert_allclose(found, [expected[key] for key, _, _ in pairs], atol=2e-3)

    length = bundle.manifest.text.context_length
    calls = []
    for image in ("1", "2", "3"):
        calls += [("images", 1), ("texts", 2, length)]
        for caption in (0, 1):
            counts = table.filter(image_id=image, caption_index=caption)["kind"].value_counts()
            calls += [("texts", n, length) for n in counts.filter(kind="paraphrase")["count"]]
            calls += [("texts", n, length) for n in counts.filter(kind="flip")["count"]]
            calls += [("texts", 1, length)] * (caption == 0)  # the control
    assert engine.calls == calls


def test_an_image_without_a_pair(coco, tmp_path):
    bundle = open_bundle(exported("tiny_clip")[0])
    dataset, stored = Inputs(bundle, f"coco:{coco}", False, 2, tmp_path).table(1)
    engine = Recorded(Rival.from_bundle(bundle, 256, "cpu"))
    assert as_released(engine, dataset.root, dataset.images, stored.scan().collect().clear())() == []
    assert engine.calls == [("images", 1)]


def test_products_multiply():
    fp32, bf16 = products("cpu")
    assert [(p.engine, p.provider, p.precision, p.shape) for p in (fp32, bf16)] == [
        ("torch", "cpu", "fp32", (6, 8, 10)),
        ("torch", "cpu", "bf16", (6, 8, 10)),
    ]
    a, b = operands((6, 8, 10))
    for product, tolerance in ((fp32, 1e-5), (bf16, 0.05)):
        product.call()
        np.testing.assert_allclose(product.call.args[2].float().numpy(), a @ b, atol=tolerance)
