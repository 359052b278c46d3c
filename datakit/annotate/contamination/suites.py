"""Names the columns that hold the texts of common evaluation suites, so that a recipe need not list them. The files
themselves are the user's. The table is `suites.toml`, and docs/annotate/contamination.md shows it.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import NamedTuple

from datakit.errors import suggestion

TABLE = Path(__file__).with_name("suites.toml")


class Suite(NamedTuple):
    """The columns of a suite, and its name on the Hugging Face Hub."""

    columns: tuple[str, ...]
    hub: str


@functools.cache
def suites() -> dict[str, Suite]:
    """Return all suites, by name."""
    tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Suite(tuple(table["columns"]), table["hub"]) for name, table in tables.items()}


def columns_of(name: str) -> tuple[str, ...]:
    """Return the columns of a suite. Raises ValueError if there is no such suite."""
    if name not in suites():
        raise ValueError(f"suite is {name!r}, which datakit does not know; {suggestion(name, suites())}")
    return suites()[name].columns
