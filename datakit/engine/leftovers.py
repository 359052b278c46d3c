"""Temporary files of processes that were killed.

A temporary file's name holds the host and the process that writes it, so a later run on the same host removes the files
of processes that no longer are, and never those of a run beside it. Object stores have no temporary files.
"""

from __future__ import annotations

import os
from pathlib import Path

from datakit.storage import atomic, urls


def remove_dead_files(directory: str) -> list[Path]:
    """Remove, below a local directory, the temporary files of this host's dead processes; which ones they were."""
    if not urls.is_local(directory):
        return []
    removed = []
    for folder, _, names in os.walk(urls.local_path(directory)):  # unlike rglob, it survives a folder that goes away
        for name in names:
            owner = atomic.owner_of(name) if name.startswith(atomic.TEMPORARY_PREFIX) else None
            if owner is not None and not _alive(owner):
                path = Path(folder, name)
                path.unlink(missing_ok=True)
                removed.append(path)
    return removed


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # a zombie writes no more
