"""How much a step will read, write and need, before it runs: rules of thumb, each with what it was measured on.

Text is estimated from the sizes of raw files by their compression, everything else from text. Once the step before is
done its manifest's figures replace the guess. The shares below were measured on 121 MB of text of 13 kinds (laws,
novels, manuals, short pages, code); real datasets differ by half as much again either way, and `plan` says "about".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from datakit.download.listing import SourceFile
from datakit.engine.worker.memory_limits import MEMORY_SHARE, memory_limit
from datakit.storage import urls
from datakit.storage.manifest import Manifest

EXPANSION = {".gz": 2.8, ".zst": 4.0, ".bz2": 4.0, ".xz": 4.0, ".parquet": 2.5}  # bytes of text for a byte of file
OUTPUT_SHARE = {  # bytes that stay on disk for a byte of text
    "normalize": 0.30,
    "signatures": 0.05,
    "dedup": 0.001,
    "consolidate": 0.30,
    "train-tokenizer": 0.0,
    "tokenize": 0.65,  # uint16; a vocabulary above 65,536 takes about half as much again
}
EXCHANGE_SHARE = {"normalize": 1.05, "dedup": 0.15}  # bytes on disk for a byte of text while the step runs


@dataclass(frozen=True)
class Resources:
    """What a run may use, and why it is that much. `disk_free` is None for an object store."""

    workers: int
    workers_reason: str
    memory_bytes: int
    memory_reason: str
    disk_free: int | None


def resources(root: str, workers: int | None) -> Resources:
    """What this machine gives a run."""
    cpus, memory = len(os.sched_getaffinity(0)), memory_limit()
    return Resources(
        workers=workers or cpus,
        workers_reason="as asked for" if workers else f"one for each of the {cpus} CPUs that this process may use",
        memory_bytes=int(memory * MEMORY_SHARE),
        memory_reason=f"{MEMORY_SHARE:.0%} of the {memory >> 20:,} MiB that this machine or its cgroup has",
        disk_free=_disk_free(root),
    )


def _disk_free(root: str) -> int | None:
    if not urls.is_local(root):
        return None
    place = urls.local_path(root)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize


def raw_text_bytes(files: Iterable[SourceFile]) -> int:
    """The bytes of text in raw files, about."""
    return int(sum(file.size * EXPANSION.get(os.path.splitext(file.path)[1], 1.0) for file in files))


def manifest_text_bytes(manifest: Manifest) -> int | None:
    """The bytes of text that a done step holds: exact where it says so, about where it is a download."""
    if manifest.stage == "download":
        return raw_text_bytes(SourceFile(part.path, part.bytes, part.xxh3) for part in manifest.partitions)
    return manifest.totals.text_bytes


def disk_bytes(stage: str, text_bytes: int) -> tuple[int, int]:
    """(bytes that stay, bytes at the peak) on disk for a step over so much text."""
    stays = int(text_bytes * OUTPUT_SHARE.get(stage, 0.0))
    return stays, stays + int(text_bytes * EXCHANGE_SHARE.get(stage, 0.0))
