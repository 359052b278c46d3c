"""Defines types of options: `Flag` for switches, `Settings` for `--set`, `Documents` for ids, and `Duration`, for
example `1h30m`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from cyclopts import Parameter

from datakit.signed_urls import split_query

Flag = Annotated[bool, Parameter(negative="", show_default=False)]


def _refuse_query_strings(kind: Any, settings: tuple[str, ...]) -> None:
    """Raise ValueError for a URL with a query string, which may be a signature."""
    for setting in settings:
        if split_query(setting.partition("=")[2].strip(" '\""))[1]:
            raise ValueError(
                "everyone on this machine can read command lines, and Ray stores them; put a URL that has a query "
                "string in the recipe or run file instead"
            )


Settings = Annotated[
    tuple[str, ...], Parameter(name="--set", negative="", show_default=False, validator=_refuse_query_strings)
]

Documents = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]


def _refuse_zero(kind: Any, duration: timedelta | None) -> None:
    """Raise ValueError for a duration that is not positive."""
    if duration is not None and duration <= timedelta(0):
        raise ValueError("must be longer than 0 s")


Duration = Annotated[timedelta | None, Parameter(validator=_refuse_zero)]
