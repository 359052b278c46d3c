"""Annotates documents with the items of evaluation sets whose n-grams they contain. What follows from a hit is decided
in `decisions.py` or by rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.annotate.annotator import SPAN, SPANS, TEXT
from datakit.annotate.contamination.evaluation_sets import EvaluationSet, ItemFile
from datakit.annotate.contamination.hit_kernels import Hits, group
from datakit.annotate.contamination.index_file import IndexRules, OpenIndex, index_parameters
from datakit.annotate.contamination.item_counts import ALL, ITEMS, TOO_SHORT
from datakit.annotate.contamination.search_kernels import search
from datakit.errors import InputError, counted
from datakit.text.string_buffers import string_buffers
from datakit.text.unicode_words import character_table

KIND = "evaluation"  # the kind of all spans
LONGEST_DOCUMENT = 2**32 - 1  # bytes; the kernels pack the two ends of a span into 64 bits
_BYTES = pa.struct([pa.field("start", pa.uint64(), nullable=False), pa.field("stop", pa.uint64(), nullable=False)])
_HIT_SPANS = pa.list_(pa.field("element", _BYTES, nullable=False))
# set, item: the evaluation set, and the number of the item in it, from 0. matches: the number of distinct n-grams of
# the item that the document contains. ngrams: the number of distinct n-grams of the item. overlap: matches / ngrams.
# spans: the bytes of the matching words in the document, sorted; those that overlap or touch are one span.
HIT = pa.struct(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("item", pa.uint64(), nullable=False),
        pa.field("matches", pa.uint32(), nullable=False),
        pa.field("ngrams", pa.uint32(), nullable=False),
        pa.field("overlap", pa.float64(), nullable=False),
        pa.field("spans", _HIT_SPANS, nullable=False),
    ]
)
HITS = pa.list_(pa.field("element", HIT, nullable=False))
# items: the number of items of which the document contains an n-gram; null if there is none. hits: the `max_hits`
# items with the largest overlap, in this order; of equal ones, the earlier item first. spans: the bytes of all matching
# words.
SCHEMA = pa.schema([pa.field("items", pa.uint32()), pa.field("hits", HITS), pa.field("spans", SPANS)])


class ContaminationAnnotator:
    """Finds n-grams of evaluation sets; implements `Annotator`. `Config.annotator` makes it. Raises InputError for a
    set of which nothing can be found.
    """

    name = "contamination"
    version = 1
    columns: tuple[str, ...] = (TEXT,)
    schema: pa.Schema = SCHEMA
    sparse = True

    def __init__(
        self,
        sets: Sequence[EvaluationSet],
        files: Sequence[Sequence[ItemFile]],
        rules: IndexRules,
        max_hits: int,
        index: OpenIndex,
    ) -> None:
        self.parameters: dict[str, Any] = {**index_parameters(sets, files, rules), "max_hits": max_hits}
        self.index = index
        self._names = pa.array([one.name for one in sets], pa.string())
        self._rules, self._max_hits = rules, max_hits
        self._refuse_sets_without_ngrams(sets)

    def _refuse_sets_without_ngrams(self, sets: Sequence[EvaluationSet]) -> None:
        """Raise InputError for a set of which nothing can be found: that no document hits it would prove nothing."""
        ngrams = self.index.arrays.item_ngrams
        for number, one in enumerate(sets):
            items = ngrams[self.index.set_starts[number] : self.index.set_starts[number + 1]]
            if not items.any():
                raise InputError(
                    f"evaluation set {one.name!r}: none of its {counted(len(items), 'item')} can be found, because no "
                    f"text in {', '.join(one.columns)} has {self._rules.ngram} words, or at least "
                    f"{self._rules.min_words} words with {self._rules.min_characters} characters; name other columns, "
                    "or lower `min_words` and `min_characters`"
                )

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return `SCHEMA` for each document. Raises InputError for a document of 4 GiB or more."""
        data, offsets = string_buffers(batch[TEXT])
        if np.diff(offsets).max(initial=0) > LONGEST_DOCUMENT:
            raise InputError("a document has 4 GiB or more; split it before it is searched for evaluation items")
        table, index = character_table(), self.index.arrays
        matches = search(data, offsets, table, self._rules.ngram, self._rules.min_words, index)
        found = group(data, offsets, table, index, matches, self._max_hits)
        items = pa.array(found.items.astype(np.uint32), pa.uint32(), mask=found.items == 0)
        return pa.record_batch([items, self._hits(found), _all_spans(found)], schema=SCHEMA)

    def counts(self, attributes: pa.Table) -> dict[str, int]:
        """Return for each evaluation set the number of documents with a hit among those that are listed."""
        lengths = attributes["hits"].combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
        documents = np.repeat(np.arange(attributes.num_rows), lengths.astype(np.int64))
        sets = pc.call_function("list_flatten", [attributes["hits"]]).combine_chunks().field("set")
        pairs = pa.table({"set": sets, "document": documents}).group_by(["set", "document"]).aggregate([])
        found = pairs.group_by("set").aggregate([([], "count_all")]).to_pylist()
        return dict.fromkeys(self._names.to_pylist(), 0) | {one["set"]: one["count_all"] for one in found}

    def file_counts(self) -> dict[str, int]:
        """Return for each evaluation set the number of its items, and of those that no document can hit, because all
        their texts are too short or hold no words.
        """
        found, ngrams = dict[str, int](), self.index.arrays.item_ngrams
        for name, (start, stop) in zip(self._names.to_pylist(), pairwise(self.index.set_starts), strict=True):
            found[ITEMS + name + ALL] = stop - start
            found[ITEMS + name + TOO_SHORT] = int((ngrams[start:stop] == 0).sum())
        return found

    def _hits(self, found: Hits) -> pa.Array:
        items, matches, ends = found.hits[:, 0], found.hits[:, 1], found.hits[:, 2]
        starts = np.array(self.index.set_starts, np.int64)
        chosen = np.searchsorted(starts, items, side="right") - 1
        ngrams = self.index.arrays.item_ngrams[items]
        start, stop = (pa.array(np.ascontiguousarray(found.hit_spans[:, i])) for i in (0, 1))
        spans = pa.StructArray.from_arrays([start, stop], fields=[*_BYTES])
        columns = [
            self._names.take(pa.array(chosen)),
            pa.array((items - starts[chosen]).astype(np.uint64)),
            pa.array(matches.astype(np.uint32)),
            pa.array(ngrams),
            pa.array(matches / ngrams),
            pa.ListArray.from_arrays(_offsets(ends), spans, type=_HIT_SPANS),
        ]
        hits = pa.StructArray.from_arrays(columns, fields=[*HIT])
        return pa.ListArray.from_arrays(_offsets(found.hit_ends), hits, type=HITS)


def _all_spans(found: Hits) -> pa.Array:
    start, stop = (pa.array(np.ascontiguousarray(found.spans[:, i])) for i in (0, 1))
    kind = pa.repeat(pa.scalar(KIND), len(found.spans))
    spans = pa.StructArray.from_arrays([start, stop, kind], fields=[*SPAN])
    return pa.ListArray.from_arrays(_offsets(found.span_ends), spans, type=SPANS)


def _offsets(ends: np.ndarray) -> pa.Array:
    return pa.array(np.concatenate(([0], ends)).astype(np.int32), pa.int32())
