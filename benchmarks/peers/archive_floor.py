"""Measures what no reader of web archives that verifies them can avoid: to inflate the members, and to hash the blocks
of the pages with SHA-1 (for their digests) and with XXH3 (for exact duplicates). Prints JSON: pages, bytes of their
blocks, and CPU-seconds for each part and for all.

    python -m benchmarks.peers.archive_floor FOLDER

Each part is one call per member of the fastest library that datakit uses. The members have been found before, and what
they hold is hashed as soon as it is inflated, so it is in the processor's cache.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import xxhash
from deflate import gzip_decompress

from datakit.engine.freed_memory import keep_freed_memory
from datakit.normalize.readers.web.small_members import MARK, SMALLEST

RESPONSE = b"WARC-Type: response"
HASHES: dict[str, Callable[[memoryview], object]] = {
    "sha1": lambda block: hashlib.sha1(block, usedforsecurity=False).digest(),
    "xxh3": xxhash.xxh3_128_digest,
}


def main() -> None:
    """Measure the floor for the archives of a folder."""
    keep_freed_memory()
    taken = {"inflate": 0.0, **dict.fromkeys(HASHES, 0.0)}
    pages = size = 0
    for path in sorted(Path(sys.argv[1]).iterdir()):
        for member in members(path.read_bytes()):
            start = time.process_time()
            content = gzip_decompress(member)
            taken["inflate"] += time.process_time() - start
            if RESPONSE not in content[:200]:
                continue
            block = memoryview(content)[content.index(b"\r\n\r\n") + 4 : -4]
            pages, size = pages + 1, size + len(block)
            for name, function in HASHES.items():
                start = time.process_time()
                function(block)
                taken[name] += time.process_time() - start
    print(json.dumps({"pages": pages, "text_bytes": size, "cpu_seconds": sum(taken.values()), **taken}))


def members(stored: bytes) -> list[memoryview]:
    """Return the gzip members of an archive."""
    starts = [0]
    while (at := stored.find(MARK, starts[-1] + SMALLEST)) > 0:
        starts.append(at)
    return [memoryview(stored)[start:stop] for start, stop in zip(starts, [*starts[1:], len(stored)], strict=True)]


if __name__ == "__main__":
    main()
