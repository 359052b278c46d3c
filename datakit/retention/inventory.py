"""Lists the files and the steps of a root, and finds out which paths lead through links.

`files` lists every file once, hidden ones included, with its size and the time of its last change, and follows no links
below the root. `step_paths` lists the directories of steps, `<dataset>/<step>` and `sources/<source>/<step>`. It
follows links, because a dataset may be a link to another disk while its manifests refer to steps of this root.
`is_inside` recognizes such steps: whatever lies behind a link is read, but never removed.

Cost: `files` takes one walk or one listing of the whole root; `step_paths` lists two or three levels of folders.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from datakit.errors import InputError
from datakit.pipeline.root_layout import SOURCES, STEP_NAME
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.io_errors import read_errors


@dataclass(frozen=True)
class StoredFile:
    """A file: its path relative to the root, its size, and the time of its last change in seconds since 1970. content:
    the device and inode of a file that has several names (hard links), which is the same for all of them.
    """

    path: str
    bytes: int
    changed: float
    content: tuple[int, int] | None = None


def require_root(root: str) -> str:
    """Return the absolute form of a root. Raises InputError if it is a local folder that does not exist."""
    place = urls.absolute(root)
    if urls.is_local(place) and not os.path.isdir(urls.local_path(place)):
        raise InputError(f"{place} does not exist; give the root of a run")
    return place


def files(root: str) -> list[StoredFile]:
    """Return every file below a root, sorted by path. A link counts as a file with the size of the link itself."""
    if urls.is_local(root):
        with read_errors(root):
            return sorted(_walk(urls.local_path(root)), key=lambda file: file.path)
    found = (StoredFile(info.path, info.size, changed) for info, changed in urls.dated_objects(root))
    return sorted(found, key=lambda file: file.path)


def _walk(root: str) -> Iterator[StoredFile]:
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                for entry in entries:
                    path = f"{folder}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{path}/")
                    else:
                        status = entry.stat(follow_symlinks=False)
                        content = (status.st_dev, status.st_ino) if status.st_nlink > 1 else None
                        yield StoredFile(path, status.st_size, status.st_mtime, content)
        except FileNotFoundError:  # another process has just removed it
            continue


def home_paths(root: str) -> list[str]:
    """Return the paths of all folders that may hold steps: those of datasets, of packing steps and of sources."""
    names = subdirectories(root)
    of_sources = subdirectories(urls.join(root, SOURCES)) if SOURCES in names else []
    return [name for name in names if name != SOURCES] + [f"{SOURCES}/{name}" for name in of_sources]


def step_paths(root: str) -> list[str]:
    """Return the paths of all steps, finished or not."""
    return [path for home in home_paths(root) for path in children(root, home) if is_step(path)]


def children(root: str, home: str) -> list[str]:
    """Return the paths of the folders directly below a folder of the root."""
    return [f"{home}/{name}" for name in subdirectories(urls.join(root, home))]


def is_step(path: str) -> bool:
    """Return True if a path in the root has the form of a step's path."""
    return step_of(path) == path


def step_of(path: str) -> str | None:
    """Return the path of the step to which a path in the root belongs; None if it belongs to none."""
    parts = path.split("/")
    depth = 3 if parts[0] == SOURCES else 2
    named = len(parts) >= depth and STEP_NAME.fullmatch(parts[depth - 1]) and urls.is_below("/".join(parts[:depth]))
    return "/".join(parts[:depth]) if named and not parts[0].startswith(".") else None


def is_inside(root: str, path: str) -> bool:
    """Return True if a path is below the root and no component of it is a link, so it leads nowhere else."""
    if not urls.is_below(path):
        return False
    if not urls.is_local(root):
        return True
    place = urls.local_path(root)
    for name in path.split("/"):
        place = os.path.join(place, name)
        try:
            if stat.S_ISLNK(os.lstat(place).st_mode):
                return False
        except FileNotFoundError:
            return True
    return True
