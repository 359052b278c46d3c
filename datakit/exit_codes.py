"""Defines every exit code of the command line, with the meaning that `datakit --help`, README.md and docs/operations.md
give for it. Each error class in `errors.py` has exactly one of these codes.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class ExitCode(IntEnum):
    """The exit code of a command. `meaning` is its description for users."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Create a member with this code and meaning."""
        member = int.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    DONE = 0, "done"
    FAILURE = 1, "failure: a disk, a store, a task or datakit itself"
    USAGE = 2, "usage or input error; the message says what to fix"
    PARTIAL = 3, "partial: some tasks failed, the others are done; run again to continue"
    INVALID = 4, "validate found differences; the report names each file and the next step"
    DIVERGED = (
        5,
        "training diverged: the loss, a gradient or a weight is NaN or infinite",
    )
    TIMED_OUT = 124, "the run reached its --timeout; run again to continue"  # as with the command `timeout`
    INTERRUPTED = 130, "interrupted (Ctrl-C); run again to continue"  # 128 + SIGINT, as shells show it
    TERMINATED = 143, "terminated (SIGTERM); run again to continue"  # 128 + SIGTERM
