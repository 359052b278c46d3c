"""Runs the verification kernels on documents, with scratch arrays mapped to files, and warms up these kernels. All
arrays with an entry per document are mapped, so anonymous memory does not grow with the size of a component.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from datakit.dedup.verification.arrays import NONE, Documents, Earlier, Index, Proposals, no_earlier
from datakit.dedup.verification.kernels import copy_lists, verify_documents
from datakit.dedup.verification.rules import COUNTED, Rules
from datakit.storage.io_errors import scratch_errors
from datakit.storage.stale_files import scratch_directory

STEP_DOCUMENTS = 16_384  # documents judged between two progress reports


def scratch_array(path: Path, shape: tuple[int, ...], kind: type) -> np.ndarray:
    """Return an array of zeros that is mapped to an unlinked file.

    Its pages can be evicted to that file, and the disk space is freed with the array. The disk space is allocated
    immediately, because touching a page on a full disk would raise SIGBUS. Raises NoSpaceError.
    """
    if 0 in shape:
        return np.zeros(shape, kind)
    with scratch_errors(path), open(path, "w+b") as file:
        os.posix_fallocate(file.fileno(), 0, math.prod(shape) * np.dtype(kind).itemsize)
        array = np.asarray(np.memmap(file, kind, "r+", shape=shape))
    path.unlink()
    return array


def verify(
    documents: Documents,
    rules: Rules,
    scratch: Path,
    report: Callable[[int], None] = lambda documents: None,
    earlier: Earlier | None = None,
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Judge all documents, in order. report: called with the number of documents judged so far. earlier: what is known
    from earlier blocks, if the documents are a block of a giant component.

    Returns the representatives (int64 [N]), the Jaccard similarities (float64 [N]) and the counters named in COUNTED.

    The representative of a removed document is the position of the retained document that it duplicates, or KNOWN_HIT
    minus the index in `earlier.words` of the outcome that describes it. The representative of a retained document is
    NONE. The similarity is that of a document and its representative, or 0 if the document is retained.
    """
    total, bands = documents.keys.shape
    largest = int(np.diff(documents.starts).max(initial=0))
    index, proposals = empty_index(largest, bands, scratch), empty_proposals(largest, bands * rules.listed, scratch)
    representative = scratch_array(scratch / "representative", (total,), np.int64)
    jaccard = scratch_array(scratch / "jaccard", (total,), np.float64)
    counts, number, before = np.zeros(len(COUNTED), np.int64), 0, earlier or no_earlier()
    for first in range(0, total, STEP_DOCUMENTS):
        last, state = min(first + STEP_DOCUMENTS, total), (index, proposals, representative, jaccard, counts)
        number = verify_documents(first, last, number, documents, before, rules, rules.listed, *state)
        report(last)
    return representative, jaccard, dict(zip(COUNTED, counts.tolist(), strict=True))


def empty_index(largest: int, bands: int, scratch: Path) -> Index:
    """Return an empty index for components of up to `largest` documents."""
    slots = 1 << max(1, (2 * largest * bands - 1).bit_length())
    index = Index(
        keys=scratch_array(scratch / "table-keys", (slots,), np.uint64),
        stamp=scratch_array(scratch / "table-stamp", (slots,), np.int64),
        head=scratch_array(scratch / "table-head", (slots,), np.int64),
        size=scratch_array(scratch / "table-size", (slots,), np.int64),
        link=scratch_array(scratch / "table-link", (largest * bands,), np.int64),
    )
    index.stamp[:] = NONE
    return index


def empty_proposals(largest: int, most: int, scratch: Path) -> Proposals:
    """Return the scratch space for up to `most` candidates among up to `largest` documents."""
    proposals = Proposals(
        seen=scratch_array(scratch / "seen", (largest,), np.int64),
        shared=scratch_array(scratch / "shared", (largest,), np.int64),
        best=np.empty(most, np.int64),
    )
    proposals.seen[:] = NONE
    return proposals


def warm() -> None:
    """Load the kernels from numba's cache, or compile them, so that no task has to do so."""
    # Numba compiles separate code for read-only arrays, such as these and those that tasks get from Arrow.
    values, offsets = np.frombuffer(bytes(16), np.uint64), np.frombuffer(bytes(24), np.int64)
    copy_lists(values, offsets, np.zeros(2, np.uint64), np.zeros(3, np.int64), np.zeros(2, np.int64))
    documents = Documents(
        starts=np.array([0, 2], np.int64),
        offsets=np.array([0, 1, 2], np.int64),
        shingles=np.ones(2, np.uint64),
        keys=np.ones((2, 1), np.uint64),
        rank=np.arange(2),
        by_rank=np.arange(2),
    )
    with scratch_directory() as folder:
        verify(documents, Rules(1.0, 0, 1), folder)
