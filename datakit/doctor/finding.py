"""The result type of a check, and the checks that several parts of `datakit doctor` share.

A finding is ok, a warning (a run works, but slower or closer to a limit) or a problem (a run would fail), with the next
step to take.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from datakit.errors import DatakitError

FULL, NEARLY_FULL = 0.95, 0.90  # Ray refuses work if its disk is fuller than FULL
SPARE_BYTES = 2 << 30  # the scratch files of attempts soon fill less than this, even on a large disk
GIB = 1 << 30


class State(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """Result of a check; `next_step` says what to do if it is not ok."""

    check: str
    state: State
    message: str
    next_step: str = ""


def try_action(check: str, message: str, remedy: str, action: Callable[[], object]) -> Finding:
    """Return ok with the message, or a problem if the action raises."""
    try:
        action()
    except (DatakitError, OSError) as error:
        return Finding(check, State.PROBLEM, str(error), remedy)
    return Finding(check, State.OK, message)


def disk_usage(check: str, path: str, remedy: str) -> Finding:
    """Check how full the disk behind a path is."""
    usage = shutil.disk_usage(path)
    share = 1 - usage.free / usage.total
    text = f"{path}: {share:.0%} full, {usage.free / GIB:.1f} GiB free"
    if share >= FULL or usage.free < SPARE_BYTES:
        return Finding(check, State.PROBLEM, text, remedy)
    return Finding(check, State.WARNING, text, remedy) if share >= NEARLY_FULL else Finding(check, State.OK, text)


def nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest ancestor that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
