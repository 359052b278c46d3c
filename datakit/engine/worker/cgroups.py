"""Reads memory limits and out-of-memory kill counts from the control groups (version 1 or 2) that contain this process.

A process belongs to one group in a tree; that group and its ancestors may have limits. `/proc/self/cgroup` gives the
group's path on the host. In a container, that path may not exist, because the container's own group is mounted in place
of the whole tree. Therefore every folder along the path is read if it exists. A call reads a few small files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PROCESS_GROUPS, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")  # the names in version 2 and in version 1
KILL_FILES = ("memory.events", "memory.oom_control")


def group_limits() -> list[int]:
    """Return the limits, in bytes, of those groups that contain this process and have a limit."""
    texts = [text.strip() for text in _contents(LIMIT_FILES)]
    return [int(text) for text in texts if text.isdigit()]  # "max" means no limit


def oom_kills() -> int:
    """Return a count that rises when the kernel kills a process in one of this process's groups for lack of memory.
    With version 2, a group also counts the kills in its descendants, so one kill may raise this count by more than 1.
    """
    lines = [line for text in _contents(KILL_FILES) for line in text.splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _contents(names: tuple[str, ...]) -> Iterator[str]:
    for folder in memory_groups():
        for path in (folder / name for name in names):
            if path.exists():
                yield path.read_text()


def memory_groups() -> list[Path]:
    """Return the folders of this process's memory groups and of their ancestors, each folder once."""
    found: dict[Path, None] = {}
    for line in PROCESS_GROUPS.read_text().splitlines() if PROCESS_GROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = MOUNT / "memory" if controllers else MOUNT
        group = mount / path.lstrip("/")
        found |= dict.fromkeys(folder for folder in (group, *group.parents) if folder.is_relative_to(mount))
    return list(found)
