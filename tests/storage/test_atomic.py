"""Files appear whole or not at all, and never change afterwards."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from datakit.errors import DivergentOutputError, RootError
from datakit.storage import atomic, urls


def names(root: str) -> list[str]:
    return [info.path for info in urls.listing(root)]


def test_equal_second_commit_is_accepted(root: str) -> None:
    url = urls.join(root, "a/b/file.bin")
    first = atomic.commit_bytes(b"content", url)
    second = atomic.commit_bytes(b"content", url)
    assert (first.created, second.created) == (True, False)
    assert (first.bytes, first.xxh3) == (second.bytes, second.xxh3) == (7, atomic.hash_url(url)[0])
    assert urls.read_bytes(url) == b"content"
    assert names(root) == ["a/b/file.bin"]


def test_only_the_first_creates_and_its_content_stays(root: str) -> None:
    url = urls.join(root, "log/0000000001.json")
    assert [atomic.create_bytes(data, url) for data in (b"first", b"second", b"first")] == [True, False, False]
    assert urls.read_bytes(url) == b"first" and names(root) == ["log/0000000001.json"]


def test_file_staged_for_a_store_is_private(store: str) -> None:
    for umask in (0o000, 0o077):
        before = os.umask(umask)
        try:
            with atomic.staging(urls.join(store, "private.bin")) as path:
                path.write_bytes(b"secret")
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
        finally:
            os.umask(before)
        assert not path.exists()


def test_different_second_commit_is_refused(root: str) -> None:
    url = urls.join(root, "file.bin")
    atomic.commit_bytes(b"first", url)
    said = r"file\.bin exists with different content \(5 bytes.* remove the step's directory and run again.* not determ"
    with pytest.raises(DivergentOutputError, match=said):
        atomic.commit_bytes(b"second", url)
    assert urls.read_bytes(url) == b"first"
    assert names(root) == ["file.bin"]


def test_multipart_upload_is_conditional(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "S3_PART_BYTES", 5 << 20)  # S3's smallest
    url, first, second = urls.join(store, "large"), tmp_path / "first", tmp_path / "second"
    first.write_bytes(os.urandom(11 << 20))
    second.write_bytes(os.urandom(11 << 20))
    assert atomic.commit_file(first, url).created
    file_system, path = urls.filesystem(url)
    assert file_system.info(path)["ETag"].strip('"').endswith("-3"), "three parts"
    monkeypatch.setattr(atomic, "S3_MOST_PARTS", 2)
    assert atomic.commit_file(first, f"{url}-again").created
    assert file_system.info(f"{path}-again")["ETag"].strip('"').endswith("-2"), "larger parts"
    assert not atomic.commit_file(first, url).created
    with pytest.raises(DivergentOutputError):
        atomic.commit_file(second, url)
    assert atomic.hash_url(url) == atomic.hash_file(first)


RACER = """
import sys, time
from pathlib import Path
from datakit.errors import DivergentOutputError
from datakit.storage import atomic, urls

root, name, start = sys.argv[1:]
urls.exists(root)  # load the driver and connect
print("ready", flush=True)
while not Path(start).exists():
    time.sleep(0.001)
for number in range(8):
    for content in ("same", name):
        kind = "same" if content == "same" else "different"
        file = f"{kind}-{number}"
        try:
            print(file, atomic.commit_bytes(content.encode() * 5_000, urls.join(root, file)).created, flush=True)
        except DivergentOutputError:
            print(file, "divergent", flush=True)
"""


def test_exactly_one_of_concurrent_commits_creates(root: str, tmp_path: Path) -> None:
    start = tmp_path / ".start"
    command = [sys.executable, "-c", RACER, root]
    racers = [
        subprocess.Popen([*command, f"racer-{number}", str(start)], stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    start.touch()
    lines = [line.split() for racer in racers for line in racer.communicate(timeout=120)[0].splitlines()]
    assert [racer.returncode for racer in racers] == [0] * 4
    for number in range(8):
        for kind, loser in (("same", "False"), ("different", "divergent")):
            outcomes = Counter(outcome for file, outcome in lines if file == f"{kind}-{number}")
            assert outcomes == {"True": 1, loser: 3}
    assert len(names(root)) == 16, "a temporary file is left"


def test_state_is_replaced_atomically(root: str) -> None:
    url = urls.join(root, "state.json")
    atomic.replace_bytes(b"one", url)
    atomic.replace_bytes(b"two", url)
    assert urls.read_bytes(url) == b"two"


def test_file_from_another_file_system_is_committed(tmp_path: Path) -> None:
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is no second file system here to copy from")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"content")
        file.flush()
        assert atomic.commit_file(Path(file.name), str(tmp_path / "a/b")).created
        assert not atomic.commit_file(Path(file.name), str(tmp_path / "a/b")).created
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_file_system_without_links_gets_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # what exFAT answers

    monkeypatch.setattr(os, "link", refuse)
    url = str(tmp_path / "file")
    assert atomic.commit_bytes(b"content", url).created
    with pytest.raises((DivergentOutputError, RootError)):
        atomic.commit_bytes(b"other", url)
    assert urls.read_bytes(url) == b"content"


def test_upload_uses_little_memory(store: str, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from datakit.storage import atomic
def peak():
    return int(dict(line.split(":", 1) for line in open("/proc/self/status"))["VmHWM"].split()[0]) >> 10
path = Path(sys.argv[1])
with open(path, "wb") as file:
    for _ in range(120):
        file.write(bytes(1 << 20))
atomic.commit_bytes(b"warm", sys.argv[2] + "/warm")
before = peak()
atomic.commit_file(path, sys.argv[2] + "/large")
print(peak() - before)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "file"), urls.join(store, "memory")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    print(f"\nan upload of 120 MiB: {run.stdout.strip()} MiB", file=sys.stderr)
    assert int(run.stdout) < 90


@pytest.mark.parametrize("name", ["n" * 255, "\u65e5" * 85])
def test_names_may_be_as_long_as_the_file_system_allows(tmp_path: Path, name: str) -> None:
    atomic.commit_bytes(b"content", str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_names_as_long_as_the_disk_allows_are_written(tmp_path: Path) -> None:
    """The name of the temporary file ends with that of the file, yet is never longer than 255 bytes."""
    name = "é" * 127
    assert atomic.commit_bytes(b"content", str(tmp_path / name)).created
    assert names(str(tmp_path)) == [name]


def test_replaced_file_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a power cut could leave an empty `latest.json`."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def record_replace(source: Path, target: str) -> None:
        done.append(f"{source} -> {target}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    target = tmp_path / "folder" / "latest.json"
    atomic.replace_bytes(b"new", str(target))
    source = done[0]
    assert done == [source, f"{source} -> {target}", str(target.parent)]
    assert target.read_bytes() == b"new"
