"""Finds the records that have a document's text, and the documents that have the text of a record with a given source
id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from datakit.normalize.formats import ARROW, AUTO, PARQUET, format_of
from datakit.normalize.origins import duplicates_path, lists_of_duplicates, origins_path
from datakit.pipeline.fate.behind import Finished
from datakit.storage import urls
from datakit.storage.manifest import UNSEALED, Partition
from datakit.storage.parquet import find_rows, iterate_shard

# receives the number of items read so far, the total number of items, and a description of the items
Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Record:
    """A record that has the text of a document. A field is None if its value is not known.

    unit: the unit of `position`, "byte" or "row". kept: False for an exact duplicate, which normalize removed.
    """

    file: str | None
    position: int | None
    unit: str
    source_id: str | None
    kept: bool


def records_of(step: Finished, identity: str) -> list[Record]:
    """Return the records that have a document's text: first the one that was kept, then its duplicates. The list is
    empty if the step has no such document.
    """
    for partition in step.manifest.partitions:
        found = partition.rows and find_rows(step.url(partition.path), identity, ["source_id"])
        if found:
            listed = duplicates_path(urls.name(partition.path))
            copies = (
                _rows(step, listed, identity, ["source_id"]) if listed in lists_of_duplicates(step.manifest) else []
            )
            ids = [row["source_id"] for row in (found[0][1], *copies)]
            return _records(step, partition, identity, ids)
    return []


def _records(step: Finished, partition: Partition, identity: str, source_ids: Sequence[str | None]) -> list[Record]:
    if step.manifest.format == UNSEALED:  # earlier versions recorded no origins
        return [Record(None, None, "byte", name, number == 0) for number, name in enumerate(source_ids)]
    origins = _rows(step, origins_path(urls.name(partition.path)), identity, ["file", "position"])
    paths = _paths(step, {row["file"] for row in origins})
    return [
        Record(path := paths.get(row["file"]), row["position"], unit_of(step, path), name, number == 0)
        for number, (row, name) in enumerate(zip(origins, source_ids, strict=True))
    ]


def _rows(step: Finished, path: str, identity: str, columns: list[str]) -> list[dict[str, Any]]:
    return [values for _, values in find_rows(step.url(path), identity, columns)]


def _paths(step: Finished, numbers: set[int | None]) -> dict[int, str]:
    """Return the paths of the files with these numbers, by number."""
    found: dict[int, str] = {}
    for table in iterate_shard(step.url(origins_path()), ["file", "path"]):
        rows = table.filter(pc.field("file").isin(list(numbers - {None}))).to_pylist()
        found |= {row["file"]: row["path"] for row in rows}
    return found


def unit_of(step: Finished, path: str | None) -> str:
    """Return the unit of a position in the file: "byte" or "row"."""
    kind = path and format_of(path, step.manifest.parameters.get("format", AUTO))
    return "row" if kind in (PARQUET, ARROW) else "byte"


def documents_with(step: Finished, source_id: str, report: Report) -> Iterator[str]:
    """Yield the ids of the documents that have the text of a record with this source id. Reads all source ids of the
    step.
    """
    files = [part.path for part in step.manifest.partitions if part.rows] + lists_of_duplicates(step.manifest)
    for number, path in enumerate(files):
        report(number, len(files), f"files of {step.manifest.dataset} for source id {source_id!r}")
        for table in iterate_shard(step.url(path), ["id", "source_id"]):
            yield from table.filter(pc.field("source_id") == source_id)["id"].to_pylist()
