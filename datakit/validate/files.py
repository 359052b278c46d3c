"""Compares files with the sizes and checksums that a manifest gives for them, and describes the differences.

Every byte is read, at the speed of the disk or the network; xxh3 takes 0.1 s of CPU time per GB. Damage does not stop
the comparison, so a single pass lists every damaged file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from datakit.errors import NotFoundError
from datakit.storage import atomic, urls

READERS = 4
REMEDY = "if this is a copy, copy the step again; otherwise remove its directory and run again (`datakit run`)"
Progress = Callable[[int, int], None]  # called with the numbers of files and bytes compared so far


@dataclass(frozen=True)
class DescribedFile:
    """A file that a manifest describes: its absolute URL, and either its size and xxh3-128 hash or its sha256 hash."""

    url: str
    bytes: int | None
    xxh3: str | None = None
    sha256: str | None = None
    remedy: str = REMEDY


@dataclass(frozen=True)
class Damage:
    """A file that differs from what was written: its URL, the difference, and the remedy."""

    url: str
    difference: str
    remedy: str = REMEDY

    def __str__(self) -> str:
        return f"{self.url} {self.difference}; {self.remedy}"


def compare_files(files: Iterable[DescribedFile], progress: Progress) -> tuple[int, list[Damage]]:
    """Compare files with their descriptions; return (number of bytes read, damage)."""
    total, damaged = 0, []
    with ThreadPoolExecutor(READERS, thread_name_prefix="datakit-validate") as pool:
        for number, (size, damage) in enumerate(pool.map(_compare, list(files)), start=1):
            total += size
            damaged += [damage] if damage is not None else []
            progress(number, total)
    return total, damaged


def _compare(file: DescribedFile) -> tuple[int, Damage | None]:
    """Compare one file with its description; return (number of bytes read, damage or None)."""
    try:
        if file.sha256 is not None:
            return _compare_sha256(file, file.sha256)
        found, size = atomic.hash_url(file.url)
    except NotFoundError:
        missing = "is missing" + (f"; it had {file.bytes} bytes" if file.bytes is not None else "")
        return 0, Damage(file.url, missing, file.remedy)
    if size != file.bytes:
        return size, Damage(file.url, f"has {size} bytes; the manifest says {file.bytes}", file.remedy)
    if found != file.xxh3:
        difference = f"has the same size, but xxh3 {found}; the manifest says {file.xxh3}"
        return size, Damage(file.url, difference, file.remedy)
    return size, None


def _compare_sha256(file: DescribedFile, sha256: str) -> tuple[int, Damage | None]:
    data = urls.read_bytes(file.url)
    found = hashlib.sha256(data).hexdigest()
    difference = f"has sha256 {found}; the manifest says {sha256}"
    return len(data), None if found == sha256 else Damage(file.url, difference, file.remedy)
