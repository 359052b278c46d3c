"""Annotates one normalized partition: reads its texts once, runs the annotators on batches of documents, and writes one
table per annotator. What a library or a user's function returns is checked before it is written: the number of rows,
the columns and their types. Memory: one row group of the partition, and one row group of each table.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.annotate.annotator import Annotator, Counting, FileCounting
from datakit.annotate.failing_documents import without_failing
from datakit.annotate.stage import FILE_COUNTS, ID
from datakit.annotate.tables import annotators_of, built_in
from datakit.annotate.user.annotator import UserAnnotator
from datakit.engine.task import OutputFile, QuarantinedRecord, TaskContext, TaskResult
from datakit.errors import ColumnError, DivergentOutputError, TaskError, UserCodeError
from datakit.storage import urls
from datakit.storage.ids import OrderedIds
from datakit.storage.manifest import table_path
from datakit.storage.parquet import ShardWriter, open_shard, read_group
from datakit.storage.row_size import row_sizes

BATCH_BYTES = 4 << 20  # a batch ends with the document that fills it
KEEPING = (
    "Normalize keeps all columns of the files except those in `normalize.drop`; a `transform` can add one. The column "
    "that the source's `id` names becomes source_id"
)
load = built_in  # called by the fork server


def annotate_partition(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write the tables of one normalized partition. Raises CorruptError if the partition's ids are not strictly
    ascending, TaskError if an annotator returns something else than one row of its columns for each document, and
    DivergentOutputError if a table exists with different content.
    """
    try:
        return _annotate_partition(arguments, shared, context)
    except DivergentOutputError as error:
        if not arguments.get("answers"):
            raise
        raise DivergentOutputError(
            f"{error}. If `attempts` of a model server was raised since the step began, some documents now have "
            f"answers that the existing tables lack: remove {context.step_directory} and run again. The stored answers "
            "are elsewhere, so no request is repeated"
        ) from error


def _annotate_partition(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    answers = {one: urls.join(context.step_directory, path) for one, path in arguments.get("answers", {}).items()}
    annotators, unanswered = annotators_of(shared["annotators"], answers), arguments.get("unanswered", ())
    url, name = urls.join(context.step_directory, arguments["documents"]), urls.name(arguments["file"])
    left_out, rows, size, counters = list[QuarantinedRecord](), 0, 0, Counter[str]()
    with ExitStack() as stack:
        writers = {
            one: stack.enter_context(_writer(context, annotator, table_path(arguments["source"], one, name)))
            for one, annotator in annotators.items()
        }
        for whole in _batches(url, arguments["file"], annotators, context):
            batch, numbers = _answered(whole, rows, unanswered)
            kept, quarantined = context.records(arguments["file"], numbers, functools.partial(_try, annotators, batch))
            places = [(arguments["file"], one) for one in (numbers if kept is None else numbers[kept]).tolist()]
            staying = batch if kept is None else batch.filter(pa.array(kept))
            found, failed = _tables(annotators, staying, places, context)
            left_out += quarantined + failed
            for one, attributes in found.items():
                writers[one].write(attributes)
                counters.update(_counts(annotators[one], attributes))
            rows, size = rows + whole.num_rows, size + whole.nbytes
            context.report(rows, size)
            context.release()
    outputs = tuple(
        OutputFile(table_path(arguments["source"], one, name), writer.info.bytes, writer.info.xxh3, writer.info.rows)
        for one, writer in writers.items()
    )
    documents = rows - len(left_out) - len(unanswered)
    totals = dict(counters) | {"annotate/documents": documents, "annotate/quarantined": len(left_out)}
    totals |= {f"annotate/{one}": writer.info.rows for one, writer in writers.items()}
    return TaskResult(outputs, totals, _file_counts(annotators), tuple(left_out), rows, size)


def _answered(batch: pa.Table, first: int, unanswered: Sequence[int]) -> tuple[pa.Table, np.ndarray]:
    """Return the documents of a batch without those about which a model server gave no answer, and their rows in the
    partition, int64 [N]. first: the row of the batch's first document.
    """
    rows = np.arange(first, first + batch.num_rows)
    missing = np.isin(rows, np.array(unanswered, np.int64))
    return (batch.filter(pa.array(~missing)), rows[~missing]) if missing.any() else (batch, rows)


def _tables(
    annotators: Mapping[str, Annotator], documents: pa.Table, places: Sequence[tuple[str, int]], context: TaskContext
) -> tuple[dict[str, pa.Table], list[QuarantinedRecord]]:
    """Return the rows of each annotator's table, and the documents that are left out because a user's annotator raises
    an exception. places: the file and the position of each document.
    """
    left_out = list[QuarantinedRecord]()
    try:
        return {one: _rows(annotator, documents) for one, annotator in annotators.items()}, left_out
    except UserCodeError:
        own = {one: annotator for one, annotator in annotators.items() if isinstance(annotator, UserAnnotator)}
        documents, left_out = without_failing(
            documents, lambda document: _annotate(own, document), places, context.tolerance
        )
    return {one: _rows(annotator, documents) for one, annotator in annotators.items()}, left_out


def _annotate(annotators: Mapping[str, Annotator], documents: pa.Table) -> None:
    for annotator in annotators.values():
        _rows(annotator, documents)


def _counts(annotator: Annotator, attributes: pa.Table) -> dict[str, int]:
    found = annotator.counts(attributes) if isinstance(annotator, Counting) else {}
    return {f"annotate/{annotator.name}/{name}": count for name, count in found.items()}


def _file_counts(annotators: Mapping[str, Annotator]) -> dict[str, Any]:
    found = [one.file_counts() for one in annotators.values() if isinstance(one, FileCounting)]
    counts = {f"annotate/{name}": count for counted in found for name, count in counted.items()}
    return {FILE_COUNTS: counts} if counts else {}


def _writer(context: TaskContext, annotator: Annotator, path: str) -> ShardWriter:
    return ShardWriter(urls.join(context.step_directory, path), _schema(annotator))


def _schema(annotator: Annotator) -> pa.Schema:
    return pa.schema([*ID, *annotator.schema])


def _try(annotators: Mapping[str, Annotator], batch: pa.Table, row: int) -> None:
    with suppress(UserCodeError):  # the work on the batch handles it
        _annotate(annotators, batch.slice(row, 1))


def _rows(annotator: Annotator, documents: pa.Table) -> pa.Table:
    """Return the rows of an annotator's table for a batch of documents."""
    if not documents.num_rows:
        return _schema(annotator).empty_table()
    (batch,) = documents.select([*annotator.columns]).combine_chunks().to_batches()
    found = checked(annotator, batch.num_rows, annotator.annotate(batch))
    if isinstance(annotator, UserAnnotator):
        annotator.check_spans(batch, found)
        annotator.check_neighbors(batch, found, documents["id"].combine_chunks())
    columns = [documents["id"].combine_chunks(), *found.columns]
    table = pa.Table.from_arrays(columns, schema=_schema(annotator))
    return table.filter(pa.array(_with_attributes(found))) if annotator.sparse else table


def checked(annotator: Annotator, documents: int, found: Any) -> pa.RecordBatch:
    """Return what an annotator has returned. Raises TaskError if it is not one valid row for each document."""
    if not isinstance(found, pa.RecordBatch) or not found.schema.equals(annotator.schema):
        shape = str(found.schema) if isinstance(found, pa.RecordBatch) else type(found).__name__
        raise TaskError(f"annotator {annotator.name!r} returned {shape}, not the columns of its schema")
    if found.num_rows != documents:
        raise TaskError(f"annotator {annotator.name!r} returned {found.num_rows} rows for {documents} documents")
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as error:
        raise TaskError(f"annotator {annotator.name!r} returned an invalid column: {error}") from error
    return found


def _with_attributes(found: pa.RecordBatch) -> np.ndarray:
    """Return which rows have a value that is neither null nor an empty list, bool [N]."""
    mask = np.zeros(found.num_rows, bool)
    for column in found.columns:
        if isinstance(column, pa.ListArray | pa.LargeListArray):
            mask |= column.value_lengths().fill_null(0).to_numpy() > 0
        else:
            mask |= column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _batches(url: str, file: str, annotators: Mapping[str, Annotator], context: TaskContext) -> Iterator[pa.Table]:
    """Yield the columns that the annotators read, in batches of whole documents, and check that the ids ascend."""
    wanted = list(dict.fromkeys(["id", *(name for annotator in annotators.values() for name in annotator.columns)]))
    ids = OrderedIds(url)
    with open_shard(url) as shard:
        _require_columns(shard.schema_arrow, annotators, url)
        row = 0
        for group in range(shard.metadata.num_row_groups):
            context.hold(file, row, shard.metadata.row_group(group).num_rows)
            table = read_group(shard, group, url, wanted)
            row += table.num_rows
            if table.num_rows:
                ids.parse(table["id"])
            yield from _cut(table)


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    ends, start = np.cumsum(row_sizes(table)), 0
    while start < table.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = min(int(np.searchsorted(ends, before + BATCH_BYTES)) + 1, table.num_rows)
        yield table.slice(start, stop - start)
        start = stop


def _require_columns(schema: pa.Schema, annotators: Mapping[str, Annotator], url: str) -> None:
    for annotator in annotators.values():
        if missing := [name for name in annotator.columns if name not in schema.names]:
            raise ColumnError(
                f"annotator {annotator.name!r} reads the column {missing[0]!r}, which {url} does not have; its columns "
                f"are {', '.join(schema.names)}. {KEEPING}"
            )
