"""A template of this folder, filled: everything in it is escaped, and a name that is missing is an error."""

from __future__ import annotations

from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
    """The page that `template` makes of `values`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lgip_ort.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)
