"""Finds where documents of a token cache came from: the record in the raw files, and the cluster of near duplicates
that dedup kept the document for.

Cost: one search per document in normalize's output, and one read of dedup's list of removals for all documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from datakit.errors import DatakitError
from datakit.pipeline.fate.behind import Behind, steps_behind
from datakit.pipeline.fate.records import Record, Report, records_of
from datakit.pipeline.fate.removals import clusters_of


@dataclass(frozen=True)
class Origin:
    """The origin of a document. A field is None if its value is not known.

    file, position, unit: the raw file and the record's place in it; unit: "byte" or "row". source_id: the record's id
    in the file. equal_texts: the number of further records with exactly this text. cluster: the id of the cluster of
    duplicates that dedup kept this document for; None if it removed nothing in favor of this document. removed: the
    number of documents that dedup removed in favor of this one. unknown: why the record is not known, or "".
    """

    file: str | None = None
    position: int | None = None
    unit: str | None = None
    source_id: str | None = None
    equal_texts: int | None = None
    cluster: str | None = None
    removed: int | None = None
    unknown: str = ""


def origins_of(cache: str, documents: Iterable[tuple[str, str]], report: Report) -> dict[tuple[str, str], Origin]:
    """Return the origin of each document of a cache, given as (source, id). If the steps from which the cache was made
    are not there, as for an imported cache, every origin says so.
    """
    wanted = list(dict.fromkeys(documents))
    try:
        behind = steps_behind(cache)
        clusters = _clusters(behind, wanted, report)
    except DatakitError as error:
        return {document: Origin(unknown=str(error).splitlines()[0]) for document in wanted}
    found = {}
    for number, document in enumerate(wanted):
        report(number, len(wanted), "documents in the normalized texts")
        cluster, removed = clusters.get(document, (None, 0))
        found[document] = _origin(behind, document, cluster, removed)
    return found


def _clusters(
    behind: Behind, documents: list[tuple[str, str]], report: Report
) -> dict[tuple[str, str], tuple[str, int]]:
    dedup = behind.of("dedup")
    return clusters_of(dedup, documents, report) if dedup is not None and documents else {}


def _origin(behind: Behind, document: tuple[str, str], cluster: str | None, removed: int) -> Origin:
    source, identity = document
    step = behind.normalized.get(source)
    records: list[Record] = records_of(step, identity) if step is not None else []
    if not records:
        why = f"no normalize step of source {source!r} leads to the cache" if step is None else "it is not in normalize"
        return Origin(cluster=cluster, removed=removed, unknown=why)
    kept = records[0]
    return Origin(kept.file, kept.position, kept.unit, kept.source_id, len(records) - 1, cluster, removed)
