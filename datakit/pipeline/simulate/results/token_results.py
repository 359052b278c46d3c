"""Simulates the tasks of the stages rules, select, consolidate and train-tokenizer."""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.cache.layout import TOKENIZER_FILE
from datakit.conditions.phase_data import Applied, Ranked, RuleCounts, SearchState, Shared, Work
from datakit.conditions.ranks import BITS, DIGIT
from datakit.consolidate.write_partitions import Written as Consolidated
from datakit.engine.task import OutputFile, Task, TaskResult
from datakit.pipeline.simulate.corpus import Corpus
from datakit.pipeline.simulate.effects import CHECKSUM, Effect, PhaseOf, Run, id_reads, parquet_reads
from datakit.select.edit_documents import WrittenEdits, edit_counters
from datakit.select.stage import REASONS
from datakit.select.write_selections import DRAFT, ID_BYTES, selection_counters
from datakit.select.write_selections import Written as Selected
from datakit.storage import urls
from datakit.storage.manifest import Partition

EMPTY_LIST = 1000  # bytes of a list without rows
SPREAD = 16  # the values of `by` are assumed to differ in each digit of their keys in so many ways
COPY_REQUESTS = 6  # requests that look up both files before and after a copy within the store
EDITED, EDIT_BYTES = 0.05, 60  # the share of documents that are edited, and the size of their entries: guesses


def count_ranks(about: PhaseOf) -> Run:
    """Simulate a round of the search for ranks, with keys that are spread evenly."""
    searches = msgspec.convert(about.phase.shared, Shared).searches

    def run(task: Task) -> Effect:
        works = msgspec.convert(task.arguments["partitions"], list[Work])
        rows = sum(work.rows for work in works)
        left = [_remaining(rows, search) for search in searches]
        counts = [[] if one.lists else _digits(number) for one, number in zip(searches, left, strict=True)]
        keys = [["0" * (BITS // 4)] * number if one.lists else [] for one, number in zip(searches, left, strict=True)]
        details = msgspec.to_builtins(Ranked(counts, keys))
        result = TaskResult(details=details, records=rows, bytes_read=ID_BYTES * rows)
        return Effect(result, _rule_reads(about.corpus, works), 0, ID_BYTES * rows)

    return run


def _digits(keys: int) -> list[tuple[int, int]]:
    """Return how many of these keys have each digit. The first digit gets what cannot be divided evenly."""
    counts = [keys // SPREAD + (keys % SPREAD if digit == 0 else 0) for digit in range(SPREAD)]
    return [(digit, number) for digit, number in enumerate(counts) if number]


def _remaining(keys: int, search: SearchState) -> int:
    """Return how many of a task's keys begin with the prefix of a search."""
    for shift in range(search.bits - DIGIT, -1, -DIGIT):
        digit = int(search.prefix, 16) >> shift & ((1 << DIGIT) - 1)
        keys = dict(_digits(keys)).get(digit, 0)
    return keys


def check_tables(about: PhaseOf) -> Run:
    """Simulate the check of the tables' columns, which reads the size and the footer of one file for each table."""
    return lambda task: Effect(TaskResult(), 2 * sum(map(len, task.arguments["tables"])))


def apply_rules(about: PhaseOf) -> Run:
    """Simulate the lists of some partitions. No document is assumed to leave, as this depends on the documents."""
    rules = msgspec.convert(about.phase.shared, Shared).rules

    def run(task: Task) -> Effect:
        works = msgspec.convert(task.arguments["partitions"], list[Work])
        written = [
            Applied(
                Partition(work.output, work.part.source, 0, EMPTY_LIST, CHECKSUM),
                work.rows,
                [RuleCounts()] * len(rules),
            )
            for work in works
        ]
        rows = sum(work.rows for work in works)
        outputs = tuple(OutputFile(work.output, EMPTY_LIST, CHECKSUM, 0) for work in works)
        counters = {"rules/records_in": rows, "rules/records_out": rows}
        counters |= {f"rules/{rule.action}_{rule.name}": 0 for rule in rules}
        details = {"partitions": msgspec.to_builtins(written)}
        result = TaskResult(outputs, counters, details, records=rows, bytes_read=ID_BYTES * rows)
        return Effect(result, _rule_reads(about.corpus, works), len(outputs), ID_BYTES * rows)

    return run


def _rule_reads(corpus: Corpus, works: list[Work]) -> int:
    """Return the number of requests that read the partitions' ids and tables."""
    ids = sum(id_reads(corpus, work.rows) for work in works)
    return ids + sum(parquet_reads(work.table_bytes) * len(work.part.tables) for work in works)


def select(about: PhaseOf) -> Run:
    """Simulate the selections of some partitions."""

    def run(task: Task) -> Effect:
        pairs = task.arguments["partitions"]
        written = [_selected(about, pair, task.arguments["drop"]) for pair in pairs]
        details = {"partitions": msgspec.to_builtins(written)}
        records = sum(entry.rows_in for entry in written)
        size = ID_BYTES * records
        counters = {} if DRAFT in about.phase.shared else selection_counters(written)
        result = TaskResult(_files(written), counters, details, records=records, bytes_read=size)
        return Effect(result, sum(_reads(about, pair) for pair in pairs), len(written), size)

    return run


def select_and_edit(about: PhaseOf) -> Run:
    """Simulate the selections and edits of some partitions."""

    def edits(one: dict[str, Any]) -> WrittenEdits:
        rows, stretches = int(one["pair"]["rows"] * EDITED), dict[str, int]()
        if rows:
            stretches[one["edits"][0]] = rows
        return WrittenEdits(
            one["pair"]["source"], OutputFile(one["output"], 1000 + rows * EDIT_BYTES, CHECKSUM, rows), stretches, 0, 0
        )

    def run(task: Task) -> Effect:
        pairs = task.arguments["partitions"]
        written = [_selected(about, one["pair"], about.phase.shared["drop"]) for one in pairs]
        lists = [edits(one) for one in pairs]
        details = {"partitions": msgspec.to_builtins(written), "edits": msgspec.to_builtins(lists)}
        counters = {} if DRAFT in about.phase.shared else {**selection_counters(written), **edit_counters(lists)}
        files = (*_files(written), *(entry.file for entry in lists))
        records, size = sum(entry.rows_in for entry in written), sum(one["text_bytes"] for one in pairs)
        reads = sum(
            _reads(about, one["pair"])
            + parquet_reads(int(one["text_bytes"] * about.corpus.normalized), one["text_bytes"])
            for one in pairs
        )
        result = TaskResult(files, counters, details, records=records, bytes_read=size)
        return Effect(result, reads, len(files), size)

    return run


def _selected(about: PhaseOf, pair: dict[str, Any], drop: list[str]) -> Selected:
    corpus, first = about.corpus, about.step.inputs_of("normalize")[0].source
    rows, marked = pair["rows"], dict.fromkeys(REASONS, 0)
    known = corpus.removed_in.get(f"{pair['source']}/{urls.name(pair['output'])}")
    if pair["marks"] and known is not None:
        marked["exact"], marked["fuzzy"] = known
    elif pair["marks"]:
        marked["exact"] = int(rows * corpus.exact) if pair["source"] != first else 0
        marked["fuzzy"] = min(int(rows * corpus.fuzzy), rows - marked["exact"])
    leaving = {reason: count for reason, count in marked.items() if reason in drop and count}
    count = sum(leaving.values())
    ends = ("0" * 32, "f" * 32) if count else (None, None)
    size = 1000 + count * corpus.removal_bytes
    part = Partition(pair["output"], pair["source"], count, size, CHECKSUM, first_id=ends[0], last_id=ends[1])
    return Selected(part, rows, leaving, sum(marked.values()) - count)


def _files(written: list[Selected]) -> tuple[OutputFile, ...]:
    return tuple(OutputFile(e.partition.path, e.partition.bytes, CHECKSUM, e.partition.rows) for e in written)


def _reads(about: PhaseOf, pair: dict[str, Any]) -> int:
    """Return the number of requests that read the ids of a partition and its marks."""
    source = about.corpus.sources[pair["source"]]
    text = source.text_bytes * pair["rows"] // max(1, source.documents)
    return id_reads(about.corpus, pair["rows"], text) + 2 * len(pair["marks"])


def consolidate(about: PhaseOf) -> Run:
    """Simulate the writing of some partitions without the rows that leave. If all rows stay, the store copies the
    partition.
    """
    corpus = about.corpus

    def one(pair: dict[str, Any]) -> Consolidated:
        whole, kept = msgspec.convert(pair["partition"], Partition), pair["staying"]
        if _is_copied(pair):
            return Consolidated(msgspec.structs.replace(whole, path=pair["output"]), kept, unchanged=True)
        text = (whole.text_bytes or whole.bytes) * kept // max(1, whole.rows)
        size = max(1000, int(text * corpus.normalized))
        ends = ("0" * 32, "f" * 32) if kept else (None, None)
        part = Partition(pair["output"], whole.source, kept, size, CHECKSUM, text, first_id=ends[0], last_id=ends[1])
        return Consolidated(part, kept)

    def run(task: Task) -> Effect:
        pairs = task.arguments["partitions"]
        written = [one(pair) for pair in pairs]
        outputs = tuple(OutputFile(e.partition.path, e.partition.bytes, CHECKSUM, e.partition.rows) for e in written)
        counters = {
            "consolidate/records_in": sum(entry.rows_in for entry in written),
            "consolidate/records_out": sum(entry.partition.rows for entry in written),
            "consolidate/dropped_quarantined": 0,
            "consolidate/unchanged_partitions": sum(entry.unchanged for entry in written),
        }
        parts = [pair["partition"] for pair in pairs if not _is_copied(pair)]
        read = sum(part["bytes"] for part in parts)
        reads = sum(4 + parquet_reads(part["bytes"], part["text_bytes"] or 0) for part in parts)
        reads += COPY_REQUESTS * (len(pairs) - len(parts))
        details = {"partitions": msgspec.to_builtins(written)}
        records = sum(pair["partition"]["rows"] for pair in pairs)
        result = TaskResult(outputs, counters, details, records=records, bytes_read=read)
        work = sum(part["text_bytes"] or part["bytes"] for part in parts)
        return Effect(result, reads, len(outputs), read, work=work)

    return run


def _is_copied(pair: dict[str, Any]) -> bool:
    """Return True if a partition is the normalized file."""
    return pair["leaving"] is None and pair["edits"] is None and not pair["with_buckets"]


def write_card(about: PhaseOf) -> Run:
    """Simulate the dataset card."""
    return lambda task: Effect(
        TaskResult((OutputFile("README.md", len(task.arguments["text"].encode()), CHECKSUM),)), writes=1
    )


def train_task(about: PhaseOf) -> Run:
    """Simulate the training of a tokenizer. The sample is read from the first partitions of each source."""

    def run(task: Task) -> Effect:
        size = 30 * about.corpus.vocabulary
        counters = {"train-tokenizer/documents": task.input_bytes // about.corpus.document_bytes,
                    "train-tokenizer/text_bytes": task.input_bytes}  # fmt: skip
        file = OutputFile(TOKENIZER_FILE, size, CHECKSUM, about.corpus.vocabulary)
        read = int(task.input_bytes * about.corpus.normalized)
        reads = len(task.arguments["shares"]) * parquet_reads(read)
        return Effect(TaskResult((file,), counters, bytes_read=task.input_bytes), reads, 1, read)

    return run
