"""Lists the CPU time and the memory that tasks take, by task function.

The CPU time of a task has a fixed part and a part in proportion to the input that it works on: `Task.input_bytes` or,
if only a part of it takes time, `Effect.work`. Its memory has a fixed part and a part in proportion to what it holds.

The times marked `m` were measured on 2026-11-24 in runs on 1.2 GB and 5 GB of text, with two workers on two cores, by
`python -m benchmarks.task_rates` (docs/measurements.md). The others are guesses: those functions did not occur in the
runs. The time of annotators, rules, edits and searches for passages depends on the recipe. The memory was measured in
an earlier version, on 121 MB.

The measured tasks used a local disk. With an object store, requests take CPU time, too. This CPU time, and the
bandwidth and latency in `clock.Cluster`, are assumptions. Each task also decodes the shared data of its phase.
"""

from __future__ import annotations

from typing import NamedTuple

MEGABYTE = 1e6
MIB = 1 << 20
REQUEST_SECONDS = 0.0005  # CPU-seconds per request to an object store (an assumption)
SHARED_SECONDS = 0.02  # CPU-seconds to decode 1 MB of shared data
# Resident memory of a driver besides its plans and results (2026-11-24): 98 MB in a process that has only imported its
# modules, and about 25 MB more in runs on 121 to 1,208 MB of text.
DRIVER_MEMORY = 123_000_000
ATTEMPT_SECONDS = 0.01  # CPU-seconds to fork a child and return its result


class Rate(NamedTuple):
    """A task's CPU-seconds (a fixed number, and per MB of input) and bytes of memory (fixed, and per byte of input)."""

    fixed: float
    per_mb: float
    memory: int
    memory_per_byte: float


RATES: dict[str, Rate] = {
    "datakit.download.stage:fetch_file": Rate(0.02, 0.002, 30 * MIB, 0.0),  # a guess
    "datakit.download.git.steps:fetch_repository": Rate(0.5, 0.02, 60 * MIB, 0.0),  # a guess
    "datakit.normalize.where.column_types:find_types": Rate(0.03, 0.005, 60 * MIB, 0.8),  # a guess
    "datakit.normalize.limit:count_documents": Rate(0.001, 0.004, 60 * MIB, 0.8),  # a guess
    "datakit.normalize.archives.index:index_archive": Rate(0.01, 0.008, 60 * MIB, 0.0),  # a guess
    "datakit.normalize.route:route_slice": Rate(0.001, 0.0061, 60 * MIB, 0.8),  # m
    "datakit.normalize.sort:sort_partition": Rate(0.03, 0.0041, 20 * MIB, 3.6),  # m
    "datakit.normalize.origins:write_files": Rate(0.004, 0.0, 5 * MIB, 0.0),  # m
    "datakit.annotate.write_tables:annotate_partition": Rate(0.05, 0.05, 150 * MIB, 0.0),  # a guess
    "datakit.annotate.model_server.ask:ask_partition": Rate(0.3, 0.1, 150 * MIB, 1.0),  # a guess without the server
    "datakit.conditions.count_ranks:count": Rate(0.2, 0.01, 150 * MIB, 1.0),  # a guess
    "datakit.conditions.check_tables:check_tables": Rate(0.02, 0.0, 5 * MIB, 0.0),  # a guess
    "datakit.rules.write_lists:apply": Rate(0.2, 0.02, 150 * MIB, 1.0),  # a guess
    "datakit.engine.exchange.merge_tasks:merge_runs": Rate(0.03, 0.003, 300 * MIB, 0.0),  # a guess
    "datakit.dedup.minhash.signatures_stage:sign_partition": Rate(0.026, 0.0043, 60 * MIB, 0.0),  # m
    "datakit.dedup.score_tables:check_tables": Rate(0.02, 0.0, 5 * MIB, 0.0),  # a guess
    "datakit.dedup.exact_duplicates:find_copies": Rate(0.049, 0.0137, 200 * MIB, 0.0),  # m
    "datakit.dedup.clusters.bands:route": Rate(0.001, 0.0102, 120 * MIB, 0.0),  # m
    "datakit.dedup.clusters.bands:connect": Rate(0.001, 0.0145, 150 * MIB, 1.0),  # m
    "datakit.dedup.clusters.labels:label": Rate(0.005, 0.028, 150 * MIB, 1.5),  # m
    "datakit.dedup.clusters.rounds:link": Rate(0.07, 0.02, 200 * MIB, 0.0),  # a guess
    "datakit.dedup.clusters.rounds:large": Rate(0.07, 0.03, 400 * MIB, 0.0),  # a guess
    "datakit.dedup.clusters.rounds:small": Rate(0.07, 0.03, 400 * MIB, 0.0),  # a guess
    "datakit.dedup.clusters.rounds:finish": Rate(0.07, 0.02, 400 * MIB, 0.0),  # a guess
    "datakit.dedup.clusters.labels:resolve": Rate(0.07, 0.02, 400 * MIB, 0.0),  # a guess
    "datakit.dedup.clusters.labels:label_parts": Rate(0.07, 0.02, 400 * MIB, 0.0),  # a guess
    "datakit.dedup.verification.cluster_shingles:route": Rate(0.01, 0.0015, 150 * MIB, 0.0),  # m
    "datakit.dedup.verification.verify:judge": Rate(0.001, 0.0076, 60 * MIB, 0.5),  # m
    "datakit.dedup.giants.cut:cut": Rate(0.08, 0.004, 200 * MIB, 0.0),  # a guess
    "datakit.dedup.giants.settle:settle": Rate(0.08, 0.01, 200 * MIB, 0.0),  # a guess
    "datakit.dedup.giants.probe:probe": Rate(0.08, 0.02, 150 * MIB, 0.0),  # a guess
    "datakit.dedup.attributes:write": Rate(0.001, 0.0033, 150 * MIB, 0.0),  # m
    "datakit.passages.route:route": Rate(0.08, 0.015, 250 * MIB, 1.0),  # a guess
    "datakit.passages.find_copies:find": Rate(0.08, 0.01, 200 * MIB, 0.0),  # a guess
    "datakit.passages.substrings.tasks:compare_stretches": Rate(0.08, 0.01, 250 * MIB, 0.0),  # a guess
    "datakit.passages.substrings.tasks:read_texts": Rate(0.08, 0.01, 250 * MIB, 1.0),  # a guess
    "datakit.passages.substrings.tasks:compare_substrings": Rate(0.08, 0.05, 300 * MIB, 0.0),  # a guess
    "datakit.passages.write_tables:write": Rate(0.08, 0.0, 200 * MIB, 0.0),  # a guess
    "datakit.select.write_selections:select": Rate(0.001, 0.0238, 60 * MIB, 0.0),  # m
    "datakit.select.edit_documents:select_and_edit": Rate(0.004, 0.01, 150 * MIB, 0.0),  # a guess
    "datakit.select.final.rewrite_lists:rewrite": Rate(0.2, 0.02, 150 * MIB, 1.0),  # a guess
    "datakit.select.final.equal_texts:route": Rate(0.05, 0.01, 150 * MIB, 0.0),  # a guess
    "datakit.select.final.equal_texts:find": Rate(0.08, 0.02, 200 * MIB, 0.0),  # a guess
    "datakit.select.final.assign_buckets:assign": Rate(0.2, 0.02, 150 * MIB, 1.0),  # a guess
    "datakit.consolidate.write_partitions:consolidate": Rate(0.022, 0.0078, 110 * MIB, 0.0),  # m
    "datakit.consolidate.stage:write_card": Rate(0.011, 0.0, 5 * MIB, 0.0),  # m
    "datakit.tokenize.train_stage:train_task": Rate(1.0, 0.1, 500 * MIB, 1.0),  # a guess
    "datakit.tokenize.contract_stage:write_tokenizer": Rate(0.112, 0.0, 5 * MIB, 0.0),  # m
    "datakit.tokenize.contract_stage:settle": Rate(0.433, 0.0, 100 * MIB, 0.0),  # m
    "datakit.tokenize.tasks:take_tokenizer": Rate(0.023, 0.0, 30 * MIB, 0.0),  # m
    "datakit.tokenize.tasks:encode": Rate(0.112, 0.0167, 30 * MIB, 5.0),  # m
    "datakit.tokenize.tasks:encode_range": Rate(0.001, 0.0227, 60 * MIB, 0.0),  # m
    "datakit.tokenize.tasks:join": Rate(0.001, 0.0039, 30 * MIB, 1.5),  # m
}


def cpu_seconds(function: str, work_bytes: int, shared_bytes: int) -> float:
    """Return the CPU-seconds of a task, without those of requests. work_bytes: how much of its input takes time."""
    rate = RATES[function]
    return rate.fixed + rate.per_mb * work_bytes / MEGABYTE + SHARED_SECONDS * shared_bytes / MEGABYTE


def peak_memory(function: str, held_bytes: int) -> int:
    """Return the peak memory of a task, in bytes. held_bytes: how much of its input the task holds at a time."""
    rate = RATES[function]
    return int(rate.memory + rate.memory_per_byte * held_bytes)
