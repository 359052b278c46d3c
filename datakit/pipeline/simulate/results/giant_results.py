"""Simulates the tasks that judge giant components in blocks. The corpus has at most one giant component
(`Corpus.giant`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.dedup.giants.cut import EXCHANGE as BLOCKS
from datakit.dedup.giants.work import ProbeWork, Settled, SettleWork
from datakit.dedup.partitions import all_parts
from datakit.dedup.phase_data import Runs
from datakit.dedup.verification.rules import COUNTED
from datakit.dedup.verification.verify import EXCHANGE as VERDICTS
from datakit.engine.task import Task, TaskResult
from datakit.pipeline.simulate.corpus import share
from datakit.pipeline.simulate.document_counts import giant_rows, near_copies_in
from datakit.pipeline.simulate.effects import Effect, Exchange, PhaseOf, Reading, Run, Written, read_runs, write_runs
from datakit.pipeline.simulate.results.dedup_results import VERDICT_BYTES

ANSWER_BYTES = 300  # bytes of what a probe writes for a document (an assumption)
RETAINED_BYTES = 46  # bytes of a row of the list of retained documents
BUDGET = 64 << 20  # of an exchange writer


def cut(about: PhaseOf) -> Run:
    """Simulate the cutting of a range of rows into blocks."""
    shared, count = about.phase.shared, len(about.phase.tasks)
    exchange = about.world.exchange(about.step, shared["runs"])

    def run(task: Task) -> Effect:
        bucket = task.arguments["bucket"]
        rows, size = share(exchange.rows, bucket, count), share(exchange.values, bucket, count)
        reading = read_runs(exchange, len(shared["runs"]), 1 / count, bucket / count)
        written = write_runs(about, BLOCKS, task.key, shared["blocks"], rows=rows, size=size, budget=128 << 20)
        return _effect(written, reading, _runs(written), rows)

    return run


def settle(about: PhaseOf) -> Run:
    """Simulate the verdicts on a block, and the list of its retained documents."""
    shared, blocks = about.phase.shared, _blocks(about)
    gone = giant_rows(about, sum(near_copies_in(about.corpus, part) for part in all_parts(about.step)))

    def run(task: Task) -> Effect:
        work = msgspec.convert(task.arguments, SettleWork)
        rows, reading = _block(about, blocks, work.bucket)
        removed = min(rows, gone * rows // max(1, blocks.rows))
        answers = about.world.exchange(about.step, work.answers)
        known = read_runs(answers, len(work.answers), 1.0)
        key = f"block-{work.bucket:05d}"
        verdicts = write_runs(about, VERDICTS, key, shared["buckets"]["count"], rows=removed,
                              size=removed * VERDICT_BYTES, budget=BUDGET)  # fmt: skip
        kept = rows - removed
        retained = write_runs(about, f"retained-{work.number}", f"{work.bucket:05d}", 1, rows=kept,
                              size=kept * RETAINED_BYTES, budget=BUDGET)  # fmt: skip
        details = msgspec.to_builtins(Settled(verdicts.runs, retained.runs, rows, removed))
        outputs = verdicts.outputs + retained.outputs
        counters = dict.fromkeys((f"dedup/{name}" for name in COUNTED), 0)
        result = TaskResult(outputs, counters, details, records=rows, bytes_read=reading.bytes + known.bytes)
        return Effect(result, reading.reads + known.reads, len(outputs), reading.bytes + known.bytes,
                      verdicts.bytes + retained.bytes)  # fmt: skip

    return run


def probe(about: PhaseOf) -> Run:
    """Simulate the comparisons of a block with the documents retained in an earlier one."""
    blocks = _blocks(about)

    def run(task: Task) -> Effect:
        work = msgspec.convert(task.arguments, ProbeWork)
        rows, own = _block(about, blocks, work.bucket)
        _, earlier = _block(about, blocks, work.earlier)
        listed = read_runs(about.world.exchange(about.step, work.retained), len(work.retained), 1.0)
        parts = (own, earlier, listed)
        reading = Reading(sum(part.reads for part in parts), sum(part.bytes for part in parts))
        written = write_runs(about, work.exchange, work.key, 1, rows=rows, size=rows * ANSWER_BYTES, budget=BUDGET)
        return _effect(written, reading, _runs(written), rows)

    return run


def _blocks(about: PhaseOf) -> Exchange:
    return about.world.exchange(about.step, about.phase.shared["runs"])


def _block(about: PhaseOf, blocks: Exchange, bucket: int) -> tuple[int, Reading]:
    """Return the number of rows of a block, and the cost of reading them."""
    count = blocks.buckets * blocks.pieces
    reading = read_runs(blocks, len(about.phase.shared["runs"]), 1 / count, bucket / count)
    return share(blocks.rows, bucket, count), reading


def _effect(written: Written, reading: Reading, details: dict[str, Any], rows: int) -> Effect:
    result = TaskResult(written.outputs, details=details, records=rows, bytes_read=reading.bytes)
    return Effect(result, reading.reads, len(written.outputs), reading.bytes, written.bytes)


def _runs(written: Written) -> dict[str, Any]:
    return msgspec.to_builtins(Runs(written.runs))
