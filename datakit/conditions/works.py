"""Finds the inputs of expressions of rules: each partition of a source, with its tables of attributes, the documents
that could not be annotated, and the types of the documents' columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from datakit.conditions.expressions import Conditions
from datakit.conditions.phase_data import Work
from datakit.conditions.records import Attributed
from datakit.engine.task import Step, StepInput
from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Partition, data_path, table_path


def column_types(step: Step) -> dict[str, str]:
    """Return the type of each column of the documents; of several types, that of the first source."""
    found: dict[str, str] = {}
    for entry in step.inputs_of("normalize"):
        for column in entry.manifest.schema:
            found.setdefault(column.name, column.type)
    return found


def works_of(entry: StepInput, annotators: Sequence[StepInput], conditions: Conditions) -> list[Work]:
    """Return the partitions of a source, each with the tables that the rules read."""
    assert entry.source is not None
    partitions = entry.manifest.partitions_of(entry.source)
    mine = next((one for one in annotators if one.source == entry.source), None)
    unknown, sizes = _quarantined(mine), _sizes(mine, entry.source)
    found = []
    for partition in partitions:
        tables = _tables(mine, partition, sizes, conditions.annotators)
        dataset = urls.join(entry.directory, partition.path)
        part = Attributed(
            dataset, entry.source, {name: url for name, (url, _) in tables.items()}, unknown.get(partition.path, [])
        )
        size = sum(size for _, size in tables.values())
        found.append(Work(part, data_path(entry.source, urls.name(partition.path)), partition.rows, size))
    return found


def _sizes(annotate: StepInput | None, source: str) -> dict[str, int]:
    """Return the size of each table of a source, by its path."""
    return {} if annotate is None else {one.path: one.bytes for one in annotate.manifest.partitions_of(source)}


def _tables(
    annotate: StepInput | None, partition: Partition, sizes: Mapping[str, int], names: Sequence[str]
) -> dict[str, tuple[str, int]]:
    """Return the URL and the size of the table of each of these annotators, for one partition. Raises CorruptError if
    there is none.
    """
    found = {}
    for name in names:
        assert annotate is not None, "the conditions are checked"
        path = table_path(partition.source, name, urls.name(partition.path))
        if path not in sizes:
            raise CorruptError(f"{annotate.directory} has no {path}; remove this directory and run again")
        found[name] = urls.join(annotate.directory, path), sizes[path]
    return found


def _quarantined(annotate: StepInput | None) -> dict[str, list[int]]:
    """Return the rows that an annotate step left out, by partition."""
    from datakit.engine.scheduler.finish import read_quarantine  # a tenth of a second to import

    rows = defaultdict[str, list[int]](list)
    if annotate is not None and annotate.manifest.quarantine.records:
        for record in read_quarantine(annotate.directory):
            rows[record.file] += range(record.position, record.position + record.records)
    return rows
