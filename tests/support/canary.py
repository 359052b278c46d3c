"""Plants canary secrets and searches everything that a program leaves behind or shows for them.

with planted() as canaries, watched(canaries) as seen:          # in the environment of whatever the block starts
    done = command("run", recipe_with(canaries.signature), ...)
assert seen == []                                                # command lines and titles of all processes
assert leaks_in_files(canaries, root, temporary) == []
assert leaks_in_text(canaries, "output", done.stderr) == []

A canary is searched for as it is, as it is written in a URL, and in base64. What is compressed is not searched.
"""

from __future__ import annotations

import base64
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from tests.support.processes import ended

VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "FSSPEC_FTP_PASSWORD", "AZURE_STORAGE_KEY")
RAYS_OWN = ("raylet", "gcs_server", "ray::", "/ray/", "ray.scripts")  # parts of the command lines of Ray's processes
PIECE = 1 << 24


def _canary(kind: str) -> str:
    return f"canary/{kind}+{uuid.uuid4().hex}"  # with characters that are escaped in a URL


@dataclass(frozen=True)
class Canaries:
    """Secrets that occur nowhere else. variables: in the environment. signature, password: for URLs."""

    variables: dict[str, str] = field(default_factory=lambda: {name: _canary(name[:3].lower()) for name in VARIABLES})
    signature: str = field(default_factory=lambda: f"canary{uuid.uuid4().hex}")
    password: str = field(default_factory=lambda: f"canary{uuid.uuid4().hex}")

    def forms(self) -> dict[bytes, str]:
        """Return every form in which a canary may appear, each with the canary's name."""
        secrets = {**self.variables, "signature": self.signature, "password": self.password}
        found: dict[bytes, str] = {}
        for name, value in secrets.items():
            encoded = base64.b64encode(value.encode()).rstrip(b"=")[:-1]
            found |= dict.fromkeys((value.encode(), quote(value, safe="").encode(), encoded), name)
        return found

    def in_bytes(self, data: bytes) -> list[str]:
        """Return the names of the canaries that the data contains."""
        return sorted({name for form, name in self.forms().items() if form in data})


@contextmanager
def planted() -> Iterator[Canaries]:
    """Put canaries into this process's environment for the block."""
    canaries = Canaries()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in canaries.variables.items():
            patch.setenv(name, value)
        yield canaries


def leaks_in_text(canaries: Canaries, place: str, text: str) -> list[str]:
    """Return `place: canary` for each canary in a text."""
    return [f"{place}: {name}" for name in canaries.in_bytes(text.encode())]


def leaks_in_files(canaries: Canaries, *folders: Path) -> list[str]:
    """Return `path: canary` for each canary in the names and contents of the files below the folders."""
    found = []
    for path in (path for folder in folders for path in [folder, *sorted(folder.rglob("*"))]):
        data = str(path).encode()
        with suppress(OSError):  # removed in the meantime, or a socket
            data += path.read_bytes() if path.is_file() else b""
        found += [f"{path}: {name}" for name in canaries.in_bytes(data)]
    return found


def leaks_in_titles(canaries: Canaries) -> list[str]:
    """Return `process: canary` for each canary in the command line or the title of any process of this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for file in ("cmdline", "comm"):
            with suppress(OSError):
                data = (folder / file).read_bytes()
                found += [f"{file} of {data[:60]!r}: {name}" for name in canaries.in_bytes(data)]
    return found


def rays_processes(mark: str) -> list[psutil.Process]:
    """Return Ray's own processes of the cluster with this mark in its environment; datakit's fork servers are not."""
    from tests.support.faults.cluster import processes_with

    found = []
    for process in processes_with(mark):
        with suppress(psutil.Error):
            if any(part in " ".join(process.cmdline()) for part in RAYS_OWN):
                found.append(process)
    return [process for process in found if not ended(process)]


def leaks_in_environments(canaries: Canaries, processes: list[psutil.Process]) -> list[str]:
    """Return `process: canary` for each canary in the environment with which a process was started."""
    found = []
    for process in processes:
        with suppress(OSError, psutil.Error):
            data = Path(f"/proc/{process.pid}/environ").read_bytes()
            found += [f"environment of {process.cmdline()[:2]}: {name}" for name in canaries.in_bytes(data)]
    return found


def leaks_in_memory(canaries: Canaries, process: psutil.Process) -> list[str]:
    """Return `process: canary` for each canary in the memory of a process, which holds what it would store later."""
    names = set[str]()
    with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            span, mode = line.split()[:2]
            start, stop = (int(end, 16) for end in span.split("-"))
            if mode.startswith("rw"):
                names |= _in_stretch(canaries, memory.fileno(), start, stop)
    return [f"memory of {process.name()}: {name}" for name in sorted(names)]


def _in_stretch(canaries: Canaries, descriptor: int, start: int, stop: int) -> set[str]:
    found, forms, overlap = set[str](), canaries.forms(), 200
    for place in range(start, stop, PIECE):
        with suppress(OSError):  # reserved but never used
            data = os.pread(descriptor, min(PIECE + overlap, stop - place), place)
            found |= {name for form, name in forms.items() if form in data}
    return found


@contextmanager
def watched(canaries: Canaries) -> Iterator[list[str]]:
    """Search the titles of all processes again and again during the block; yield the list to which leaks are added."""
    seen: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            seen.extend(leak for leak in leaks_in_titles(canaries) if leak not in seen)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
