"""Defines what a check reports: how much it compared, every difference that it found, and what it could not compare.

A check that compares nothing says why, so that an omitted check never looks like a passed one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from datakit.errors import CorruptError, NotFoundError, UnreadableError

REMEDY = "if this is a copy, copy the step again; otherwise remove its directory and run again (`datakit run`)"

MALFORMED = (ValueError, LookupError, TypeError, ArithmeticError, msgspec.MsgspecError)  # caused by forged values


@dataclass(frozen=True)
class Finding:
    """A difference: the URL of the file, the name of the check that found it, the difference, and the remedy."""

    url: str
    check: str
    difference: str
    remedy: str = REMEDY

    def __str__(self) -> str:
        return f"{self.url} {self.difference}; {self.remedy}"


@dataclass
class Result:
    """The result of one check of one step. amounts: the number of things that were compared, by kind; the name of a
    kind is in the singular, such as "file". skipped: what was not compared, with the reason.
    """

    check: str
    amounts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def count(self, noun: str, number: int = 1) -> None:
        """Count `number` more things of the kind `noun` as compared."""
        self.amounts[noun] += number

    def find(self, url: str, difference: str, remedy: str = REMEDY) -> None:
        """Report a difference."""
        self.findings.append(Finding(url, self.check, difference, remedy))

    def skip(self, reason: str) -> None:
        """Report that something was not compared. A reason that was given before is not repeated."""
        if reason not in self.skipped:
            self.skipped.append(reason)

    @contextmanager
    def reading(self, url: str, remedy: str = REMEDY) -> Iterator[None]:
        """Turn the error of a file that is missing or cannot be decoded into a finding about `url`."""
        try:
            yield
        except (CorruptError, NotFoundError, UnreadableError, *MALFORMED) as error:
            ours = isinstance(error, (CorruptError, NotFoundError, UnreadableError))
            text = str(error) if ours else type(error).__name__
            self.find(url, f"cannot be used: {text}", remedy)
