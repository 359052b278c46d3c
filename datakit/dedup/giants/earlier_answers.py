"""Reads the answers that the probes of a block wrote into arrays that are mapped to scratch files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.dedup.verification.arrange import Arranged
from datakit.dedup.verification.arrays import Earlier
from datakit.dedup.verification.kernels import copy_lists
from datakit.dedup.verification.run_kernels import scratch_array


def earlier_answers(tables: Sequence[pa.Table], known: Arranged, blocks: int, scratch: Path) -> Earlier:
    """Return what these answers (tables with the schema of `answer_schema`, in the order of the earlier blocks) say
    about the documents of a block. blocks: the number of earlier blocks.
    """
    total, bands = known.documents.keys.shape
    offsets = scratch_array(scratch / "outcome-offsets", (total + 1,), np.int64)
    retained = scratch_array(scratch / "retained", (total, bands), np.uint16)
    batches = [batch for table in tables for batch in table.to_batches()]
    for batch in batches:
        places = known.place[batch["document"].to_numpy()]
        offsets[1 + places] += pc.call_function("list_value_length", [batch["words"]]).to_numpy()
        counts = np.asarray(batch["retained"].flatten()).reshape(-1, bands)
        retained[places] = np.maximum(retained[places], counts)  # the latest of these blocks has counted the others
    np.cumsum(offsets, out=offsets)
    words = scratch_array(scratch / "outcomes", (int(offsets[-1]),), np.uint64)
    ends = scratch_array(scratch / "outcome-ends", (total,), np.int64)
    ends[:] = offsets[:-1]
    for batch in batches:
        lists, places = batch["words"], known.place[batch["document"].to_numpy()]
        copy_lists(np.asarray(lists.values), np.asarray(lists.offsets), words, ends, places)
        ends[places] += pc.call_function("list_value_length", [lists]).to_numpy()
    scratch_space = np.zeros((2, blocks), np.int64)
    return Earlier(words, offsets, retained, known.high, known.low, scratch_space[0], scratch_space[1])
