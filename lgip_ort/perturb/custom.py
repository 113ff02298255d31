"""A lexicon of one's own: a TOML file of the lexicon's form, whose entries join or replace the standard ones."""

from __future__ import annotations

import copy
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lgip_ort.errors import UsageFault, did_you_mean
from lgip_ort.perturb.lexicon import Lexicon, standard

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _tuples(size: int) -> Check:
    return lambda value: isinstance(value, list) and all(_texts(v) and len(v) == size for v in value)


def _object(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _text(value.get("group"))
        and _texts(value.get("names"))
        and _texts(value.get("also"))
    )


def _colour(value: Any) -> bool:
    lab = value.get("lab") if isinstance(value, dict) else None
    numbers = (
        isinstance(lab, list) and len(lab) == 3 and all(isinstance(n, int | float) and math.isfinite(n) for n in lab)
    )
    return numbers and _texts(value.get("alike"))


def _phrases(value: Any) -> bool:
    kinds = (None, "@article", "@det", "@noun", "@plural", "@thing")
    return isinstance(value, list) and all(
        isinstance(v, dict)
        and v.keys() <= {"from", "to", "after", "not_before", "head"}
        and _text(v.get("from"))
        and _text(v.get("to"))
        and v.get("after") in kinds
        and _texts(v.get("not_before", []))
        and isinstance(v.get("head", False), bool)
        for v in value
    )


def _templates(value: Any) -> bool:
    return _texts(value) and all(v.count("{") == v.count("}") == v.count("{}") == 1 for v in value)


# Section -> what its entries have to be, in words and as a check; "*" stands for every entry of the section.
FORM: dict[str, dict[str, tuple[str, Check]]] = {
    "objects": {"*": ("{ group = text, names = [texts], also = [texts] }", _object)},
    "colours": {"*": ("{ lab = [L, a, b], alike = [texts] }", _colour)},
    "colour_spellings": {"*": ("a text", _text)},
    "exchange": {
        "same_group": (
            "a table of group = [categories]",
            lambda v: isinstance(v, dict) and all(map(_texts, v.values())),
        ),
        "*": ("a list of categories", _texts),
    },
    "scenes": {"*": ("a list of texts", _texts)},
    "numbers": {"words": ("a list of texts", _texts)},
    "spatial": {"pairs": ("a list of pairs of texts", _tuples(2))},
    "sizes": {"pairs": ("a list of pairs of texts", _tuples(2))},
    "wrappers": {"*": ("a list of texts with one {} each", _templates)},
    "synonyms": {
        "nouns": ("a list of pairs of texts", _tuples(2)),
        "phrases": ("a list of { from = text, to = text, after = @article, @det, @noun, @plural or @thing }", _phrases),
    },
    "fixed": {"expressions": ("a list of texts", _texts)},
    "grammar": {"*": ("a list of texts", _texts)},
    "verbs": {
        "finite": ("a list of texts", _texts),
        "*": ("a table of verb = [third person, -ing form, participle]", lambda v: isinstance(v, dict)),
    },
}


def read_lexicon(path: Path) -> Lexicon:
    """The standard lexicon with the entries of `path`: lists are added to, named entries replace or join.

    Raises UsageFault with the line of the fault.
    """
    try:
        text = path.read_text(encoding="utf-8")
        own = tomllib.loads(text)
    except OSError as error:
        raise UsageFault(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageFault(f"{path}:{line}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line (\d+)", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        raise UsageFault(f"{path}:{line}: {error}") from error
    data = copy.deepcopy(standard().data)
    for section, entries in own.items():
        if section not in FORM:
            near = did_you_mean(section, FORM)
            raise UsageFault(f"{path}:{_line(text, section)}: unknown section {section!r}{near}")
        if not isinstance(entries, dict):
            raise UsageFault(f"{path}:{_line(text, section)}: section [{section}] expected, {entries!r} found")
        for name, value in entries.items():
            _check(path, text, section, name, value, known=data[section])
            _put(data[section], name, value)
    for spelling, colour in data["colour_spellings"].items():
        if colour not in data["colours"]:
            line = _line(text, "colour_spellings", spelling)
            raise UsageFault(f"{path}:{line}: {spelling!r} is a spelling of {colour!r}, which is no colour")
    for name, targets in [*data["exchange"].items(), *data["exchange"]["same_group"].items()]:
        for target in targets if isinstance(targets, list) else ():
            if not data["objects"].get(target, {}).get("names"):
                keys = ("objects", target) if target in own.get("objects", {}) else ("exchange", name)
                raise UsageFault(
                    f"{path}:{_line(text, *keys)}: exchange.{name}: {target!r} is no object that has a name"
                )
    return Lexicon(data)


def _check(path: Path, text: str, section: str, name: str, value: Any, known: dict[str, Any]) -> None:
    form = FORM[section]
    if name not in form and "*" not in form:
        raise UsageFault(f"{path}:{_line(text, section, name)}: unknown entry {name!r}{did_you_mean(name, form)}")
    if section in ("grammar", "wrappers", "verbs", "exchange", "scenes") and name not in known:
        raise UsageFault(f"{path}:{_line(text, section, name)}: unknown entry {name!r}{did_you_mean(name, known)}")
    wanted, check = form.get(name) or form["*"]
    if not check(value):
        raise UsageFault(f"{path}:{_line(text, section, name)}: {section}.{name}: {wanted} expected, {value!r} found")
    if section == "verbs" and isinstance(value, dict):
        for verb, forms in value.items():
            if not (_texts(forms) and len(forms) == 3):
                raise UsageFault(
                    f"{path}:{_line(text, section, name, verb)}: verbs.{name}.{verb}: "
                    f"[third person, -ing form, participle] expected, {forms!r} found"
                )


def _put(section: dict[str, Any], name: str, value: Any) -> None:
    old = section.get(name)
    if isinstance(value, list) and isinstance(old, list):
        section[name] = [*old, *(v for v in value if v not in old)]
    elif isinstance(value, dict) and isinstance(old, dict) and not {"group", "lab"} & value.keys():
        section[name] = old | value
    else:
        section[name] = value


def _line(text: str, *keys: str) -> int:
    """The line of the last of nested `keys`, each looked for from the one before on; what is not found is passed."""
    lines, at = text.splitlines(), 0
    for key in keys:
        name = rf"(?<![\w-]){re.escape(key)}[\"']?\s*"
        stands = re.compile(rf"^\s*\[[^=,]*{name}(\.[^=,]*)?\]\s*(#.*)?$|^[^#]*{name}(\.[^=,\[\]]*)?=")
        at = next((i for i in range(at, len(lines)) if stands.match(lines[i])), at)
    return at + 1
