"""Ends a step: checks outputs, writes the manifest and quarantine list (or `partial.json`), and removes exchange files.

Counters are summed over the results of all tasks, including those that the ledger holds from earlier runs, so crashes
do not change the counters. Shared plan data and, except for those that `drops.py` removes, exchange files are removed
only after the manifest is written. At the end, a single listing is compared with the files that the tasks wrote,
because in a run that lasts days, a person or a cleanup job may remove a file that was written early.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from datakit.engine.scheduler.drops import folder_of
from datakit.engine.scheduler.retry_policy import TaskHistory
from datakit.engine.task import (
    EXCHANGE_FOLDER,
    Output,
    OutputFile,
    QuarantinedRecord,
    Step,
    TaskResult,
    input_references,
)
from datakit.errors import CorruptError, NotFoundError, RefusedInputsError
from datakit.storage import atomic, removal, stale_files, urls
from datakit.storage.fingerprint import identity
from datakit.storage.io_errors import unless_read_only
from datakit.storage.json_data import decode_errors
from datakit.storage.manifest import PARTIAL_NAME, Manifest, Quarantine, StepFile, totals_of, write_manifest
from datakit.storage.parquet import columns_of

QUARANTINE_FILE = "quarantine/records.jsonl"


@dataclass
class Tally:
    """The counters, skipped records and files of all results of a step. `written` lists the files that must exist at
    the end, as JSON lines [path, bytes]; for 100,000 files, the lines take 5 MB, and tuples would take 20 MB.
    `exchanged` holds the number of bytes that were written to each folder below `exchange/`.
    """

    counters: Counter[str] = field(default_factory=Counter)
    quarantined: list[QuarantinedRecord] = field(default_factory=list)
    written: bytearray = field(default_factory=bytearray)
    exchanged: Counter[str] = field(default_factory=Counter)

    def add(self, results: Sequence[TaskResult]) -> None:
        """Add the results of a phase to the tally."""
        for result in results:
            self.counters.update(result.counters)
            self.quarantined += result.quarantined
            for output in result.outputs:
                if folder := folder_of(output.path):
                    self.exchanged[folder] += output.bytes
                else:
                    self.written += msgspec.json.encode([output.path, output.bytes]) + b"\n"


def finish_step(step: Step, output: Output, tally: Tally) -> Manifest:
    """Check the outputs, write the quarantine list and then the manifest, and remove intermediate files. Raises
    NotFoundError if an output is missing, and CorruptError if an output's size differs from the size that its task
    recorded.
    """
    folders = _require_outputs(step, tally.written)
    quarantined = sorted(tally.quarantined, key=lambda record: (record.file, record.position, record.reason))
    more = [_write_quarantine(step, quarantined)] if quarantined else []
    manifest = manifest_of(step, output, tally.counters, quarantined, more)
    atomic.sync_directories(sorted(folders))
    manifest = write_manifest(manifest, step.directory)
    removal.remove(urls.join(step.directory, PARTIAL_NAME))
    remove_exchange(step)
    return manifest


def manifest_of(
    step: Step,
    output: Output,
    counted: Counter[str],
    quarantined: Sequence[QuarantinedRecord] = (),
    more: Sequence[OutputFile] = (),
) -> Manifest:
    """Return the manifest of a finished step, without its checksum. counted: the sums of the tasks' counters. more:
    files that belong to no partition and are not in the plan's Output.
    """
    counters = Counter(output.counters)
    counters.update(counted)  # not `+`, which would drop counters that are zero
    return Manifest(
        stage=step.stage,
        dataset=step.dataset,
        fingerprint=step.fingerprint,
        identity=identity(
            step.fingerprint, [f"{record.file}:{record.position}" for record in quarantined], output.model_answers
        ),
        parameters=step.parameters,
        inputs=input_references(step),
        schema=columns_of(output.schema),
        partitions=output.partitions,
        totals=totals_of(output.partitions),
        counters=dict(sorted(counters.items())),
        quarantine=Quarantine(sum(record.records for record in quarantined)),
        details=output.details,
        version=step.version,
        files=[StepFile(file.path, file.bytes, file.xxh3, file.rows) for file in (*output.files, *more)],
        model_answers=output.model_answers,
    )


def _require_outputs(step: Step, written: bytearray) -> set[str]:
    """Raise an error unless all files that the tasks wrote exist with the recorded sizes; return their folders."""
    if not written:
        return set()
    paths = []
    sizes = {info.path: info.size for info in urls.listing(step.directory)}
    for line in io.BytesIO(written):
        path, size = msgspec.json.decode(line)
        if sizes.get(path) != size:
            _require_output(step, path, size)
        paths.append(path)
    return atomic.folders_above(step.directory, paths)


def _require_output(step: Step, path: str, size: int) -> None:
    """Check a single file by its name, because a listing of a network disk may be out of date."""
    try:
        found = urls.size(urls.join(step.directory, path))
    except NotFoundError as error:
        raise NotFoundError(
            f"{path} is missing from {step.directory}; it was removed during the run; run again"
        ) from error
    if found != size:
        raise CorruptError(
            f"{path} in {step.directory} has {found} bytes, but its task wrote {size}; it was changed during "
            "the run; remove it and run again"
        )


def clean_up_finished(step: Step) -> None:
    """Remove the leftover files of a local step whose driver was killed right after it wrote the manifest. In an object
    store, this would require requests for every finished step; there, `datakit gc` removes the leftover files.
    """
    if not urls.is_local(step.directory):
        return
    with unless_read_only():
        stale_files.remove_dead_files_in(step.directory)
        removal.remove(urls.join(step.directory, PARTIAL_NAME))
        remove_exchange(step)


def read_quarantine(directory: str) -> list[QuarantinedRecord]:
    """Read the list of records that a finished step skipped. Raises NotFoundError if the step skipped no records, and
    CorruptError if the list is damaged.
    """
    url = urls.join(directory, QUARANTINE_FILE)
    try:
        with decode_errors():
            return msgspec.json.Decoder(QuarantinedRecord).decode_lines(urls.read_bytes(url))
    except msgspec.DecodeError as error:
        raise CorruptError(f"{url} is not a list of records: {error}; `datakit validate` shows all damage") from error


def remove_exchange(step: Step) -> None:
    """Remove the step's intermediate files."""
    removal.remove_tree(urls.join(step.directory, EXCHANGE_FOLDER))


def _write_quarantine(step: Step, records: Sequence[QuarantinedRecord]) -> OutputFile:
    lines = msgspec.json.Encoder().encode_lines(records)
    committed = atomic.commit_bytes(lines, urls.join(step.directory, QUARANTINE_FILE))
    return OutputFile(QUARANTINE_FILE, committed.bytes, committed.xxh3, len(records))


def write_partial(step: Step, phase: str, failed: dict[str, TaskHistory]) -> None:
    """Write `partial.json`, the list of failed tasks with the reasons. The next run replaces or removes this file."""
    _write_partial(step, [_failure(phase, key, history) for key, history in sorted(failed.items())])


def write_over_limit(step: Step, phase: str, results: Sequence[TaskResult], why: str) -> None:
    """Write `partial.json` for a phase whose tasks are done but have skipped more records than the recipe allows."""
    records = [_place(record) for result in results for record in result.quarantined]
    _write_partial(step, [{"phase": phase, "task": None, "cause": "quarantine", "why": why, "records": records}])


def write_open(step: Step, phase: str, results: Sequence[TaskResult]) -> None:
    """Write `partial.json` for a phase whose tasks have left records for a later run."""
    why = {result.why_open: sum(one.open for one in results if one.why_open == result.why_open) for result in results}
    entries = [
        {"phase": phase, "task": None, "cause": "open", "why": text, "open": count}
        for text, count in sorted(why.items())
        if count
    ]
    _write_partial(step, entries)


def write_refusals(step: Step, error: RefusedInputsError) -> RefusedInputsError:
    """Write `partial.json` for a step with inputs that cannot be used; return the error with this file's name added."""
    _write_partial(step, [{"phase": None, "task": None, "cause": "refused", "why": one} for one in error.messages])
    return RefusedInputsError(error.messages, urls.join(step.directory, PARTIAL_NAME))


def _write_partial(step: Step, entries: list[dict[str, object]]) -> None:
    partial = {"stage": step.stage, "dataset": step.dataset, "fingerprint": step.fingerprint, "failed": entries}
    data = msgspec.json.format(msgspec.json.encode(partial), indent=1)
    atomic.replace_bytes(data + b"\n", urls.join(step.directory, PARTIAL_NAME))


def _failure(phase: str, key: str, history: TaskHistory) -> dict[str, object]:
    assert history.last is not None
    entry = {"phase": phase, "task": key, "attempts": history.attempts, "cause": history.last.cause}
    culprit = {"record": _place(history.proposed)} if history.proposed is not None else {}
    return {**entry, "why": history.last.message, **culprit}


def _place(record: QuarantinedRecord) -> dict[str, object]:
    return {"file": record.file, "position": record.position, "cause": record.reason}
