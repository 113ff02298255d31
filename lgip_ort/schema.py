"""Data as read from JSON, checked against the dataclasses that say what it must be."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal

from lgip_ort.errors import UsageFault


def build(kind: Any, data: Any, where: str) -> Any:
    """`data`, as read from JSON, as an instance of the annotated type `kind`.

    `where`: what the data is, for messages. Raises UsageFault naming the field, what was found and what was expected.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        hints = typing.get_type_hints(kind)
        known = {f.name: f for f in dataclasses.fields(kind)}
        if unknown := sorted(set(data) - set(known)):
            raise UsageFault(f"{where}: unknown field {unknown[0]!r}")
        for name, f in known.items():
            required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
            if required and name not in data:
                raise UsageFault(f"{where}: field {name!r} is missing")
        return typing.cast(Any, kind)(**{n: build(hints[n], v, f"{where}: {n}") for n, v in data.items()})
    if origin is list and isinstance(data, list):
        return [build(args[0], item, f"{where}[{i}]") for i, item in enumerate(data)]
    if origin is dict and isinstance(data, dict):
        return {key: build(args[1], value, f"{where}.{key}") for key, value in data.items()}
    if origin is Literal and data in args:
        return data
    if origin in (typing.Union, types.UnionType):
        for arg in args:
            if isinstance(data, arg):
                return data
    if kind is Any or (isinstance(kind, type) and isinstance(data, kind) and not isinstance(data, bool)):
        return data
    if kind is float and isinstance(data, int):
        return float(data)
    expected = f"one of {', '.join(map(repr, args))}" if origin is Literal else str(getattr(kind, "__name__", kind))
    raise UsageFault(f"{where}: {data!r} found, {expected} expected")
