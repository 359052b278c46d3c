"""Plans the tasks that edit texts: finds, for each partition, the tables of spans that its edits read and the documents
that could not be annotated; and adds up what the tasks have written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from datakit.engine.counts import added
from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import OutputFile, Step, StepInput, Task, TaskResult
from datakit.errors import CorruptError
from datakit.select.edit_config import PASSAGES, EditConfig
from datakit.select.edit_documents import EditedPair, WrittenEdits
from datakit.select.write_selections import Pair
from datakit.storage import urls
from datakit.storage.manifest import data_path
from datakit.storage.selection.edits import FOLDER, edits_path
from datakit.storage.selection.listed_rows import ADVICE

EDITS = "edits"  # the parameter that holds the settings of the edits, by name; absent if there are none


class EditCounts(msgspec.Struct, frozen=True):
    """The edits of one source: the number of edited documents, the number of stretches that each edit changes, and the
    bytes of these documents' texts before and after.
    """

    documents: int
    stretches: dict[str, int]
    text_bytes_before: int
    text_bytes_after: int


def edits_of(step: Step) -> dict[str, EditConfig]:
    """Return the edits of a step, by name."""
    return msgspec.convert(step.parameters.get(EDITS, {}), dict[str, EditConfig])


def edited_pairs(step: Step, pairs: Sequence[Pair], edits: Mapping[str, EditConfig]) -> list[EditedPair]:
    """Return the partitions whose texts are edited. pairs: all partitions."""
    by_source = defaultdict[str, list[Pair]](list)
    for pair in pairs:
        by_source[pair.source].append(pair)
    found = list[EditedPair]()
    for entry in step.inputs_of("normalize"):
        source = str(entry.source)
        mine = {name: edit for name, edit in sorted(edits.items()) if edit.applies_to(source)}
        if mine:
            found += _pairs_of(step, entry, by_source[source], mine)
    return found


def _annotated(step: Step, source: str) -> StepInput:
    for entry in step.inputs_of("annotate"):
        if entry.source == source:
            return entry
    raise CorruptError(f"the step edits source {source!r}, but its inputs lack the annotate step of this source")


def _searched(step: Step) -> StepInput:
    for entry in step.inputs_of(PASSAGES):
        return entry
    raise CorruptError("the step edits copies of passages, but its inputs lack the step that found them")


def _pairs_of(
    step: Step, entry: StepInput, pairs: Sequence[Pair], edits: Mapping[str, EditConfig]
) -> Iterator[EditedPair]:
    """Yield the partitions of a source. entry: its normalize step."""
    source, tables = str(entry.source), {edit.table for edit in edits.values()}
    annotated = _annotated(step, source) if tables - {PASSAGES} else None
    searched = _searched(step) if PASSAGES in tables else None
    unannotated = _unannotated(annotated) if annotated is not None else {}
    listed = {
        id(one): {part.path for part in one.manifest.partitions_of(source)}
        for one in (annotated, searched)
        if one is not None
    }
    for pair, partition in zip(pairs, entry.manifest.partitions_of(source), strict=True):
        name, found = urls.name(pair.output), dict[str, str]()
        for edit in edits.values():
            home = searched if edit.table == PASSAGES else annotated
            assert home is not None
            path = data_path(source, name if home is searched else f"{edit.table}/{name}")
            if path not in listed[id(home)]:
                raise CorruptError(f"{home.directory}: its manifest lists no table {path}; {ADVICE}")
            found[edit.spans] = urls.join(home.directory, path)
        size = partition.text_bytes or partition.bytes
        left_out = sorted(unannotated.get(partition.path, ()))
        yield EditedPair(pair, sorted(edits), found, edits_path(pair.source, name), left_out, size)


def _unannotated(annotated: StepInput) -> dict[str, set[int]]:
    """Return the rows of the documents that could not be annotated, by partition."""
    found = defaultdict[str, set[int]](set)
    if annotated.manifest.quarantine.records:
        from datakit.engine.scheduler.finish import read_quarantine  # a tenth of a second to import

        for record in read_quarantine(annotated.directory):
            found[record.file].update(range(record.position, record.position + record.records))
    return found


def edit_tasks(pairs: Sequence[EditedPair]) -> Iterator[Task]:
    """Yield the tasks that write the selections and the edits of these partitions."""
    for group in neighbours([one.text_bytes for one in pairs]):
        mine = pairs[group.start : group.stop]
        first = mine[0].pair.output
        yield Task(
            first if len(mine) == 1 else f"{first} and {len(mine) - 1} more",
            "datakit.select.edit_documents:select_and_edit",
            {"partitions": msgspec.to_builtins(mine)},
            sum(one.text_bytes for one in mine),
            bisect_argument="partitions",
        )


def lists_written(results: Sequence[TaskResult]) -> list[WrittenEdits]:
    """Return the lists of edits that tasks have written."""
    return [msgspec.convert(one, WrittenEdits) for result in results for one in result.details.get(FOLDER, ())]


def edits_written(lists: Sequence[WrittenEdits]) -> tuple[list[OutputFile], dict[str, Any]]:
    """Return the files of these lists, and the counts of each source with edits."""
    by_source = defaultdict[str, list[WrittenEdits]](list)
    for one in lists:
        by_source[one.source].append(one)
    counts = {source: msgspec.to_builtins(_counts(mine)) for source, mine in by_source.items()}
    return [one.file for one in lists], counts


def _counts(mine: Sequence[WrittenEdits]) -> EditCounts:
    return EditCounts(
        sum(one.file.rows for one in mine),
        dict(sorted(added(one.stretches for one in mine).items())),
        sum(one.text_bytes_before for one in mine),
        sum(one.text_bytes_after for one in mine),
    )
