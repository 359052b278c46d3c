"""Runs a ferry in a root of its own: its stages one after another, then the comparison with earlier records.

The status in the root is written before each stage, and the record at the end, however the ferry ends. A ferry that
finds no earlier record of the same machine kind ends as `no baseline`: nothing was wrong, but nothing could be compared
either, so it has not passed. Its record is the baseline of the next run.

If a figure is worse than before, the measured stages run once more, and the smaller figures count. A busy neighbor can
only make a run slower, so a false alarm requires that both measurements are disturbed; a true regression shows in both.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replace_field
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec.structs import replace

from datakit.errors import UsageError
from datakit.exit_codes import ExitCode
from datakit.ferries import alert, history, status
from datakit.ferries.alert import Say
from datakit.ferries.ferry import Ferry
from datakit.ferries.machine import this_machine
from datakit.ferries.pipeline_parts import observed
from datakit.ferries.record import FILE_NAME, Failure, Outcome, Part, Record
from datakit.ferries.regression import PERFORMANCE, baseline, best_of, beyond_limits, regressions
from datakit.ferries.stages import MEASURED, STAGES, FerryRun, StageError
from datakit.retention.ferry_roots import create_ferry_root
from datakit.storage import atomic, urls

SECOND = "measured-again"  # the folder of the second measurement, in the ferry's root
STOPPED: dict[int, Outcome] = {ExitCode.TIMED_OUT: "timed out", ExitCode.TERMINATED: "terminated"}


@dataclass(frozen=True)
class Options:
    """The options of a run. parent: the folder of the history and of the roots. scheduled: send an alert if the ferry
    does not pass. timeout: the caller stops the run after this number of seconds; None for the ferry's own limit.
    """

    parent: str
    ttl_seconds: float
    ray: str | None = None
    scale: float = 1.0
    scheduled: bool = False
    timeout: float | None = None


@dataclass(frozen=True)
class Ended:
    """A ferry that has ended. root: its URL. log: the file with the messages of the command that failed, or ""."""

    record: Record
    root: str
    page: str
    log: str
    exit_code: ExitCode


@dataclass
class _Ending:
    """The end of a ferry, as far as it is known while the ferry runs."""

    stage: str = "start"
    outcome: Outcome | None = None
    failures: list[Failure] = field(default_factory=list)
    exit_code: ExitCode = ExitCode.DONE
    log: str = ""
    compared: int = 0


@dataclass
class _Run:
    """A ferry that is running."""

    parent: str
    begun: status.Started
    ferry_run: FerryRun
    say: Say
    ending: _Ending = field(default_factory=_Ending)

    def enter(self, stage: str) -> None:
        """Record which stage begins, in the status too."""
        self.ending.stage = stage
        self.write_status()

    def write_status(self, record: Record | None = None) -> None:
        """Write the status: that the ferry is running or, if a record is given, how it ended."""
        begun, page = self.begun, self.ferry_run.page
        now = status.Status(begun.ferry, begun.nonce, begun.root, begun.started, self.ending.stage, page=page)
        if record is not None:
            causes, place = [str(one) for one in record.failures], urls.join(begun.root, FILE_NAME)
            now = replace(now, outcome=record.outcome, ended=record.ended, causes=causes, record=place)
        status.write_status(now)

    def record(self) -> Record:
        """Return a record of what is known about the ferry now."""
        begun, found, ending = self.begun, self.ferry_run, self.ending
        return Record(
            ferry=begun.ferry, nonce=begun.nonce, root=urls.name(begun.root), started=begun.started, ended=time.time(),
            outcome=ending.outcome or "failed", stage=ending.stage, scheduled=begun.scheduled, scale=begun.scale,
            machine=this_machine(), version=version("datakit"), parts=found.parts, steps=found.steps,
            figures=found.figures, failures=ending.failures, compared_with=ending.compared,
            compared_steps=found.compared_steps, requests=observed(found.ferry.requests, found.parts, found.written),
        )  # fmt: skip


def run_ferry(ferry: Ferry, options: Options, say: Say) -> Ended:
    """Run a ferry, and return how it ended. Raises UsageError for options that do not fit the ferry. An error in a
    stage is recorded before it is raised.
    """
    _check(ferry, options)
    parent = urls.absolute(options.parent)
    alert.settle(parent, options.scheduled, say)
    created = create_ferry_root(parent, ferry.name, options.ttl_seconds)
    begun = status.started(created, options.scheduled, options.scale, options.timeout or ferry.timeout)
    with status.held(created.url), _folder(created.url) as folder:
        history.append(parent, begun)
        earlier = [record for record in history.read_history(parent).records if record.ferry == ferry.name]
        run = _Run(parent, begun, FerryRun(ferry, created.url, folder, options.scale, options.ray, earlier), say)
        try:
            _run_stages(run)
        except BaseException as error:
            _note_error(run.ending, error)
            _finish(run)
            raise
        record = _finish(run)
    return Ended(record, created.url, run.ferry_run.page, run.ending.log, run.ending.exit_code)


def _check(ferry: Ferry, options: Options) -> None:
    if ferry.needs_cluster and options.ray is None:
        raise UsageError(
            f"the ferry {ferry.name} needs a cluster: give --ray host:port, and a --root that all nodes can reach"
        )
    longest = (options.timeout or ferry.timeout) + status.GRACE_SECONDS
    if options.ttl_seconds < longest:
        raise UsageError(
            f"the ferry {ferry.name} may run for {longest:.0f} seconds, and its root must not expire before then, but "
            f"--ttl is {options.ttl_seconds:.0f} seconds; give a longer --ttl or a shorter --timeout"
        )
    if options.scale != 1.0 and "generate" not in ferry.stages:
        raise UsageError(f"--scale is for ferries that generate their text, and {ferry.name} does not; leave it out")
    if not 0 < options.scale <= 1:
        raise UsageError(f"--scale is {options.scale}; give a number above 0 and at most 1")
    if not urls.is_local(urls.absolute(options.parent)) and {"generate", "interrupt"} & {*ferry.stages}:
        raise UsageError(f"the ferry {ferry.name} needs a local disk; give a folder as --root")


@contextmanager
def _folder(root: str) -> Iterator[Path]:
    """Return a local folder for inputs and logs: the root, or else a temporary folder that is kept for the logs."""
    local = urls.is_local(root)
    yield Path(urls.local_path(root)) if local else Path(tempfile.mkdtemp(prefix=f"datakit-{urls.name(root)}-"))


def _run_stages(run: _Run) -> None:
    """Run the stages, and decide the outcome."""
    run.write_status()
    ending = run.ending
    try:
        for stage in run.ferry_run.ferry.stages:
            run.enter(stage)
            before = time.monotonic()
            STAGES[stage](run.ferry_run)
            run.say(f"{stage}: {time.monotonic() - before:.1f} s")
        _compare_performance(run)
    except StageError as error:
        ending.outcome, ending.failures, ending.log = "failed", error.failures, error.log
        ending.exit_code = error.exit_code


def _compare_performance(run: _Run) -> None:
    """Compare what the ferry took with its limits and with earlier records."""
    found, ending = run.ferry_run, run.ending
    earlier = baseline(found.history, found.ferry.name, found.scale, this_machine())
    ending.compared = len(earlier)
    if regressions(found.parts, earlier):
        run.say("some figures are worse than in earlier runs; measuring again")
        found.parts = best_of(found.parts, _measured_again(run))
    worse = [*beyond_limits(found.parts, found.ferry.limits), *regressions(found.parts, earlier)]
    if worse:
        raise StageError(worse)
    ending.outcome = "passed"
    if not earlier:
        ending.outcome, ending.exit_code = "no baseline", ExitCode.FAILURE
        ending.failures = [Failure(PERFORMANCE, "no baseline", "the history has no run on this kind of machine")]


def _measured_again(run: _Run) -> list[Part]:
    """Run the measured stages again, below the root, and return what they took."""
    first = run.ferry_run
    second = replace_field(first, root=urls.join(first.root, SECOND), parts=[], steps={}, figures={})
    for stage in first.ferry.stages:
        if stage in MEASURED:
            run.enter(stage)
            STAGES[stage](second)
    first.commands = second.commands
    return second.parts


def _note_error(ending: _Ending, error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt):
        ending.outcome, cause = "interrupted", "the ferry was interrupted"
    elif isinstance(error, SystemExit) and error.code in STOPPED:
        ending.outcome = STOPPED[int(error.code or 0)]
        cause = f"the ferry was stopped: {ending.outcome}"
    else:
        ending.outcome, cause = "failed", f"an error: {type(error).__name__}"
    ending.failures = [Failure(ending.stage, cause)]


def _finish(run: _Run) -> Record:
    """Write the status, send an alert if one is due, write the record, and append it to the history."""
    record = run.record()
    run.write_status(record)
    record = alert.alert(run.parent, record, run.say)
    data = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    atomic.replace_bytes(data, urls.join(run.begun.root, FILE_NAME))
    history.append(run.parent, record)
    return record
