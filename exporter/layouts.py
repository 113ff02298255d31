"""Which files of a folder are the two towers: the layouts that other exporters write, as data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lgip_ort.bundle import Precision
from lgip_ort.errors import UsageFault

FORMS: dict[str, Precision | None] = {
    "": None,
    "fp32": "fp32",
    "fp16": "fp16",
    "int8": "int8",
    "quantized": "int8",
}
"""What the end of a file name says of the precision; None: nothing. Of two that say the same the first is taken."""

FORM = r"(?:_(?P<form>[a-z0-9]+))?"
KNOWN_FORM = rf"(?:[_.-](?P<form>{'|'.join(filter(None, FORMS))}))?"


@dataclass(frozen=True)
class Layout:
    """Paths of the graphs below a folder, as regular expressions; `vision` and `text` are equal where one graph has
    both towers. The group `form` is the end of the name; towers with the same one belong together."""

    name: str
    vision: str
    text: str


LAYOUTS = (
    Layout(
        "transformers.js: onnx/vision_model*.onnx, onnx/text_model*.onnx",
        rf"onnx/vision_model{FORM}\.onnx",
        rf"onnx/text_model{FORM}\.onnx",
    ),
    Layout("two folders: visual/model.onnx, textual/model.onnx", r"visual/model\.onnx", r"textual/model\.onnx"),
    Layout(
        "two files: *vision*, *visual* or *image*.onnx, and *text*.onnx",
        rf"(?=[^/]*(?:vision|visual|image))(?![^/]*text)[^/]*?{KNOWN_FORM}\.onnx",
        rf"(?=[^/]*text)(?![^/]*(?:vision|visual|image))[^/]*?{KNOWN_FORM}\.onnx",
    ),
    Layout("Optimum: one graph, model.onnx", rf"model{FORM}\.onnx", rf"model{FORM}\.onnx"),
    Layout("one graph, onnx/model.onnx", rf"onnx/model{FORM}\.onnx", rf"onnx/model{FORM}\.onnx"),
)
"""In the order in which they are looked for; the first that has both towers is taken."""


@dataclass(frozen=True)
class TowerFiles:
    """The graphs of both towers in one precision, the same file twice where one graph has both.

    `precision`: what the names say, None where they say nothing.
    """

    vision: Path
    text: Path
    precision: Precision | None


@dataclass(frozen=True)
class Found:
    """`layout`: the name of the layout; `passed_over`: a line for every graph that is not taken, with the reason."""

    layout: str
    pairs: list[TowerFiles]
    passed_over: list[str]


def find_towers(folder: Path) -> Found:
    """The graphs in `folder` and one level below it.

    Raises UsageFault where `folder` is no folder; where no layout fits, with what was found; where more than one file
    could be the same tower; and where a graph is a link that leads out of the folder.
    """
    if not folder.is_dir():
        raise UsageFault(f"{folder}: no such folder; a folder with ONNX graphs is expected")
    names = sorted(p.relative_to(folder).as_posix() for p in [*folder.glob("*.onnx"), *folder.glob("*/*.onnx")])
    for layout in LAYOUTS:
        vision, text = (_by_form(names, pattern) for pattern in (layout.vision, layout.text))
        pairs: dict[str, tuple[str, str]] = {}
        for form in vision.keys() & text.keys():
            for several in (vision[form], text[form]):
                if len(several) > 1:
                    raise UsageFault(f"{folder}: {' and '.join(several)} found, one of them expected")
            pairs[form] = vision[form][0], text[form][0]
        if pairs:
            return _choose(folder, layout, names, pairs)
    known = "".join(f"\n  {layout.name}" for layout in LAYOUTS)
    raise UsageFault(f"{folder}: {_listed(names)} found, one of these layouts expected:{known}")


def inside(folder: Path, file: Path) -> Path:
    """`file`, which must not leave `folder`, links followed. Raises UsageFault naming where it leads."""
    target = file.resolve()
    if not target.is_relative_to(folder.resolve()):
        raise UsageFault(f"{file} leads to {target}, out of the folder; copy the export with its links followed")
    return file


def _by_form(names: Sequence[str], pattern: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if match := re.fullmatch(pattern, name, re.IGNORECASE):
            found.setdefault((match.groupdict().get("form") or "").lower(), []).append(name)
    return found


def _choose(folder: Path, layout: Layout, names: Sequence[str], pairs: dict[str, tuple[str, str]]) -> Found:
    taken: list[TowerFiles] = []
    used: set[str] = set()
    reasons: dict[str, str] = {}
    for form in sorted(pairs, key=lambda form: ([*FORMS].index(form) if form in FORMS else len(FORMS), form)):
        precision = FORMS.get(form)
        if form not in FORMS:
            reason = f"{form} is none of {', '.join(filter(None, FORMS))}"
        elif precision is not None and precision in [pair.precision for pair in taken]:
            reason = f"there is another graph in {precision}"
        else:
            vision, text = (inside(folder, folder / name) for name in pairs[form])
            taken.append(TowerFiles(vision, text, precision))
            used.update(pairs[form])
            continue
        reasons |= dict.fromkeys(pairs[form], reason)
    if not taken:
        raise UsageFault(f"{folder}: {_listed(names)} found, fp32, fp16 or int8 expected")
    other = "it is not part of the layout, or has no other tower beside it"
    lines = [f"{name}: passed over, {reasons.get(name, other)}" for name in names if name not in used]
    return Found(layout.name, taken, lines)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return shown or "no .onnx file"
