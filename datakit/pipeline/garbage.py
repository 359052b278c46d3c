"""Decides which files and unfinished steps in a root are leftovers of killed runs, and finds and removes them.

    temporary files    from a dead process on this host, or from another host and older than the age limit
    exchange files     of a finished step whose run was killed after it wrote the manifest and before the cleanup
    unfinished steps   directories with a ledger but no manifest that have not changed within the age limit and that no
                       live process on this host is working on

The output of finished steps is never touched, and neither is a directory that datakit did not create: a step's
directory is recognized by its name and its ledger (or its `partial.json`). A resumed run can continue an unfinished
step, so only old unfinished steps are listed. Ages are measured by the clock of the root's disk or store
(`store_clock.py`), because the clocks of this machine and of the machines that wrote the ledgers may be wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from datakit.engine.ledger.ledger import FOLDER as LEDGER
from datakit.engine.ledger.ledger import DriverLine, read_ledger
from datakit.engine.scheduler.finish import EXCHANGE_FOLDER
from datakit.errors import InputError
from datakit.pipeline.root_layout import STEP_NAME
from datakit.storage import atomic, removal, store_clock, urls
from datakit.storage.manifest import FILE_NAME, PARTIAL_NAME
from datakit.storage.urls import FileInfo

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Leftover:
    """A file or directory that can be removed, its size in bytes, and why it can be removed."""

    url: str
    bytes: int
    why: str


def find_leftovers(root: str, age_seconds: float = DAY_SECONDS) -> list[Leftover]:
    """Return everything in `root` that can be removed. age_seconds: the time without a change after which an unfinished
    step, or a temporary file from another host, can be removed. Raises InputError if the root does not exist.
    """
    root = urls.absolute(root)
    if urls.is_local(root) and not os.path.isdir(urls.local_path(root)):
        raise InputError(f"{root} does not exist; give the root of a run")
    limit = _AgeLimit(root, age_seconds)
    found = [leftover for step, files in _steps(root).items() for leftover in _step_leftovers(root, step, files, limit)]
    gone = tuple(f"{leftover.url}/" for leftover in found)
    temporary = (entry for entry in _temporary_files(root, limit) if not entry.url.startswith(gone))
    return sorted([*found, *temporary], key=lambda leftover: leftover.url)


def remove_leftovers(found: list[Leftover]) -> None:
    """Remove files and directories that `find_leftovers` has returned."""
    for leftover in found:
        if urls.is_local(leftover.url) and os.path.isfile(leftover.url):
            removal.remove(leftover.url)
        else:
            removal.remove_tree(leftover.url)


def _steps(root: str) -> dict[str, list[FileInfo]]:
    """Return a mapping from the path of every step in `<root>/<dataset>/<step>/` or `<root>/sources/<source>/<step>/`
    to the step's files.
    """
    steps: dict[str, list[FileInfo]] = {}
    for info in urls.listing(root):
        parts = info.path.split("/")
        depth = 3 if parts[0] == "sources" else 2
        if len(parts) > depth and STEP_NAME.fullmatch(parts[depth - 1]):
            steps.setdefault("/".join(parts[:depth]), []).append(info)
    return steps


@dataclass(frozen=True)
class _AgeLimit:
    root: str
    seconds: float

    @cached_property
    def _now(self) -> float:
        return store_clock.now(self.root)

    def exceeded(self, changed: float) -> bool:
        """Return True if `changed`, a time by the clock of the root's store, was at least `seconds` ago."""
        return self._now - changed >= self.seconds


def _step_leftovers(root: str, step: str, files: list[FileInfo], limit: _AgeLimit) -> Iterator[Leftover]:
    directory, inside = urls.join(root, step), [info.path.removeprefix(f"{step}/") for info in files]
    if FILE_NAME in inside:
        exchange = [info.size for info in files if info.path.startswith(f"{step}/{EXCHANGE_FOLDER}/")]
        if exchange:
            yield Leftover(urls.join(directory, EXCHANGE_FOLDER), sum(exchange), "exchange files of a finished step")
        return
    made_by_datakit = any(path.startswith(f"{LEDGER}/") for path in inside) or PARTIAL_NAME in inside
    if made_by_datakit and not _in_use(directory, files, limit):
        yield Leftover(directory, sum(info.size for info in files), "an unfinished step that no run is working on")


def _in_use(directory: str, files: list[FileInfo], limit: _AgeLimit) -> bool:
    """Return True if one of the step's drivers is alive on this host, or if the step changed within the limit."""
    if any(isinstance(line, DriverLine) and _is_running(line.driver) for line in read_ledger(directory)):
        return True
    local = urls.is_local(directory)
    changed = max(os.path.getmtime(info.url) for info in files) if local else urls.last_change(directory)
    return not limit.exceeded(changed)


def _is_running(driver: str) -> bool:
    """Return True if a process on this host has the driver's pid, even if the driver is dead and its pid has been given
    to another process.
    """
    pid = driver.split("-")[1] if driver.count("-") >= 2 else ""
    return pid.isdigit() and psutil.pid_exists(int(pid))


def _temporary_files(root: str, limit: _AgeLimit) -> Iterator[Leftover]:
    if not urls.is_local(root):
        return
    for path in Path(urls.local_path(root)).rglob(f"{atomic.TEMPORARY_PREFIX}*"):
        try:
            owner, state = atomic.owner_of(path.name), path.stat()
        except FileNotFoundError:  # another run has just given the file its final name
            continue
        if owner is not None and not psutil.pid_exists(owner):
            yield Leftover(str(path), state.st_size, "a temporary file of a dead process")
        elif owner is None and limit.exceeded(state.st_mtime):
            yield Leftover(str(path), state.st_size, "an old temporary file from another host")
