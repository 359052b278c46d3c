"""Describes the kind of this machine. Records of different kinds are never compared with each other."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec
import psutil

GIB = 1 << 30
CPU_FILE = Path("/proc/cpuinfo")
MODEL = "model name"


class Machine(msgspec.Struct, frozen=True):
    """A kind of machine. cpu: the processor's model. cores: how many CPUs this process may use. memory_gib: the
    memory, rounded to GiB. python: the minor version, because speed and the demo's text (Python's standard library)
    differ between versions.
    """

    cpu: str
    cores: int
    memory_gib: int
    python: str

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} CPUs, {self.memory_gib} GiB, Python {self.python}"


def this_machine() -> Machine:
    """Return the kind of this machine."""
    memory = round(psutil.virtual_memory().total / GIB)
    return Machine(_cpu(), len(os.sched_getaffinity(0)), memory, ".".join(platform.python_version_tuple()[:2]))


def _cpu() -> str:
    try:
        lines = CPU_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(MODEL)]
    return models[0] if models else platform.machine()
