"""Parses the options of `datakit plan --simulate`: sizes such as 80TB, and the machines."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from datakit.errors import UsageError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
         "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}  # fmt: skip


class Machines(NamedTuple):
    """The machines of a simulation, as the user states them. cores: per machine; None for as many as this one has."""

    nodes: int
    cores: int | None
    memory_per_core: str

    def cores_of_each(self) -> int:
        """Return the number of cores of a machine."""
        return self.cores if self.cores is not None else len(os.sched_getaffinity(0))


def byte_count(text: str, option: str) -> int:
    """Return the number of bytes that a size stands for. Raises UsageError.

    >>> byte_count("80TB", "simulate"), byte_count("1.5 GiB", "simulate")
    (80000000000000, 1610612736)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in UNITS:
        raise UsageError(f"--{option} {text!r} is not a size; write a number and a unit, for example 80TB or 500GB")
    return int(float(match[1]) * UNITS[match[2].upper()])
