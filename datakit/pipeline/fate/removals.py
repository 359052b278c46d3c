"""Finds three things for a document: what dedup decided about it, which documents are in its cluster, and which texts
were compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.errors import CorruptError
from datakit.pipeline.fate.behind import Behind, Finished
from datakit.pipeline.fate.records import Report
from datakit.storage.parquet import iterate_shard

FUZZY = "fuzzy"
COLUMNS = ["id", "reason", "cluster_id", "representative_id", "representative_source", "jaccard"]


@dataclass(frozen=True)
class Removal:
    """A removed document, and the retained document (the representative) that it duplicates."""

    source: str
    id: str
    reason: str
    cluster_id: str
    representative_id: str
    representative_source: str
    jaccard: float


@dataclass(frozen=True)
class Comparison:
    """The texts of a near duplicate and its representative, and their similarity by the measure that dedup used."""

    removal: Removal
    measure: str
    similarity: float
    threshold: float
    text: str
    representative_text: str


def removal_of(dedup: Finished, source: str, identity: str) -> Removal | None:
    """Return the removal of a document by dedup, or None if dedup retained the document."""
    found = dedup.row(source, identity, COLUMNS)
    return Removal(source, **found[2]) if found else None


def compared(behind: Behind, dedup: Finished, removal: Removal) -> Comparison:
    """Return a removal with the texts of the near duplicate and of its representative, and with their similarity."""
    text = text_of(behind, removal.source, removal.id)
    representative = text_of(behind, removal.representative_source, removal.representative_id)
    measure, similarity = dedup.manifest.parameters["measure"], removal.jaccard
    if measure == "containment":
        similarity = _containment(text, representative, dedup.manifest.parameters["ngram"])
    return Comparison(removal, measure, similarity, dedup.manifest.parameters["threshold"], text, representative)


def text_of(behind: Behind, source: str, identity: str) -> str:
    """Return the text of a document. Raises CorruptError if normalize's output does not contain the document."""
    step = behind.normalized[source]
    found = step.row(source, identity, ["text"])
    if found is None:
        raise CorruptError(f"{step.directory} has no document {identity}, but dedup lists it; was the step changed?")
    return found[2]["text"]


def _containment(text: str, representative: str, ngram: int) -> float:
    from datakit.text.shingles import shingle_sets  # imported only here, because it imports numba

    ends, values = shingle_sets(pa.array([text, representative], pa.large_string()), ngram)
    return float(np.isin(values[: ends[1]], values[ends[1] :]).mean()) if ends[1] else 0.0


def cluster_of(dedup: Finished, identity: str, report: Report) -> Iterator[Removal]:
    """Yield the removals in a document's cluster. Reads the removals of all partitions, twice."""
    clusters = {one.cluster_id for one in _removals(dedup, ("id", "representative_id"), [identity], report)}
    yield from _removals(dedup, ("cluster_id",), list(clusters), report)


def clusters_of(
    dedup: Finished, documents: Sequence[tuple[str, str]], report: Report
) -> dict[tuple[str, str], tuple[str, int]]:
    """Return, for each retained document (source, id) in favor of which dedup removed others, the id of its cluster and
    the number of documents removed. Reads the removals of all partitions once.
    """
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for one in _removals(dedup, ("representative_id",), [identity for _, identity in documents], report):
        document = one.representative_source, one.representative_id
        found[document] = one.cluster_id, found.get(document, ("", 0))[1] + 1
    return found


def _removals(dedup: Finished, columns: Sequence[str], values: list[str], report: Report) -> Iterator[Removal]:
    """Yield the removals with one of `values` in at least one of `columns`."""
    wanted = reduce(or_, (pc.field(column).isin(values) for column in columns))
    parts = [part for part in dedup.manifest.partitions if part.rows and values]
    for number, part in enumerate(parts):
        report(number, len(parts), "files of removals for this cluster")
        for table in iterate_shard(dedup.url(part.path), COLUMNS):
            yield from (Removal(part.source, **row) for row in table.filter(wanted).to_pylist())


def members_of(removals: Sequence[Removal]) -> list[dict[str, Any]]:
    """Return the documents of a cluster as rows: first the retained documents, then the removed ones, each with the
    reason and the similarity.
    """
    retained = dict.fromkeys((one.representative_source, one.representative_id) for one in removals)
    shown = [{"source": source, "id": identity, "reason": "retained"} for source, identity in retained]
    return [*shown, *map(asdict, removals)]
