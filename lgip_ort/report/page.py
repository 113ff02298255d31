"""A template as a file: everything in it is escaped, and a name that is missing is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from lgip_ort.atomic import replacing


def write_page(template: str, path: Path, **values: Any) -> Path:
    """Fill a template of this folder with `values` and write it to `path`, which is returned."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lgip_ort.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(template).render(values)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path
