"""Defines the result of a `datakit doctor` check, and the disk-space check with its limits (90 % and 95 % full, 2 GiB
free). A finding is ok, a warning (a run would work, but more slowly or closer to a limit) or a problem (a run would
fail).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from datakit.errors import DatakitError
from datakit.redaction import redacted

# A disk with at least this share in use is a problem (FULL) or causes a warning. Ray refuses work above FULL.
FULL, NEARLY_FULL = 0.95, 0.90
SPARE_BYTES = 2 << 30  # less free space is also a problem: 5 % of a small disk may be too little for scratch files


class State(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of a check. If the result is not ok, `next_step` is the remedy."""

    check: str
    state: State
    message: str
    next_step: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", redacted(self.message))


def try_action(check: str, message: str, remedy: str, action: Callable[[], object]) -> Finding:
    """Call `action`. If it fails, return a problem that states the error and `remedy`, otherwise an ok finding."""
    try:
        action()
    except (DatakitError, OSError) as error:
        return Finding(check, State.PROBLEM, str(error), remedy)
    return Finding(check, State.OK, message)


def disk_usage(check: str, path: str, remedy: str) -> Finding:
    """Check how full the disk that holds `path` is, and whether at least `SPARE_BYTES` are free."""
    usage = shutil.disk_usage(path)
    share = 1 - usage.free / usage.total
    text = f"{path}: {share:.0%} full, {usage.free / 1e9:.1f} GB free"
    if share >= FULL or usage.free < SPARE_BYTES:
        return Finding(check, State.PROBLEM, text, remedy)
    return Finding(check, State.WARNING, text, remedy) if share >= NEARLY_FULL else Finding(check, State.OK, text)


def nearest_existing(path: Path) -> Path:
    """Return `path` if it exists, otherwise its nearest existing ancestor."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
