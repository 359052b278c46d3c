"""Writes which documents of a block are retained, in survivor order, for the probes of the later blocks.

Each row holds the number of the document in the order in which the rows of its block are read; its rank among the ids
of the retained documents; and for each of its band keys the number of documents retained in earlier blocks, from which
a probe can tell whether the document is listed for the key. A probe reads everything else from the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.dedup.verification.arrange import SORTED_ROWS, Arranged
from datakit.dedup.verification.arrays import NONE, Earlier
from datakit.dedup.verification.run_kernels import scratch_array


def schema(bands: int) -> pa.Schema:
    """Return the schema of the rows."""
    numbers = [pa.field("document", pa.int64()), pa.field("rank", pa.int64())]
    return pa.schema([*numbers, pa.field("retained", pa.list_(pa.uint16(), bands))])


def retained_rows(known: Arranged, earlier: Earlier, representative: np.ndarray, scratch: Path) -> Iterator[pa.Table]:
    """Yield the retained documents. representative: NONE for each of them (see `verify`)."""
    total, bands = known.documents.keys.shape
    ranks = _ranks(known.documents.by_rank, representative, scratch)
    numbers = scratch_array(scratch / "number", (total,), np.int64)
    for first in range(0, total, SORTED_ROWS):
        places = known.place[first : first + SORTED_ROWS]
        numbers[places] = np.arange(first, first + len(places))
    for first in range(0, total, SORTED_ROWS):
        some = first + np.flatnonzero(representative[first : first + SORTED_ROWS] == NONE)
        counts = pa.FixedSizeListArray.from_arrays(pa.array(earlier.retained[some].reshape(-1)), bands)
        yield pa.table([numbers[some], ranks[some], counts], schema=schema(bands))


def _ranks(by_rank: np.ndarray, representative: np.ndarray, scratch: Path) -> np.ndarray:
    """Return, for each retained document, how many retained documents have a smaller id: int64 [N]."""
    ranks, before = scratch_array(scratch / "retained-rank", (len(by_rank),), np.int64), 0
    for first in range(0, len(by_rank), SORTED_ROWS):
        documents = by_rank[first : first + SORTED_ROWS]
        retained = representative[documents] == NONE
        ranks[documents] = before + np.cumsum(retained) - retained
        before += int(retained.sum())
    return ranks
