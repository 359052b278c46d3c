"""Lets no directory of a run decide which code is executed, because a directory may come from a stranger.

The user's own run file may name a model or an optimizer of the user's own, and so may the command line:

    datakit train data/x/train-0123456789ab --set model.kind=/home/me/mine.py

A directory records such names too, but they are refused, whatever the command. Neither is a `compilation_cache` that it
records used, since compiled programs are code; the run then uses the default one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datakit.errors import UsageError
from datakit.trainer import models, optimizers
from datakit.trainer.models import full_name
from datakit.trainer.plugins import Kind

KINDS = {"model": models.KIND, "optimizer": optimizers.KIND}  # by the table whose `kind` names it
CACHE = "compilation_cache"


def without_code(directory: str, file: Path, tables: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return the recorded tables of a run without the compilation cache that they name. file: the recorded path of the
    run file. Raises UsageError if they name code that is not part of datakit, unless one of the overrides names it.
    """
    asked = {override.partition("=")[0].replace(" ", "") for override in overrides}
    for table, kind in KINDS.items():
        name = recorded_kind(tables, table)
        if name is not None and f"{table}.kind" not in asked:
            setting = shlex.quote(f"{table}.kind={full_name(name, file.resolve().parent)}")
            require_built_in(directory, name, kind, f"give the run file or, if you trust this code, --set {setting}")
    return {name: value for name, value in tables.items() if name != CACHE or value == ""}


def recorded_kind(tables: Mapping[str, Any], table: str) -> str | None:
    """Return the kind of model or optimizer that recorded tables name; None if they name none."""
    settings = tables.get(table)
    name = settings.get("kind") if isinstance(settings, dict) else None
    return None if name is None else str(name)


def require_built_in(directory: str, name: str, kind: Kind, advice: str) -> None:
    """Raise UsageError if a run's directory names a model or an optimizer that is not part of datakit."""
    if name not in kind.built_in:
        raise UsageError(
            f"{directory} has its own {kind.what}, {name!r}, and code that only a directory names is not run, because "
            f"the directory may come from someone else; {advice}"
        )


def other_changes(overrides: Iterable[str]) -> list[str]:
    """Return the overrides except those that only name code, which the run has already."""
    names = tuple(f"{table}.kind=" for table in KINDS)
    return [override for override in overrides if not override.replace(" ", "").startswith(names)]


def has_own_code(tables: Mapping[str, Any]) -> bool:
    """Return True if recorded tables name a model or an optimizer that is not part of datakit."""
    return any((recorded_kind(tables, table) or kind.built_in[0]) not in kind.built_in for table, kind in KINDS.items())
