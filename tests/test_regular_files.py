"""Opening a named pipe, a socket or a device is refused by name, and nothing waits. Commands that are given one are
tested by `cli/test_hostile_trees.py`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from datakit.errors import UnreadableError
from datakit.regular_files import open_regular
from datakit.storage import urls
from tests.support.paths import REPOSITORY

DEADLINE_SECONDS = 120.0  # far more than a command takes; a command that waits for a pipe never ends


@contextmanager
def bound(path: Path) -> Iterator[None]:
    """A socket at `path`, whose name may be longer than a socket's address."""
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        yield


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_socket(path: Path) -> None:
    with bound(path):
        pass  # the name stays


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name(f"{path.name}-target"))
    path.symlink_to(f"{path.name}-target")


Put = Callable[[Path], None]
KINDS: dict[Put, str] = {
    put_pipe: "a named pipe", put_socket: "a socket", put_device: "a device", put_link_to_a_pipe: "a named pipe",
}  # fmt: skip
NAMES = ("pipe", "socket", "device", "link")
EVERY_KIND = pytest.mark.parametrize("put", list(KINDS), ids=NAMES)


@EVERY_KIND
def test_entries_that_are_no_files_are_refused(tmp_path: Path, put: Put) -> None:
    put(tmp_path / "entry")
    for look in (lambda: open_regular(str(tmp_path / "entry")), lambda: urls.size(str(tmp_path / "entry")),
                 lambda: urls.read_bytes(str(tmp_path / "entry"))):  # fmt: skip
        with pytest.raises(UnreadableError, match=f"entry is {KINDS[put]}, not a file; copy the data to a file"):
            look()


def test_command_that_lists_and_hashes_ends_at_a_signal(tmp_path: Path) -> None:
    """A file of 64 GiB that takes no space stands for data that takes long to read."""
    (tmp_path / "texts").mkdir()
    with (tmp_path / "texts" / "huge.txt").open("wb") as file:
        file.truncate(64 << 30)
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "s"\nurl = "texts"\n')
    started = [sys.executable, "-m", "datakit", "run", "r.toml"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = subprocess.Popen(
            started, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, stderr=subprocess.PIPE
        )
        while "huge.txt" not in open_files(process.pid):
            assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == code


def open_files(pid: int) -> str:
    """The paths of a process's open files."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return "\n".join(found)
