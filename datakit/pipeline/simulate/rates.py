"""Lists the CPU time and the memory that tasks take, by task function.

The CPU time of a task has a fixed part and a part in proportion to `Task.input_bytes`, and so has its memory. The rates
come from the ledgers of a run on 121 MB (docs/measurements.md). The rates per MB are scaled so that each stage takes
the CPU time that it takes at 1.2 GB on an idle machine (`WORK_SECONDS` in `pipeline/estimate.py`). Rounds of stars,
blocks of giant components, merges, downloads, the training of a tokenizer, ranges of documents and their joins did not
occur in that run, so their rates are guesses.

The measured tasks used a local disk. With an object store, requests take CPU time, too. This CPU time, and the
bandwidth and latency in `clock.Cluster`, are assumptions. Each task also decodes the shared data of its phase.
"""

from __future__ import annotations

from typing import NamedTuple

MEGABYTE = 1e6
MIB = 1 << 20
REQUEST_SECONDS = 0.0005  # CPU-seconds per request to an object store (an assumption)
SHARED_SECONDS = 0.02  # CPU-seconds to decode 1 MB of shared data
ATTEMPT_SECONDS = 0.01  # CPU-seconds to fork a child and return its result


class Rate(NamedTuple):
    """A task's CPU-seconds (a fixed number, and per MB of input) and bytes of memory (fixed, and per byte of input)."""

    fixed: float
    per_mb: float
    memory: int
    memory_per_byte: float


RATES: dict[str, Rate] = {
    "datakit.download.stage:fetch_file": Rate(0.02, 0.002, 30 * MIB, 0.0),
    "datakit.normalize.where.column_types:find_types": Rate(0.03, 0.005, 60 * MIB, 0.8),
    "datakit.normalize.route:route_slice": Rate(0.03, 0.0095, 60 * MIB, 0.8),
    "datakit.normalize.sort:sort_partition": Rate(0.03, 0.0105, 20 * MIB, 3.6),
    "datakit.normalize.origins:write_files": Rate(0.03, 0.0, 5 * MIB, 0.0),
    "datakit.annotate.write_tables:annotate_partition": Rate(0.05, 0.05, 150 * MIB, 0.0),  # a guess
    "datakit.annotate.model_server.ask:ask_partition": Rate(0.3, 0.1, 150 * MIB, 1.0),  # without the server's time
    "datakit.conditions.count_ranks:count": Rate(0.2, 0.01, 150 * MIB, 1.0),  # a guess
    "datakit.rules.write_lists:apply": Rate(0.2, 0.02, 150 * MIB, 1.0),  # a guess
    "datakit.engine.exchange.merge_tasks:merge_runs": Rate(0.03, 0.003, 300 * MIB, 0.0),
    "datakit.dedup.minhash.signatures_stage:sign_partition": Rate(0.03, 0.0068, 60 * MIB, 0.0),
    "datakit.dedup.score_tables:check_tables": Rate(0.02, 0.0, 5 * MIB, 0.0),
    "datakit.dedup.exact_duplicates:find_copies": Rate(0.08, 0.02, 200 * MIB, 0.0),
    "datakit.dedup.clusters.bands:route": Rate(0.08, 0.015, 120 * MIB, 0.0),
    "datakit.dedup.clusters.bands:connect": Rate(0.08, 0.009, 150 * MIB, 1.0),
    "datakit.dedup.clusters.labels:label": Rate(0.07, 0.02, 150 * MIB, 1.5),
    "datakit.dedup.clusters.rounds:link": Rate(0.07, 0.02, 200 * MIB, 0.0),
    "datakit.dedup.clusters.rounds:large": Rate(0.07, 0.03, 400 * MIB, 0.0),
    "datakit.dedup.clusters.rounds:small": Rate(0.07, 0.03, 400 * MIB, 0.0),
    "datakit.dedup.clusters.rounds:finish": Rate(0.07, 0.02, 400 * MIB, 0.0),
    "datakit.dedup.clusters.labels:resolve": Rate(0.07, 0.02, 400 * MIB, 0.0),
    "datakit.dedup.clusters.labels:label_parts": Rate(0.07, 0.02, 400 * MIB, 0.0),
    "datakit.dedup.verification.cluster_shingles:route": Rate(0.08, 0.0045, 150 * MIB, 0.0),
    "datakit.dedup.verification.verify:judge": Rate(0.08, 0.025, 60 * MIB, 0.5),
    "datakit.dedup.giants.cut:cut": Rate(0.08, 0.004, 200 * MIB, 0.0),
    "datakit.dedup.giants.settle:settle": Rate(0.08, 0.01, 200 * MIB, 0.0),
    "datakit.dedup.giants.probe:probe": Rate(0.08, 0.02, 150 * MIB, 0.0),
    "datakit.dedup.attributes:write": Rate(0.08, 0.002, 150 * MIB, 0.0),
    "datakit.passages.route:route": Rate(0.08, 0.015, 250 * MIB, 1.0),
    "datakit.passages.find_copies:find": Rate(0.08, 0.01, 200 * MIB, 0.0),
    "datakit.passages.write_tables:write": Rate(0.08, 0.0, 200 * MIB, 0.0),
    "datakit.select.write_selections:select": Rate(0.03, 0.01, 60 * MIB, 0.0),
    "datakit.select.edit_documents:select_and_edit": Rate(0.004, 0.01, 150 * MIB, 0.0),  # a guess
    "datakit.select.final.rewrite_lists:rewrite": Rate(0.2, 0.02, 150 * MIB, 1.0),  # a guess
    "datakit.select.final.equal_texts:route": Rate(0.05, 0.01, 150 * MIB, 0.0),  # a guess
    "datakit.select.final.equal_texts:find": Rate(0.08, 0.02, 200 * MIB, 0.0),  # a guess
    "datakit.select.final.assign_buckets:assign": Rate(0.2, 0.02, 150 * MIB, 1.0),  # a guess
    "datakit.consolidate.write_partitions:consolidate": Rate(0.03, 0.0118, 110 * MIB, 0.0),
    "datakit.consolidate.stage:write_card": Rate(0.02, 0.0, 5 * MIB, 0.0),
    "datakit.tokenize.train_stage:train_task": Rate(1.0, 0.1, 500 * MIB, 1.0),
    "datakit.tokenize.contract_stage:write_tokenizer": Rate(0.02, 0.0, 5 * MIB, 0.0),
    "datakit.tokenize.contract_stage:settle": Rate(1.0, 0.0, 100 * MIB, 0.0),
    "datakit.tokenize.tasks:take_tokenizer": Rate(0.05, 0.0, 30 * MIB, 0.0),
    "datakit.tokenize.tasks:encode": Rate(0.05, 0.0315, 30 * MIB, 5.0),
    "datakit.tokenize.tasks:encode_range": Rate(0.05, 0.0285, 60 * MIB, 0.0),
    "datakit.tokenize.tasks:join": Rate(0.05, 0.0055, 30 * MIB, 1.5),
}


def cpu_seconds(function: str, input_bytes: int, requests: int, shared_bytes: int) -> float:
    """Return the CPU-seconds of a task, without those to fork its child."""
    rate = RATES[function]
    more = REQUEST_SECONDS * requests + SHARED_SECONDS * shared_bytes / MEGABYTE
    return rate.fixed + rate.per_mb * input_bytes / MEGABYTE + more


def peak_memory(function: str, held_bytes: int) -> int:
    """Return the peak memory of a task, in bytes. held_bytes: how much of its input the task holds at a time."""
    rate = RATES[function]
    return int(rate.memory + rate.memory_per_byte * held_bytes)
