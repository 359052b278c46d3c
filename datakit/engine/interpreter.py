"""Starts Python interpreters that import from the same places as this process, and identifies the files of datakit that
a process runs.

`python -c` puts the working directory first on the import path, so a file there that is named like a module would be
run in its place. New interpreters are therefore started with `-P`, and adopt this process's import path, which they get
as arguments. (PYTHONPATH is set too, for programs that tasks start, but it cannot hold a path that contains a colon.)

Each fork server compares its `Installation` with its client's, and each Ray worker process compares its files with the
driver's, because an upgrade during a run, or a checkout on one node's import path, would mix two versions. The contents
of the files are compared, not modification times, which may differ between nodes even if the files are equal. Reading
the files takes 7 ms of CPU time if they are in memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import xxhash

BOOT = "import sys; n = int(sys.argv[1]) + 2; sys.path[:], sys.argv[1:] = sys.argv[2:n], sys.argv[n:]"
RAY_FOLDERS = "-packages/ray/"  # part of the paths of Ray's own folders, which Ray prepends to its workers' import path
LOADED = (".py", ".so", ".bin")  # suffixes of the files that a process imports or loads


def command(program: str, *arguments: str) -> list[str]:
    """Return the command that runs `program` in a new interpreter with this process's import path; the program finds
    `arguments` in `sys.argv[1:]`.
    """
    path = import_path()
    return [sys.executable, "-P", "-c", f"{BOOT}; {program}", str(len(path)), *path, *arguments]


def environment() -> dict[str, str]:
    """Return this process's environment, with the import path in PYTHONPATH."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in import_path() if os.pathsep not in path)}


def import_path() -> list[str]:
    """Return this process's import path as absolute paths, without Ray's own folders."""
    found = (os.path.abspath(path) for path in sys.path if isinstance(path, str))
    return list(dict.fromkeys(path for path in found if RAY_FOLDERS not in f"{path}/"))


@dataclass(frozen=True)
class Installation:
    """The files of datakit that a process runs: their folder, and a hash of their names and contents."""

    folder: str
    digest: str


def installation() -> Installation:
    """Read the files of datakit that this process would import now, and return their folder and hash."""
    digest = xxhash.xxh3_128()
    for path, place in _files(_folder()):
        with open(place, "rb") as file:
            data = file.read()
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return Installation(_folder(), digest.hexdigest())


@cache
def installation_at_start() -> Installation:
    """Return the installation as it was when this function was first called in this process."""
    return installation()


def _folder() -> str:
    return os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def _files(folder: str, below: str = "") -> Iterator[tuple[str, str]]:
    """Yield (relative path, path) of every file that a process may load from the package, in a fixed order."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir():
            yield from _files(entry.path, f"{below}{entry.name}/")
        elif entry.name.endswith(LOADED):
            yield f"{below}{entry.name}", entry.path
