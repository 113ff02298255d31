"""The suites: which perturbations the captions of an image get."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lgip_ort.perturb import flip, paper, paraphrase
from lgip_ort.perturb.caption import Caption
from lgip_ort.perturb.lexicon import Lexicon, standard


class Perturbation(NamedTuple):
    """One rewording or falsification of caption `caption_index`.

    `source_word` stands in the caption where `target_word` stands in `perturbed`; None where no single place was
    changed. The `target_word` of a wrapper is its template. `strength`: how far a flip goes, without any model.
    `verified`: nothing that is known of the image makes the flip true; None where nothing was checked.
    """

    caption_index: int
    kind: str
    family: str
    perturbed: str
    source_word: str | None = None
    target_word: str | None = None
    strength: float | None = None
    verified: bool | None = None


@dataclass(frozen=True)
class ImageCaptions:
    """An image as the suites see it: its captions (index, text), and the object categories annotated in it, if any."""

    image_id: str
    captions: Sequence[tuple[int, str]]
    annotated: frozenset[str] | None = None


@dataclass(frozen=True)
class Options:
    """What a suite can be told: the pool of paraphrases (`paper`), the lexicon (`strict`)."""

    paraphrases: paper.Pool = "wrappers"
    lexicon: Lexicon | None = field(default=None, compare=False)


Suite = Callable[[ImageCaptions, int, Options], Iterator[Perturbation]]


def paper_suite(image: ImageCaptions, seed: int, options: Options) -> Iterator[Perturbation]:
    """The suite of the paper: six paraphrases, at most one flip of colour, count and object each.

    With the advanced pool also the combined pairs, paraphrased and flipped.
    """
    for index, text in image.captions:
        key = (seed, image.image_id, index)
        for new, rule in paper.paraphrases(text, options.paraphrases, key):
            family = "wrapper" if "{}" in rule else rule
            yield Perturbation(index, "paraphrase", family, new, None, rule if family == "wrapper" else None)
        for family, made in paper.flips(text, key):
            yield Perturbation(index, "flip", family, made.text, made.source, made.target)
        if options.paraphrases == "advanced":
            for family, made in paper.combined(text, key):
                yield Perturbation(index, "combined", family, made.text, made.source, made.target)
        yield from _control(index, text)


def strict_suite(image: ImageCaptions, seed: int, options: Options) -> Iterator[Perturbation]:
    """Paraphrases that a careful reader accepts as the same statement, and flips that are false of the image."""
    lexicon = options.lexicon or standard()
    parsed = [Caption(text.strip()) for _, text in image.captions]
    known = flip.known_of(parsed, image.annotated, lexicon)
    for (index, text), caption in zip(image.captions, parsed, strict=True):
        key = (seed, image.image_id, index)
        for family, reword in paraphrase.FAMILIES.items():
            for made in reword(caption, lexicon, (*key, family)):
                if _differs(made.text, text):
                    yield Perturbation(index, "paraphrase", family, made.text, made.source, made.target)
        for family, falsify in flip.FAMILIES.items():
            new = falsify(caption, known, lexicon, (*key, family))
            if new and _differs(new.text, text):
                verified = True if family in flip.CHECKED else None
                yield Perturbation(index, "flip", family, new.text, new.source, new.target, new.strength, verified)
        yield from _control(index, text)


SUITES: dict[str, Suite] = {"paper": paper_suite, "strict": strict_suite}


def _control(index: int, text: str) -> Iterator[Perturbation]:
    """An identity pair beside the first caption of every image: its error is the noise of the engine."""
    if index == 0:
        yield Perturbation(index, "identity", "identity", text)


def _differs(a: str, b: str) -> bool:
    """Whether two texts differ in more than case, white space and final punctuation."""
    return _plain(a) != _plain(b)


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".!?,; ")
