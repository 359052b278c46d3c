"""Defines the limits on disk use: how many bytes a task may write per byte of its input, and how much space stays free.

A hostile or damaged file of a few MB can expand to many GB of records: a Parquet file can store a long text once and
refer to it from any number of rows. A task may therefore write at most `max_expansion` bytes per byte of its input, or
`expansion_floor_bytes` if that is more, so that small inputs may expand more. A task that exceeds its limit is treated
like one whose input cannot be used: it is not retried, the other tasks go on, and the step ends with an error. No
record is left out because of the limit, so the limit cannot change the output.

Bytes written to files of all kinds are counted: outputs, exchange files, scratch files, and copies that are uploaded
later. `worker/disk_use.py` measures them while the task runs. Limits are not part of a fingerprint, so a stopped run
can be continued with a higher limit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from datakit.errors import ExpansionError, RecipeError
from datakit.toml_config import key

SMALL_DISK_SHARE = 0.02  # share kept free by default on a disk smaller than 50 GiB; 1 GiB would be too much there
# Kept free by default on a larger disk; exceeds what 16 tasks write to a fast disk between two checks
# (worker/disk_use.py).
USUAL_FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class DiskLimits:
    """Limits on the disk space that the tasks of a run take. They never change the output."""

    max_expansion: Annotated[int, key("How many bytes a task may write per byte of its input.", 2000)] = 500
    expansion_floor_bytes: Annotated[
        int, key("A task may write this many bytes in any case, however small its input is.", 8 << 30)
    ] = 1 << 30
    min_free_bytes: Annotated[
        int | None,
        key("The run stops when less space than this is free on a disk that it uses. By default 1 GiB, or 2 % of a "
            "smaller disk; 0 turns the check off.", 20 << 30),
    ] = None  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("max_expansion", "expansion_floor_bytes"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.min_free_bytes is not None and self.min_free_bytes < 0:
            raise RecipeError(f"min_free_bytes is {self.min_free_bytes}; it must be at least 0")

    def free_bytes(self, disk_bytes: int) -> int:
        """Return how many bytes of a disk of this size must stay free."""
        if self.min_free_bytes is not None:
            return self.min_free_bytes
        return min(USUAL_FREE_BYTES, int(SMALL_DISK_SHARE * disk_bytes))


@dataclass(frozen=True)
class WriteLimit:
    """The limit on what one task may write. input_bytes: the stored size of the task's input."""

    limits: DiskLimits
    input_bytes: int

    @property
    def bytes(self) -> int:
        """The number of bytes that the task may write."""
        return max(self.limits.expansion_floor_bytes, self.limits.max_expansion * self.input_bytes)

    def error(self, written: int, file: str, task: str) -> ExpansionError:
        """Return the error for a task that has written this many bytes, or is about to. file: the file that the task
        was reading; "" if it is not known. task: a description of the task.
        """
        wrote = f"{file}: reading this file makes a task write" if file else f"{task} writes"
        remedy = f"exclude this file or, if its content is right, {self._remedy()}" if file else self._remedy()
        return ExpansionError(
            f"{wrote} at least {written:,} bytes, but its limit is {self.bytes:,} bytes for an input of "
            f"{self.input_bytes:,} bytes (limits.max_expansion = {self.limits.max_expansion} times the input, or "
            f"limits.expansion_floor_bytes = {self.limits.expansion_floor_bytes} if that is more); {remedy}"
        )

    def _remedy(self) -> str:
        if self.input_bytes:
            return f"set limits.max_expansion above {self.bytes // self.input_bytes:,}"
        return "raise limits.expansion_floor_bytes"


class DiskSpace(NamedTuple):
    """The size of a disk and its free space, in bytes. Both are 0 for a file system that does not report them."""

    size: int
    free: int

    @classmethod
    def of(cls, folder: str) -> DiskSpace:
        """Return the space of the disk that holds, or will hold, a folder."""
        state = os.statvfs(nearest_existing(folder))
        return cls(state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize)


def nearest_existing(folder: str) -> str:
    """Return the absolute path of a folder or, if it does not exist yet, of the nearest folder above it that does."""
    folder = os.path.abspath(folder)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def size_text(count: int) -> str:
    """Format a number of bytes, with a suitable unit.

    >>> size_text(1 << 30), size_text(2_500_000), size_text(300)
    ('1.1 GB', '2.5 MB', '300 bytes')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} bytes"
