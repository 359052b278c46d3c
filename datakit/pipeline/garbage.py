"""What no manifest refers to, and nothing else: what killed runs leave behind in a root.

    temporary files        of a process of this host that is gone, or older than the age
    exchange files         of a step that is done (its run was killed between the manifest and the tidying up)
    unfinished steps       a directory that has a ledger but no manifest, in which nothing changed for the age (by its
                           ledger's lines and its files' times), and which no living process of this host works on

A finished step is never touched, whatever its parameters; nor is a folder that datakit did not make: a step's name and
its ledger are the proof. An unfinished step is what a resumed run goes on from, so only old ones are counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from datakit.engine.ledger.ledger import FOLDER as LEDGER
from datakit.engine.ledger.ledger import DriverLine, read_ledger
from datakit.engine.scheduler.finish import EXCHANGE_FOLDER
from datakit.errors import InputError
from datakit.pipeline.root_layout import STEP_NAME
from datakit.storage import atomic, urls
from datakit.storage.manifest import FILE_NAME, PARTIAL_NAME
from datakit.storage.urls import FileInfo

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Leftover:
    """Something that can go: a file or a directory, how many bytes it holds, and why it can go."""

    url: str
    bytes: int
    why: str


def find_leftovers(root: str, age_seconds: float = DAY_SECONDS) -> list[Leftover]:
    """Everything in `root` that can go. Raises InputError where there is no root."""
    root = urls.absolute(root)
    if urls.is_local(root) and not os.path.isdir(urls.local_path(root)):
        raise InputError(f"{root} is not there; give the root of a run")
    steps = _steps(root)
    found = [leftover for step, files in steps.items() for leftover in _of_step(root, step, files, age_seconds)]
    gone = tuple(f"{leftover.url}/" for leftover in found)
    temporary = (entry for entry in _temporary_files(root, age_seconds) if not entry.url.startswith(gone))
    return sorted([*found, *temporary], key=lambda leftover: leftover.url)


def remove_leftovers(found: list[Leftover]) -> None:
    """Remove what `find_leftovers` found."""
    for leftover in found:
        if urls.is_local(leftover.url) and os.path.isfile(leftover.url):
            urls.remove(leftover.url)
        else:
            urls.remove_tree(leftover.url)


def _steps(root: str) -> dict[str, list[FileInfo]]:
    """The files of every step's directory: `<root>/<dataset>/<step>/` or `<root>/sources/<source>/<step>/`."""
    steps: dict[str, list[FileInfo]] = {}
    for info in urls.listing(root):
        parts = info.path.split("/")
        depth = 3 if parts[0] == "sources" else 2
        if len(parts) > depth and STEP_NAME.fullmatch(parts[depth - 1]):
            steps.setdefault("/".join(parts[:depth]), []).append(info)
    return steps


def _of_step(root: str, step: str, files: list[FileInfo], age_seconds: float) -> Iterator[Leftover]:
    directory, inside = urls.join(root, step), [info.path.removeprefix(f"{step}/") for info in files]
    if FILE_NAME in inside:
        size = sum(info.size for info, path in zip(files, inside, strict=True) if _is_exchange(path))
        if any(map(_is_exchange, inside)):
            yield Leftover(urls.join(directory, EXCHANGE_FOLDER), size, "exchange files of a step that is done")
        return
    ours = any(path.startswith(f"{LEDGER}/") for path in inside) or PARTIAL_NAME in inside
    if ours and not _held(directory, files, age_seconds):
        yield Leftover(directory, sum(info.size for info in files), "an unfinished step that no run works on")


def _is_exchange(path: str) -> bool:
    return path.startswith(f"{EXCHANGE_FOLDER}/")


def _held(directory: str, files: list[FileInfo], age_seconds: float) -> bool:
    """Whether a run may still work on the step: a process of it lives here, or something changed lately."""
    changed = 0.0
    for line in read_ledger(directory):
        if isinstance(line, DriverLine) and _is_running(line.driver):
            return True
        changed = max(changed, line.time)
    if urls.is_local(directory):
        changed = max([changed, *(os.path.getmtime(info.url) for info in files)])
    elif time.time() - changed >= age_seconds:  # tasks may take longer: ask the store, too
        changed = max(changed, urls.last_change(directory))
    return time.time() - changed < age_seconds


def _is_running(driver: str) -> bool:
    """Whether a process with the driver's number lives on this host (if it is another one, we only keep too much)."""
    pid = driver.split("-")[1] if driver.count("-") >= 2 else ""
    return pid.isdigit() and psutil.pid_exists(int(pid))


def _temporary_files(root: str, age_seconds: float) -> Iterator[Leftover]:
    if not urls.is_local(root):
        return
    for path in Path(urls.local_path(root)).rglob(f"{atomic.TEMPORARY_PREFIX}*"):
        try:
            owner, state = atomic.owner_of(path.name), path.stat()
        except FileNotFoundError:  # a run beside us has just given it its final name
            continue
        if owner is not None and not psutil.pid_exists(owner):
            yield Leftover(str(path), state.st_size, "a temporary file of a process that is gone")
        elif owner is None and time.time() - state.st_mtime >= age_seconds:
            yield Leftover(str(path), state.st_size, "an old temporary file of another host")
