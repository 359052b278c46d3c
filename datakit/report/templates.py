"""Renders the Jinja2 templates of reports and of `datakit serve`: escapes each value, and formats numbers by their kind
(a count, a size or a duration, for example).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from datakit.printable import printable
from datakit.redaction import redacted
from datakit.report.text_forms import text_of

FOLDER = "assets"


@cache
def environment(package: str) -> Any:
    """Return the Jinja2 environment of a package's templates, which are in its folder `assets`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=PackageLoader(package, FOLDER), autoescape=select_autoescape(["jinja"], default=True),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_safe,
    )  # fmt: skip
    made.filters["form"] = text_of
    return made


def _safe(value: Any) -> Any:
    """Return a text without secrets and with its unsafe characters escaped. Any other value, including markup, is
    returned as it is.
    """
    return printable(redacted(value)) if type(value) is str else value


@cache
def asset(package: str, name: str) -> str:
    """Return the text of a file in a package's folder `assets`."""
    return (files(package) / FOLDER / name).read_text("utf-8")
