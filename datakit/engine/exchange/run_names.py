"""Says what the names of runs mean: which buckets a run holds, and which files hold a range of buckets.

    exchange/<phase>/<key>-00003.arrow                 written by a map task: has every bucket
    exchange/<phase>/<key>-00003-by-128.arrow          the same if there are many buckets: each bucket of this run holds
                                                       128 consecutive buckets of the exchange
    exchange/<phase>-merge/00007-*-of-64x512.arrow     merged from a group of runs: stands for 64 files, "*" for the
                                                       number of a file; each file holds 512 consecutive buckets

A plan therefore passes on one name for each merged run, whatever the number of its files.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_BUCKETS = 1 << 10  # most buckets in a run of a map task; their batches and index stay large enough to be cheap
COARSE = re.compile(r"-by-([0-9]+)\.arrow$")
PIECES = re.compile(r"-\*-of-([0-9]+)x([0-9]+)\.arrow$")


class Range(NamedTuple):
    """Buckets [first, stop) of the file `path`, numbered as in this file. each: the number of buckets of the exchange
    that each of them holds.
    """

    path: str
    first: int
    stop: int
    each: int = 1


def buckets_each(buckets: int) -> int:
    """Return how many buckets of an exchange each bucket of a map task's run holds; `buckets` is a power of two.

    >>> buckets_each(1024), buckets_each(1 << 17)
    (1, 128)
    """
    return max(1, buckets // MOST_BUCKETS)


def map_run(prefix: str, number: int, each: int) -> str:
    """Return the path of a map task's run."""
    return f"{prefix}-{number:05d}{f'-by-{each}' if each > 1 else ''}.arrow"


def merged_run(folder: str, group: int, pieces: int, buckets: int) -> str:
    """Return the name of a merged run. pieces: the number of its files. buckets: the number of buckets in each."""
    return f"{folder}/{group:05d}-*-of-{pieces}x{buckets}.arrow"


def piece_of(run: str, number: int) -> str:
    """Return the path of a piece of a merged run."""
    return run.replace("*", f"{number:05d}")


def ranges_of(run: str, first: int, stop: int) -> list[Range]:
    """Return where buckets [first, stop) of an exchange are in a run, in ascending order. Raises ValueError for a run
    of a map task that divides the buckets more coarsely; such runs have to be merged first.

    >>> ranges_of("a.arrow", 3, 5)
    [Range(path='a.arrow', first=3, stop=5, each=1)]
    >>> ranges_of("a-by-4.arrow", 4, 8)
    [Range(path='a-by-4.arrow', first=1, stop=2, each=4)]
    >>> [tuple(one) for one in ranges_of("a-*-of-2x8.arrow", 6, 9)]
    [('a-00000-of-2x8.arrow', 6, 8, 1), ('a-00001-of-2x8.arrow', 0, 1, 1)]
    """
    if coarse := COARSE.search(run):
        each = int(coarse[1])
        if first % each or stop % each:
            raise ValueError(f"buckets {first} to {stop} were requested from {run}, which divides them more coarsely")
        return [Range(run, first // each, stop // each, each)]
    if pieces := PIECES.search(run):
        count = int(pieces[2])
        return [
            Range(piece_of(run, number), max(first - number * count, 0), min(stop - number * count, count))
            for number in range(first // count, -(-stop // count))
        ]
    return [Range(run, first, stop)]
