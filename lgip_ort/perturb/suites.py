"""The suites: which perturbations a caption gets."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from lgip_ort.perturb.flip import word_flip
from lgip_ort.perturb.paraphrase import wrappers


class Perturbation(NamedTuple):
    """One rewording or falsification. `source_word` is None where nothing was exchanged; the `target_word` of a
    wrapper is its template."""

    kind: str
    family: str
    perturbed: str
    source_word: str | None
    target_word: str | None


def paper(image_id: str, caption_index: int, caption: str, seed: int) -> Iterator[Perturbation]:
    """The suite of the paper: six wrappers, and at most one flip of colour, count and object each.

    An identity pair beside the first caption of every image is the control: its error is the noise of the engine.
    """
    rules = _rules()
    key = (seed, image_id, caption_index)
    for text, template in wrappers(caption, rules["wrappers"], rules["wrappers_drawn"], rules["shortest"], key):
        yield Perturbation("paraphrase", "wrapper", text, None, template)
    for family, words in rules["flips"].items():
        if flipped := word_flip(caption, words, rules["shortest"], (*key, family)):
            text, source, target = flipped
            yield Perturbation("flip", family, text, source, target)
    if caption_index == 0:
        yield Perturbation("identity", "identity", caption, None, None)


SUITES: dict[str, Callable[[str, int, str, int], Iterator[Perturbation]]] = {"paper": paper}


@cache
def _rules() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("paper.toml").read_text(encoding="utf-8"))
