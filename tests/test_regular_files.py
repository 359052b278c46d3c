"""Wherever a path is given, a named pipe, a socket or a device in its place is refused by name, and nothing waits."""

from __future__ import annotations

import os
import shutil
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
from tests.support.caches import make_cache
from tests.support.command_line import command
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import write_lines

TEXTS = {"novels": [f"chapter {number} of a novel" for number in range(40)]}
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache."""
    return make_cache(tmp_path_factory.mktemp("made"), TEXTS).parent


@EVERY_KIND
def test_entries_that_are_no_files_are_refused(tmp_path: Path, put: Put) -> None:
    put(tmp_path / "entry")
    for look in (lambda: open_regular(str(tmp_path / "entry")), lambda: urls.size(str(tmp_path / "entry")),
                 lambda: urls.read_bytes(str(tmp_path / "entry"))):  # fmt: skip
        with pytest.raises(UnreadableError, match=f"entry is {KINDS[put]}, not a file; copy the data to a file"):
            look()


def ends(*words: str | Path, cwd: Path) -> str:
    """The standard error of a command that must fail, and not because it was killed."""
    done = command(*words, cwd=cwd)
    assert done.returncode in (1, 2), (words, done.stderr)
    assert "unexpected" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    return done.stderr


@EVERY_KIND
def test_recipes_and_run_files_are_refused_by_name(tmp_path: Path, put: Put) -> None:
    put(tmp_path / "entry.toml")
    for words in (("run",), ("plan",), ("train",), ("mixture", "preview")):
        assert f"entry.toml is {KINDS[put]}, not a file" in ends(*words, tmp_path / "entry.toml", cwd=tmp_path), words


@EVERY_KIND
def test_tokenizers_are_refused_by_name(tmp_path: Path, put: Put) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", TEXTS["novels"])
    put(tmp_path / "entry.json")
    (tmp_path / "r.toml").write_text(
        'name = "r"\n[[sources]]\nname = "s"\nurl = "texts"\n[tokenize]\ntokenizer = "entry.json"\n'
    )
    assert f"entry.json is {KINDS[put]}, not a file" in ends("run", "r.toml", cwd=tmp_path)


@pytest.mark.parametrize("put", [put_pipe, put_device], ids=["pipe", "device"])
@pytest.mark.parametrize(
    "name",
    ["manifest.json", "tokenizer.json", "data/novels/shard-00000/c/0", "data/novels/shard-00000.lengths",
     "data/novels/shard-00000.docs.parquet"],
)  # fmt: skip
def test_files_of_caches_are_refused_by_name(made: Path, tmp_path: Path, put: Put, name: str) -> None:
    shutil.copytree(made / "cache", tmp_path / "cache")
    (tmp_path / "cache" / name).unlink()
    put(tmp_path / "cache" / name)
    assert f"{Path(name).name} is {KINDS[put]}, not a file" in ends("validate", "cache", cwd=tmp_path)
    if name not in ("data/novels/shard-00000.docs.parquet", "data/novels/shard-00000.lengths"):
        assert Path(name).name in ends("cache", "show", "cache", "--document", "0", cwd=tmp_path)


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
