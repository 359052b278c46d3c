"""Writes the list of modules in docs/design.md from their docstrings: `python -m tests.support.module_index`."""

from __future__ import annotations

import ast
import re
from itertools import groupby
from pathlib import Path

from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "design.md"
HEADING = "## Modules\n"
INTRODUCTION = """
This list holds the first sentence of each module's docstring; `python -m tests.support.module_index` writes it.
"""


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[.])\s+(?=[A-Z`])", paragraph)[0].rstrip(".:")


def index() -> str:
    """Return the list in Markdown: one table per folder, one row per module that has content."""
    package = REPOSITORY / "datakit"
    files = sorted(package.rglob("*.py"), key=lambda path: (path.parent.parts, path.name))
    parts = []
    for folder, modules in groupby(files, key=lambda path: path.parent):
        rows = [f"| `{path.name}` | {first_sentence(path)} |" for path in modules if path.name != "__init__.py"]
        if rows:
            name = folder.relative_to(REPOSITORY).as_posix()
            parts.append("\n".join([f"\n| `{name}/` | |", "|---|---|", *rows, ""]))
    return HEADING + INTRODUCTION + "".join(parts)


def written() -> str:
    """Return the list that the page has now."""
    _, heading, rest = PAGE.read_text().partition(HEADING)
    return heading + rest


if __name__ == "__main__":
    before, _, _ = PAGE.read_text().partition(HEADING)
    PAGE.write_text(before.rstrip("\n") + "\n\n" + index())
