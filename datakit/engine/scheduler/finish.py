"""The end of a step: its manifest, or the list of what failed.

Counters are summed over the results in the ledger, so the totals are the same with and without crashes. What the step
needed only on its way (exchange files, shared plan data) is removed once the manifest stands, never before.

Before it is written, all that tasks said they wrote is looked for, in one listing: a run may take days, and meanwhile
somebody, or something that tidies up, may have removed a file that was done long ago.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from datakit.engine.scheduler.retry_policy import TaskRecord
from datakit.engine.task import Output, QuarantinedRecord, Step, TaskResult, input_references
from datakit.errors import CorruptError, NotFoundError, RootError
from datakit.storage import atomic, stale_files, urls
from datakit.storage.fingerprint import identity
from datakit.storage.manifest import PARTIAL_NAME, Manifest, Quarantine, totals_of, write_manifest
from datakit.storage.parquet import columns_of

QUARANTINE_FILE = "quarantine/records.jsonl"
EXCHANGE_FOLDER = "exchange"


@dataclass
class Tally:
    """What a step's results come to: the sums of their counters, the records that they left out, and what they wrote.

    written: the files that must still be there at the end, a line of JSON each: [path, bytes]. 5 MB where 100,000
    tuples would be 20.
    """

    counters: Counter[str] = field(default_factory=Counter)
    quarantined: list[QuarantinedRecord] = field(default_factory=list)
    written: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, results: Sequence[TaskResult]) -> Tally:
        """Of all of them."""
        tally = cls()
        tally.enter(results)
        return tally

    def enter(self, results: Sequence[TaskResult]) -> None:
        """Those of a phase more."""
        for result in results:
            self.counters.update(result.counters)
            self.quarantined += result.quarantined
            for output in result.outputs:
                if not output.path.startswith(f"{EXCHANGE_FOLDER}/"):
                    self.written += msgspec.json.encode([output.path, output.bytes]) + b"\n"


def finish_step(step: Step, output: Output, tally: Tally) -> Manifest:
    """Write the quarantine list, then the manifest, then tidy up.

    Raises NotFoundError, CorruptError where an output is not as its task left it.
    """
    _require_outputs(step, tally.written)
    counters = Counter(output.counters)
    counters.update(tally.counters)  # not `+`, which forgets what was counted as zero
    quarantined = sorted(tally.quarantined, key=lambda record: (record.file, record.position, record.reason))
    if quarantined:
        _write_quarantine(step, quarantined)
    manifest = Manifest(
        stage=step.stage,
        dataset=step.dataset,
        fingerprint=step.fingerprint,
        identity=identity(step.fingerprint, [f"{record.file}:{record.position}" for record in quarantined]),
        parameters=step.parameters,
        inputs=input_references(step),
        schema=columns_of(output.schema),
        partitions=output.partitions,
        totals=totals_of(output.partitions),
        counters=dict(sorted(counters.items())),
        quarantine=Quarantine(sum(record.records for record in quarantined)),
        details=output.details,
    )
    write_manifest(manifest, step.directory)
    urls.remove(urls.join(step.directory, PARTIAL_NAME))
    remove_exchange(step)
    return manifest


def _require_outputs(step: Step, written: bytearray) -> None:
    """All that the tasks wrote is there, with its size."""
    if not written:
        return
    sizes = {info.path: info.size for info in urls.listing(step.directory)}
    for line in io.BytesIO(written):
        path, size = msgspec.json.decode(line)
        if sizes.get(path) != size:
            _require_output(step, path, size)


def _require_output(step: Step, path: str, size: int) -> None:
    """The same of one file, which is asked for by its name: on a network's disk a listing may lag behind."""
    try:
        found = urls.size(urls.join(step.directory, path))
    except NotFoundError as error:
        raise NotFoundError(
            f"{path} is missing from {step.directory}; something removed it while the run went on; run again"
        ) from error
    if found != size:
        raise CorruptError(
            f"{path} in {step.directory} has {found} bytes, its task wrote {size}; something changed it while the run "
            "went on; remove it and run again"
        )


def tidy_up(step: Step) -> None:
    """What a driver that was killed right after the manifest had no time for. On a disk: looking costs nothing there.

    In an object store, where it would cost requests for each finished step, `datakit gc` finds it.
    """
    if not urls.is_local(step.directory):
        return
    with contextlib.suppress(RootError, PermissionError):  # of those who may only read, nobody expects it
        stale_files.remove_dead_files_in(step.directory)
        urls.remove(urls.join(step.directory, PARTIAL_NAME))
        remove_exchange(step)


def read_quarantine(directory: str) -> list[QuarantinedRecord]:
    """The records that a finished step left out. Raises NotFoundError where it left out none."""
    lines = urls.read_bytes(urls.join(directory, QUARANTINE_FILE)).splitlines()
    return [msgspec.json.decode(line, type=QuarantinedRecord) for line in lines]


def remove_exchange(step: Step) -> None:
    """Remove what the step needed only on its way."""
    urls.remove_tree(urls.join(step.directory, EXCHANGE_FOLDER))


def _write_quarantine(step: Step, records: Sequence[QuarantinedRecord]) -> None:
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    atomic.commit_bytes(lines, urls.join(step.directory, QUARANTINE_FILE))


def write_partial(step: Step, phase: str, failed: dict[str, TaskRecord]) -> None:
    """`partial.json`: which tasks failed and why. It is state, not output: the next run replaces or removes it."""
    _write_partial(step, [_failure(phase, key, record) for key, record in sorted(failed.items())])


def write_over_limit(step: Step, phase: str, results: Sequence[TaskResult], why: str) -> None:
    """`partial.json` of a step whose tasks are all done, but left out more records than the recipe allows."""
    records = [_place(record) for result in results for record in result.quarantined]
    _write_partial(step, [{"phase": phase, "task": None, "cause": "quarantine", "why": why, "records": records}])


def _write_partial(step: Step, entries: list[dict[str, object]]) -> None:
    partial = {"stage": step.stage, "dataset": step.dataset, "fingerprint": step.fingerprint, "failed": entries}
    data = msgspec.json.format(msgspec.json.encode(partial), indent=1)
    atomic.replace_bytes(data + b"\n", urls.join(step.directory, PARTIAL_NAME))


def _failure(phase: str, key: str, record: TaskRecord) -> dict[str, object]:
    assert record.last is not None
    entry = {"phase": phase, "task": key, "attempts": record.attempts, "cause": record.last.cause}
    blamed = {"record": _place(record.proposed)} if record.proposed is not None else {}
    return {**entry, "why": record.last.message, **blamed}


def _place(record: QuarantinedRecord) -> dict[str, object]:
    return {"file": record.file, "position": record.position, "cause": record.reason}
