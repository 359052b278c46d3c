"""Moves steps to the trash of their root, `<root>/.trash/<day>/<dataset>/<step>`, and removes them after 14 days.

To restore a step, move its directory back to the place that its path in the trash shows.

On a disk, a move is one rename. In an object store, all objects are copied, and then the originals are removed. The
manifest is copied last and removed first, so at any moment at least one of the two places holds the complete step, and
neither holds a manifest without the other files. The ledger is removed last: if the process is killed while it
removes the originals, the rest of them is still recognized as an unfinished step.

The day is the date in UTC by the clock of the root's disk or store. Cost: on a disk, one rename; in a store, two
requests per object.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby

from datakit.engine.ledger.ledger import FOLDER as LEDGER
from datakit.errors import StorageError
from datakit.leases.own_folder import own_folder
from datakit.storage import removal, store_clock, urls
from datakit.storage.globs import subdirectories
from datakit.storage.io_errors import storage_errors
from datakit.storage.manifest import FILE_NAME

FOLDER = ".trash"
KEPT_DAYS = 14
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class TrashDay:
    """The steps that were moved to the trash on one day. due: True if it is time to remove them."""

    url: str
    day: str
    due: bool


def move_in(root: str, step: str) -> str:
    """Move a step, given by its path in the root, to the trash; return its new directory. Raises StorageError."""
    home, name = step.rpartition("/")[::2]
    folder = own_folder(root, FOLDER, _today(root).isoformat(), *home.split("/"))
    target, number = urls.join(folder, name), 1
    while _is_taken(target):
        number += 1
        target = urls.join(folder, f"{name}.{number}")
    _move(urls.join(root, step), target)
    return target


def move_back(directory: str, root: str, step: str) -> None:
    """Move a step from the trash back to its place, unless a run has begun to make it again there."""
    place = urls.join(root, step)
    if not _is_taken(place):
        _move(directory, place)


def days(root: str) -> list[TrashDay]:
    """Return the days on which steps were moved to the trash. Links are left out."""
    folder = own_folder(root, FOLDER)
    names = [name for name in subdirectories(folder) if DAY.fullmatch(name) and not _is_link(urls.join(folder, name))]
    if not names:
        return []
    last = (_today(root) - timedelta(days=KEPT_DAYS)).isoformat()
    return [TrashDay(urls.join(folder, name), name, name < last) for name in names]


def empty(root: str) -> None:
    """Remove what has been in the trash for more than KEPT_DAYS days."""
    for day in days(root):
        if day.due:
            removal.remove_tree(day.url)


def _today(root: str) -> date:
    now = time.gmtime(store_clock.now(root))
    return date(now.tm_year, now.tm_mon, now.tm_mday)


def _is_link(url: str) -> bool:
    return urls.is_local(url) and os.path.islink(urls.local_path(url))


def _is_taken(url: str) -> bool:
    return os.path.lexists(urls.local_path(url)) if urls.is_local(url) else bool(urls.objects(url))


def _move(source: str, target: str) -> None:
    if not urls.is_local(source):
        _move_objects(source, target)
        return
    with storage_errors(source):
        os.makedirs(os.path.dirname(urls.local_path(target)), exist_ok=True)
        try:
            os.rename(urls.local_path(source), urls.local_path(target))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise StorageError(
                f"{source} and {target} are on different disks, so the step cannot be moved; if nobody needs it, "
                "remove it yourself"
            ) from error


def _move_objects(source: str, target: str) -> None:
    paths = sorted((info.path for info in urls.objects(source)), key=_order)
    with storage_errors(source):
        file_system, here = urls.filesystem(source)
        _, there = urls.filesystem(target)
        _each(lambda path: file_system.cp_file(f"{here}/{path}", f"{there}/{path}"), paths)
        _each(lambda path: file_system.rm_file(f"{here}/{path}"), paths[::-1])


def _order(path: str) -> tuple[int, str]:
    """Return a key that sorts the ledger first and the manifest last."""
    return 2 * (path == FILE_NAME) - path.startswith(f"{LEDGER}/"), path


def _each(call: Callable[[str], object], paths: list[str]) -> None:
    """Call a function for every path, several at a time. The ledger's files, the others and the manifest are three
    groups; each group is done before the next one begins.
    """
    with ThreadPoolExecutor(urls.PARALLEL_REQUESTS) as pool:
        for _, group in groupby(paths, key=lambda path: _order(path)[0]):
            list(pool.map(call, group))
