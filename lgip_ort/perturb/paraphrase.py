"""Paraphrases: the same statement in other words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lgip_ort.perturb.draw import draw


def wrappers(
    caption: str, templates: Sequence[str], count: int, shortest: int, key: Sequence[object]
) -> Iterator[tuple[str, str]]:
    """`count` drawn wrappings of `caption`, as (text, template).

    The caption goes in untouched but for outer white space. Results under `shortest` characters, duplicates and the
    caption itself are dropped before drawing. `key` is what the draw depends on.
    """
    core = caption.strip()
    made: dict[str, str] = {}
    for template in templates:
        text = template.format(core).strip()
        if len(text) >= shortest and text != core:
            made.setdefault(text, template)
    yield from draw(list(made.items()), count, *key, "wrapper")
