"""What a check of `datakit doctor` finds, and the two checks that several of its parts make.

A finding is ok, a warning (the run goes on, but slower or nearer to a limit) or a problem (it would fail), with the
next step to take.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from datakit.errors import DatakitError

FULL, NEARLY_FULL = 0.95, 0.90  # Ray refuses work on a disk above the first
SPARE_BYTES = 2 << 30
GIB = 1 << 30


class State(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do where that is not well."""

    check: str
    state: State
    message: str
    next_step: str = ""


def attempt(check: str, message: str, remedy: str, action: Callable[[], object]) -> Finding:
    """ok with the message, or the problem that the action raises."""
    try:
        action()
    except (DatakitError, OSError) as error:
        return Finding(check, State.PROBLEM, str(error), remedy)
    return Finding(check, State.OK, message)


def disk(check: str, path: str, remedy: str) -> Finding:
    """How full the disk of a path is."""
    usage = shutil.disk_usage(path)
    share = 1 - usage.free / usage.total
    text = f"{path}: {share:.0%} full, {usage.free / GIB:.1f} GiB free"
    if share >= FULL or usage.free < SPARE_BYTES:
        return Finding(check, State.PROBLEM, text, remedy)
    return Finding(check, State.WARNING, text, remedy) if share >= NEARLY_FULL else Finding(check, State.OK, text)


def standing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(place for place in (path, *path.parents) if place.exists())
