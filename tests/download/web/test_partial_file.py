"""A partial file keeps exactly the bytes that have arrived, and knows which ones these are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.download.web import partial_file as module
from datakit.download.web.partial_file import PartialFile, partial_file


class _StopError(Exception):
    pass


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 10)


def write_and_stop(folder: Path, *writes: tuple[int, bytes], version: str = "v1", size: int = 25) -> None:
    """Write to parts, and end the block with an exception."""
    with pytest.raises(_StopError), partial_file(folder, "a", size, version) as partial:
        for number, data in writes:
            partial.write(number, data)
        raise _StopError


def state(folder: Path, version: str = "v1", size: int = 25) -> tuple[list[int], bytes]:
    """The counts that the next attempt finds, and the bytes."""
    found: list[PartialFile] = []
    content = b""
    with pytest.raises(_StopError), partial_file(folder, "a", size, version) as partial:
        found.append(partial)
        content = partial.path.read_bytes()
        raise _StopError
    return found[0].done, content


def test_next_attempt_finds_the_bytes(tmp_path: Path) -> None:
    write_and_stop(tmp_path, (1, b"abc"), (0, b"0123456789"), (1, b"de"))
    assert state(tmp_path) == ([10, 5, 0], b"0123456789abcde" + bytes(10))
    with partial_file(tmp_path, "a", 25, "v1") as partial:
        assert partial.missing_parts() == [1, 2] and partial.received() == 15
        partial.write(1, b"fghij")
        partial.write(2, b"klmno")
        assert partial.path.read_bytes() == b"0123456789abcdefghijklmno"
    assert list(tmp_path.iterdir()) == [], "nothing is left of a finished download"


@pytest.mark.parametrize(("version", "size"), [("v2", 25), ("v1", 24), ("v1", 35)])
def test_bytes_of_another_version_are_not_used(tmp_path: Path, version: str, size: int) -> None:
    write_and_stop(tmp_path, (0, b"0123"))
    done, content = state(tmp_path, version, size)
    assert not any(done) and content == bytes(size)


def test_bytes_from_before_a_reboot_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_and_stop(tmp_path, (0, b"0123"))
    monkeypatch.setattr(module.locks, "boot", lambda: "another boot")
    assert state(tmp_path)[0] == [0, 0, 0]


@pytest.mark.parametrize("damage", [b"", b"datakit.parts/1 \n", b"x" * 200])
def test_damaged_counts_are_not_used(tmp_path: Path, damage: bytes) -> None:
    write_and_stop(tmp_path, (0, b"0123"))
    (counts,) = tmp_path.glob("*.parts")
    counts.write_bytes(damage)
    assert state(tmp_path) == ([0, 0, 0], bytes(25))


def test_counts_beyond_a_part_are_not_used(tmp_path: Path) -> None:
    write_and_stop(tmp_path, (0, b"0123"))
    (counts,) = tmp_path.glob("*.parts")
    counts.write_bytes(counts.read_bytes()[:-8] + (99).to_bytes(8, "little"))
    assert state(tmp_path)[0] == [0, 0, 0]


def test_two_attempts_at_once_use_different_files(tmp_path: Path) -> None:
    with partial_file(tmp_path, "a", 25, "v1") as one, partial_file(tmp_path, "a", 25, "v1") as other:
        assert one.path != other.path
        other.write(0, b"zz")
        assert one.path.read_bytes() == bytes(25)
    assert list(tmp_path.iterdir()) == []


def test_killed_process_loses_nothing(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with partial_file(tmp_path, "a", 25, "v1") as partial:
            partial.write(2, b"klm")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert state(tmp_path) == ([0, 0, 3], bytes(20) + b"klm" + bytes(2))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 60), writes=st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=10)), max_size=12))
def test_any_order_of_writes_and_stops(
    tmp_path_factory: pytest.TempPathFactory, size: int, writes: list[tuple[int, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    expected = bytearray(size)
    for number, data in writes:
        with pytest.raises(_StopError), partial_file(folder, "a", size, "v") as partial:
            if number < len(partial.done):
                data = data[: partial.missing(number)]
                at = partial.part(number)[0] + partial.done[number]
                partial.write(number, data)
                expected[at : at + len(data)] = data
            raise _StopError
    assert state(folder, "v", size)[1] == bytes(expected)
