from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from made import make_run, make_table
from PIL import Image

from lgip_ort.blame import TEXTS, Step, _same_but_padding, blame, find

RNG = np.random.default_rng(0)
PATCH = RNG.normal(size=(12, 8)).astype(np.float32)
WORD = RNG.normal(size=(256, 8)).astype(np.float32)
TEXT = ["a red bus", "two dogs", "cat", "the sky is blue today"]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Sound:
    """A dual encoder of letters and of 2 x 2 pixels; a subclass is damaged in one place."""

    dim = 8
    batch_size = 3
    length = 32
    pad = 0

    def pixels(self, image: Image.Image) -> np.ndarray:
        return np.asarray(image.convert("RGB").resize((2, 2)), np.float32).transpose(2, 0, 1) / 255

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        return unit(pixels.reshape(len(pixels), -1) @ PATCH)

    def ids(self, text: str) -> list[int]:
        return [*text.encode(), 1]

    def batches(self, texts: Sequence[str], pad_to: int | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        for start in range(0, len(texts), self.batch_size):
            rows = list(range(start, min(len(texts), start + self.batch_size)))
            ids = [self.ids(texts[row]) for row in rows]
            length = self.length or max(map(len, ids))
            yield rows, np.array([[*i, *[self.pad] * (length - len(i))] for i in ids], np.int64)

    def embed_ids(self, ids: np.ndarray) -> np.ndarray:
        """What follows the end of the text, 1, is not seen."""
        seen = np.cumsum(ids == 1, axis=1) - (ids == 1) == 0
        return unit((WORD[ids] * seen[..., None]).sum(axis=1))


class SeesPadding(Sound):
    def embed_ids(self, ids):
        return unit(WORD[ids].sum(axis=1))


class Bgr(Sound):
    def pixels(self, image):
        return super().pixels(image)[::-1].copy()


class OtherPixels(Sound):
    """By less than anybody would see."""

    def pixels(self, image):
        return super().pixels(image) + np.float32(1e-6)


class Larger(Sound):
    def pixels(self, image):
        return np.zeros((3, 4, 4), np.float32)


class LowerCase(Sound):
    def ids(self, text):
        return super().ids(text.upper())


class WrongPad(SeesPadding):
    pad = 7


class ToTheLongest(Sound):
    length = 0


class WrongVision(Sound):
    def embed_pixels(self, pixels):
        return super().embed_pixels(pixels)[:, ::-1].copy()


class WrongText(Sound):
    def embed_ids(self, ids):
        return super().embed_ids(ids)[:, ::-1].copy()


class NotNormalised(Sound):
    def embed_ids(self, ids):
        return super().embed_ids(ids) * 3


class Noisy(Sound):
    """What else is in the batch moves it, as in dynamic quantisation."""

    def embed_ids(self, ids):
        return unit(super().embed_ids(ids) + 0.02 * np.float32(ids.shape[1] % 7 + len(ids)) * WORD[9])


class Narrow(Sound):
    def embed_pixels(self, pixels):
        return unit(super().embed_pixels(pixels)[:, :4])


@pytest.fixture
def paths(tmp_path):
    out = []
    for n in range(5):
        out.append(tmp_path / f"{n}.png")
        Image.fromarray(np.random.default_rng(n).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(out[-1])
    return out


def blamed(steps):
    return {step.step for step in steps if step.to_blame}


def test_nothing_to_blame(paths):
    steps = blame(Sound(), Sound(), paths, TEXT)
    assert [(s.tower, s.step, s.compared, s.differing) for s in steps] == [
        ("image", "pixels", 5, 0.0),
        ("image", "vision graph", 5, 0.0),
        ("text", "tokens", 4, 0.0),
        ("text", "text graph", 4, 0.0),
    ]
    assert blamed(steps) == set()
    assert steps[0].found == "equal, bit for bit"
    assert steps[2].found == "equal"
    assert [s.cosine_min for s in steps] == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(
    ("reference", "candidate", "step"),
    [
        (Sound, Bgr, "pixels"),
        (Sound, Larger, "pixels"),
        (Sound, WrongVision, "vision graph"),
        (Sound, Narrow, "vision graph"),
        (Sound, LowerCase, "tokens"),
        (SeesPadding, WrongPad, "tokens"),
        (Sound, WrongText, "text graph"),
        (Sound, SeesPadding, "text graph"),
        (Sound, NotNormalised, "normalisation"),
        (Sound, Noisy, "text graph"),
    ],
)
def test_the_step_is_found(paths, reference, candidate, step):
    """One step is damaged, one is to blame: the others are given the reference's inputs."""
    assert blamed(blame(reference(), candidate(), paths, TEXT)) == {step}


@pytest.mark.parametrize("harmless", [OtherPixels, ToTheLongest])
def test_what_changes_nothing_is_not_to_blame(paths, harmless):
    steps = blame(Sound(), harmless(), paths, TEXT)
    assert blamed(steps) == set()
    if harmless is OtherPixels:
        assert (steps[0].differing, steps[0].found) == (1.0, "largest difference 1.01e-06")


def test_what_was_found_in_words(paths):
    def words(reference, candidate, step):
        (found,) = [s.found for s in blame(reference(), candidate(), paths, TEXT) if s.step == step]
        return found

    assert words(Sound, LowerCase, "tokens").startswith("the first is 'a red bus': 65 32 82 69 68 32 66 85 83 1 0")
    assert (
        words(SeesPadding, WrongPad, "tokens") == "equal but for padding: 32 ids ending in 7, 32 ending in 0 expected"
    )
    assert words(Sound, Larger, "pixels") == "3 x 4 x 4 values an image, 3 x 2 x 2 expected"
    assert words(Sound, Narrow, "vision graph") == "4 values an embedding, 8 expected"
    assert words(Sound, NotNormalised, "normalisation") == "norms from 3 to 3, 1 expected"


def test_inputs_are_not_blamed_for_an_unsteady_graph(paths):
    """Other lengths move a graph that is moved by everything; the same ids one by one move it as much."""

    class Both(ToTheLongest):
        def embed_ids(self, ids):
            return unit(super().embed_ids(ids) + 0.05 * WORD[(7 * ids.shape[1] + len(ids)) % 256])

    steps = {s.step: s for s in blame(Sound(), Both(), paths, TEXT)}
    assert steps["tokens"].cost > max(1e-5, 0.1 * steps["text graph"].cost)
    assert steps["tokens"].noise > steps["tokens"].cost / 2
    assert blamed(steps.values()) == {"text graph"}


def test_a_small_share_of_the_loss_is_not_to_blame(paths):
    class Hardly(WrongText):
        def pixels(self, image):
            return super().pixels(image) * np.array([1.02, 1, 1], np.float32)[:, None, None]

    steps = {s.step: s for s in blame(Sound(), Hardly(), paths, TEXT)}
    assert 1e-5 < steps["pixels"].cost < 0.1 * steps["text graph"].cost
    assert blamed(steps.values()) == {"text graph"}


def test_a_vector_of_no_length_costs_all(paths):
    class Dead(Sound):
        def embed_pixels(self, pixels):
            return np.zeros((len(pixels), 8), np.float32)

    (step,) = [s for s in blame(Sound(), Dead(), paths, TEXT) if s.step == "vision graph"]
    assert (step.cosine_mean, step.differing, step.to_blame) == (0.0, 1.0, True)


def test_unreadable_images_and_no_texts(paths, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"none")
    steps = blame(Sound(), Sound(), [broken, *paths[:2]], [])
    assert [(s.step, s.compared) for s in steps] == [("pixels", 2), ("vision graph", 2)]
    assert blame(Sound(), Sound(), [broken], []) == []


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([5, 6, 1, 0, 0], [5, 6, 1, 0, 0], True),
        ([5, 6, 1, 0, 0], [5, 6, 1], True),
        ([5, 6, 1, 0, 0], [5, 6, 1, 1, 1], True),
        ([5, 6, 1, 1, 1], [5, 6, 1], True),
        ([5, 6, 1, 0, 0], [5, 6, 0, 0, 0], False),  # the end of the text is missing
        ([5, 6, 1, 0, 0], [5, 7, 1, 0, 0], False),
        ([5, 6, 1], [5, 6, 2], False),
        ([5, 6, 1], [5, 6], True),  # cut where the text ended: what is missing could be padding
        ([5, 6, 7, 1], [5, 6], False),
    ],
)
def test_same_but_padding(a, b, same):
    for one, other in ((a, b), (b, a)):
        assert _same_but_padding(np.array(one), np.array(other)) is same


def test_sample_of_a_run(tmp_path, paths):
    """Captions and what was made of them, of images that are where the run found them."""
    rows = [(path.stem, "flip", "colour") for path in paths] * 40
    table = make_table(rows)
    stamp = {"dataset": {"name": "made", "hash": "3" * 64, "root": str(tmp_path)}}
    run = make_run(tmp_path / "run", table, [0.5] * 200, [0.4] * 200, **stamp)
    table.select("image_id").unique().sort("image_id").with_columns(
        path=table.select("image_id").unique().sort("image_id")["image_id"] + ".png"
    ).write_parquet(run.folder / "images.parquet")
    steps = find(Sound(), Sound(), run)
    assert [(s.step, s.compared) for s in steps] == [
        ("pixels", 5), ("vision graph", 5), ("tokens", TEXTS), ("text graph", TEXTS),
    ]  # fmt: skip


def test_cost():
    step = Step("text", "tokens", 4, 0.5, 0.75, 0.1, "x")
    assert step.cost == 0.25
    assert Step("text", "tokens", 4, 0.5, None, None, "x").cost == 1.0
    assert Step("text", "tokens", 4, 0.0, None, None, "x").cost == 0.0
