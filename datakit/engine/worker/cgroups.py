"""The control groups (version 1 or 2) that bound this process's memory: what they allow, and whom the kernel killed.

A process is in a group below others, and each of them may have a limit. `/proc/self/cgroup` names it by its path on the
host; in a container that path is not there, and what is mounted is the container's own group: so every folder on the
way that is there counts. Cost: a few small reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

OWN, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory.limit_in_bytes")  # version 2, version 1
KILLS = ("memory.events", "memory.oom_control")


def memory_limits() -> list[int]:
    """The limit in bytes of each group around this process that has one."""
    texts = [text.strip() for text in _files(LIMITS)]
    return [int(text) for text in texts if text.isdigit()]  # "max" is none


def kills() -> int:
    """How many processes the kernel has killed in these groups for lack of memory, so far."""
    lines = [line for text in _files(KILLS) for line in text.splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _files(names: tuple[str, ...]) -> Iterator[str]:
    for folder in folders():
        for path in (folder / name for name in names):
            if path.exists():
                yield path.read_text()


def folders() -> list[Path]:
    """The groups around this process that have to do with memory, each once."""
    found: dict[Path, None] = {}
    for line in OWN.read_text().splitlines() if OWN.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = MOUNT / "memory" if controllers else MOUNT
        own = mount / path.lstrip("/")
        found |= dict.fromkeys(place for place in (own, *own.parents) if place.is_relative_to(mount))
    return list(found)
