"""Transfers: a remote file arrives complete and as listed, or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from xxhash import xxh3_128_hexdigest as xxh3

from datakit.download import transfer
from datakit.download.source_file import SourceFile
from datakit.download.stage import files_base
from datakit.errors import ChangedInputError, NotFoundError, StorageError
from datakit.storage.atomic import Committed
from tests.support.normalize.sources import download_step, list_source, run_download


class FlakyFileSystem(MemoryFileSystem):
    """A store whose opened files fail with the errors in `broken`, in order; None reads to the end."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in the base class: one store for all instances
    pseudo_dirs = [""]  # noqa: RUF012
    broken: list[Exception | None] = []  # noqa: RUF012
    etag = "v1"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).replace("flaky://", "memory://"))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {**super().info(path, **options), "ETag": type(self).etag and f'"{type(self).etag}"'}

    def find(
        self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        names = super().find(path, maxdepth, withdirs, False, **options)
        return {name: self.info(name) for name in names} if detail else names

    def _open(self, path: str, mode: str = "rb", *rest: Any, **options: Any) -> Any:
        file = super()._open(path, mode, *rest, **options)
        error = type(self).broken.pop(0) if mode == "rb" and type(self).broken else None
        if error is None:
            return file
        return _Breaking(file, error)


class _Breaking:
    """Returns ten bytes, then raises the error."""

    def __init__(self, file: Any, error: Exception) -> None:
        self._file, self._error, self._given = file, error, False

    def read(self, size: int = -1) -> bytes:
        if self._given:
            raise self._error
        self._given = True
        return self._file.read(10)

    def seek(self, place: int) -> None:
        self._file.seek(place)

    def __enter__(self) -> _Breaking:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.seek(0)


@pytest.fixture
def flaky() -> Iterator[type[FlakyFileSystem]]:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    FlakyFileSystem.store.clear()
    FlakyFileSystem.broken, FlakyFileSystem.etag = [], "v1"
    FlakyFileSystem().pipe("/shelf/a.txt", b"0123456789" * 5)
    with patch.object(transfer.time, "sleep"):
        yield FlakyFileSystem


CHANGED = r"a\.txt: it has changed since it was listed \(checksum v1, now v2\); run again"


def fetch(file: SourceFile, folder: Path, progress: Callable[[int], None] = lambda done: None) -> Committed:
    url, target = f"flaky://shelf/{file.path}", str(folder / file.path)
    return transfer.fetch(url, target, file.size, file.checksum, progress)


def test_broken_transfer_resumes(flaky: type[FlakyFileSystem], tmp_path: Path) -> None:
    flaky.broken = [TimeoutError("slow"), ConnectionResetError("gone"), None]
    output = run_download(download_step("flaky://shelf", str(tmp_path)))
    assert (tmp_path / "raw/a.txt").read_bytes() == b"0123456789" * 5
    assert [(part.path, part.bytes, part.xxh3) for part in output.partitions] == [
        ("a.txt", 50, xxh3(b"0123456789" * 5)),
    ]
    assert flaky.broken == [], "three attempts"
    assert files_base("flaky://shelf", str(tmp_path)) == f"{tmp_path}/raw"


def test_stalled_transfer_gives_up(flaky: type[FlakyFileSystem], tmp_path: Path) -> None:
    step = download_step("flaky://shelf", str(tmp_path))

    def fail(*_: Any, **__: Any) -> Any:
        raise TimeoutError("no byte came")

    words = r"flaky://shelf/a\.txt failed 6 times in a row; the last error was: no byte came"
    with patch.object(flaky, "_open", fail), pytest.raises(StorageError, match=words):
        run_download(step)
    assert not list(tmp_path.rglob("*.txt")), "no partial file is visible"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            PermissionError(13, "Forbidden"),
            StorageError,
            r"access to .*a\.txt was denied.*check the credentials for flaky://",
        ),
        (FileNotFoundError("gone"), NotFoundError, "was listed but no longer exists"),
    ],
)
def test_refusal_is_not_retried(
    flaky: type[FlakyFileSystem], tmp_path: Path, error: Exception, kind: type[Exception], words: str
) -> None:
    step = download_step("flaky://shelf", str(tmp_path))
    flaky.broken = [error, None]
    with pytest.raises(kind, match=words):
        run_download(step)
    assert flaky.broken == [None], "one attempt"


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.EINVAL, errno.EDQUOT])
def test_only_failures_of_the_network_are_retried(flaky: type[FlakyFileSystem], tmp_path: Path, number: int) -> None:
    step = download_step("flaky://shelf", str(tmp_path))
    flaky.broken = [OSError(number, os.strerror(number)), None]
    with pytest.raises(StorageError, match=r"this is not a network error, so no retry was made|no space left"):
        run_download(step)
    assert flaky.broken == [None], "one attempt"
    flaky.broken = [OSError(errno.EIO, "We encountered an internal error"), OSError(errno.EBUSY, "SlowDown"), None]
    run_download(step)
    assert flaky.broken == []


def test_changed_file_is_refused(flaky: type[FlakyFileSystem], tmp_path: Path) -> None:
    step = download_step("flaky://shelf", str(tmp_path))
    flaky.etag = "v2"
    with pytest.raises(ChangedInputError, match=CHANGED):
        run_download(step)
    flaky.etag = "v1"
    flaky().pipe("/shelf/a.txt", b"0123456789" * 6)
    with pytest.raises(ChangedInputError, match="longer than the 50 bytes that were listed"):
        run_download(step)


@pytest.mark.parametrize("moment", ["after a break", "after the last byte"])
def test_file_replaced_during_transfer_is_refused(flaky: type[FlakyFileSystem], tmp_path: Path, moment: str) -> None:
    (listed,) = list_source("flaky://shelf", [], [])

    def replace(*_: object) -> None:
        flaky.etag = "v2"
        flaky().pipe("/shelf/a.txt", b"9876543210" * 5)

    if moment == "after a break":
        flaky.broken = [ConnectionResetError("gone"), None]
    with patch.object(transfer.time, "sleep", replace), pytest.raises(ChangedInputError, match=CHANGED):
        fetch(listed, tmp_path, lambda done: replace() if done == 50 else None)
    assert not list(tmp_path.iterdir()), "no mix of two files is kept"


@pytest.mark.parametrize("broken", [[], [TimeoutError("slow"), ConnectionResetError("gone"), None]])
def test_content_is_compared_without_checksums(
    flaky: type[FlakyFileSystem], tmp_path: Path, broken: list[Exception | None]
) -> None:
    flaky.etag = ""
    (listed,) = list_source("flaky://shelf", [], [])
    assert listed.checksum == xxh3(b"0123456789" * 5)
    flaky.broken = list(broken)
    assert fetch(listed, tmp_path).xxh3 == listed.checksum
    flaky().pipe("/shelf/a.txt", b"9876543210" * 5)
    flaky.broken = list(broken)
    with pytest.raises(ChangedInputError, match=r"a\.txt: it has changed since it was listed"):
        fetch(listed, tmp_path / "another")
    assert not list((tmp_path / "another").iterdir())
