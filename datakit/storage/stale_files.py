"""Decides which temporary files and scratch directories belong to dead processes of this host, and removes these files
and directories.

The name of a temporary file contains the host's name and the id of the process that writes the file. A later run on the
same host removes the files of dead processes, but never those of a concurrent run. Object stores have no temporary
files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from datakit.storage import atomic, urls

SCRATCH_PREFIX = "datakit-scratch-"


def remove_dead_files(directory: str) -> list[Path]:
    """Remove the temporary files that dead processes of this host left below a local directory; return the files'
    paths.
    """
    if not urls.is_local(directory):
        return []
    found = os.walk(urls.local_path(directory))  # tolerates vanishing directories, unlike rglob
    return [path for folder, _, names in found for path in _remove_dead(folder, names)]


def remove_dead_files_in(directory: str) -> list[Path]:
    """Remove dead processes' temporary files from a local directory, but not from its subdirectories; return the files'
    paths.
    """
    folder = urls.local_path(directory)
    return _remove_dead(folder, os.listdir(folder))


def _remove_dead(folder: str, names: Iterable[str]) -> list[Path]:
    removed = []
    for name in names:
        owner = atomic.owner_of(name) if name.startswith(atomic.TEMPORARY_PREFIX) else None
        if owner is not None and not _alive(owner):
            path = Path(folder, name)
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def scratch_directory() -> Path:
    """Create a private directory for one attempt, and return its path. Its name contains this process's id."""
    return Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{atomic.process_space()}-{os.getpid()}-"))


def remove_dead_scratch() -> list[Path]:
    """Remove the scratch directories and temporary files that dead processes of this host left in the temporary
    directory; return the paths of what was removed.
    """
    removed = remove_dead_files_in(tempfile.gettempdir())
    for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
        space, owner, *_ = [*path.name.removeprefix(SCRATCH_PREFIX).split("-"), ""]
        if space == atomic.process_space() and owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)  # another run may remove it at the same time
            removed.append(path)
    return removed


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # a zombie no longer writes
