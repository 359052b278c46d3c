"""Simulates the tasks of select that follow the editing of texts. What they find depends on the documents; so no
document is assumed to leave because of a rule or an equal text, and all buckets of a source to get equal shares.
"""

from __future__ import annotations

import msgspec

from datakit.conditions.phase_data import ID_BYTES, RuleCounts, Shared, Work
from datakit.engine.task import OutputFile, Task, TaskResult
from datakit.pipeline.simulate.effects import CHECKSUM, Effect, PhaseOf, Run, id_reads, parquet_reads
from datakit.select.edit_documents import WrittenEdits, edit_counters
from datakit.select.final.assign_buckets import Assigned, BucketCounts
from datakit.select.final.equal_texts import ROW_BYTES, Compared
from datakit.select.final.rewrite_lists import Common, Rewriting, Rewritten
from datakit.select.write_selections import selection_counters
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.storage.selection.buckets import REST, bucket_path

EMPTY_LIST = 1000  # bytes of a list without rows
LISTED_BYTES = 20  # bytes of a document in the list of a bucket


def rewrite(about: PhaseOf) -> Run:
    """Simulate lists that are written again, with the same documents."""
    common = msgspec.convert(about.phase.shared, Common)

    def one(work: Rewriting) -> Rewritten:
        before, edits = work.before, None
        part: Partition = msgspec.structs.replace(before.partition, path=work.work.output)
        if work.edits_output:
            file = OutputFile(work.edits_output, EMPTY_LIST, CHECKSUM, 0)
            edits = WrittenEdits(work.work.part.source, file, {}, 0, 0)
        written = type(before)(part, before.rows_in, before.combinations, before.marked_kept)
        return Rewritten(written, edits, [RuleCounts()] * len(common.shared.rules))

    def run(task: Task) -> Effect:
        works = msgspec.convert(task.arguments["partitions"], list[Rewriting])
        done = [one(work) for work in works]
        lists = [entry.edits for entry in done if entry.edits is not None]
        parts = [entry.written.partition for entry in done]
        files = [OutputFile(part.path, part.bytes, CHECKSUM, part.rows) for part in parts]
        counters = dict[str, int]()
        if common.last:
            counters = {**selection_counters([entry.written for entry in done]), **edit_counters(lists)}
        details, rows = {"partitions": msgspec.to_builtins(done)}, sum(work.work.rows for work in works)
        outputs = (*files, *(entry.file for entry in lists))
        result = TaskResult(outputs, counters, details, records=rows, bytes_read=ID_BYTES * rows)
        return Effect(result, _reads(about, [work.work for work in works]), len(outputs), ID_BYTES * rows)

    return run


def route_edited(about: PhaseOf) -> Run:
    """Simulate the shuffle of edited texts."""

    def run(task: Task) -> Effect:
        parts = msgspec.convert(task.arguments["partitions"], list[Compared])
        rows = sum(part.rows for part in parts)
        result = TaskResult((), details={"runs": []}, records=rows, bytes_read=ROW_BYTES * rows)
        return Effect(result, len(parts) * parquet_reads(EMPTY_LIST), 0, ROW_BYTES * rows)

    return run


def find_equal(about: PhaseOf) -> Run:
    """Simulate the search for equal texts, which finds none."""

    def run(task: Task) -> Effect:
        parts = msgspec.convert(task.arguments["partitions"], list[Compared])
        rows = sum(part.rows for part in parts)
        reads = sum(id_reads(about.corpus, part.rows) for part in parts)
        result = TaskResult((), details={"runs": [], "equal": {}}, records=rows, bytes_read=ID_BYTES * rows)
        return Effect(result, reads, 0, ID_BYTES * rows)

    return run


def assign_buckets(about: PhaseOf) -> Run:
    """Simulate the lists of buckets."""
    rules = msgspec.convert(about.phase.shared["conditions"], Shared).rules

    def one(work: Work) -> Assigned:
        source = work.part.source
        names = [rule.name for rule in rules if not rule.sources or source in rule.sources]
        share = work.rows // (len(names) + 1)
        paths = [bucket_path(source, name, urls.name(work.output)) for name in names]
        files = [OutputFile(path, EMPTY_LIST + share * LISTED_BYTES, CHECKSUM, share) for path in paths]
        counts = {name: BucketCounts(share, share) for name in names}
        return Assigned(source, files, {**counts, REST: BucketCounts(work.rows - share * len(names))})

    def run(task: Task) -> Effect:
        works = msgspec.convert(task.arguments["partitions"], list[Work])
        done, rows = [one(work) for work in works], sum(work.rows for work in works)
        outputs, details = tuple(file for entry in done for file in entry.files), msgspec.to_builtins(done)
        result = TaskResult(outputs, {}, {"partitions": details}, records=rows, bytes_read=ID_BYTES * rows)
        return Effect(result, _reads(about, works), len(outputs), ID_BYTES * rows)

    return run


def _reads(about: PhaseOf, works: list[Work]) -> int:
    """Return the number of requests that read the partitions' ids, tables and lists."""
    ids = sum(id_reads(about.corpus, work.rows) for work in works)
    return ids + sum(parquet_reads(work.table_bytes) * (len(work.part.tables) + 2) for work in works)
