"""Decides which events of a run are written to `events.jsonl`, and which fields each event has.

The file holds one JSON object per line, for programs to read. It is in the run's directory and is written by
`event_file.py`. docs/operations.md lists the events. The results of a run do not depend on this file. `datakit status`
and `datakit why` find the directories of a dataset's sources in the file's first event; `datakit status --watch` shows
what is added to the file. In an object store, the file is rewritten when the run starts or ends, when a step ends, and
at each heartbeat.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.driver_heartbeat import DriverHeartbeat
from datakit.engine.observe.event_file import EventFile
from datakit.engine.observe.observer import Observer, RunEnding, RunStart
from datakit.engine.task import Phase, Step
from datakit.engine.versions import versions
from datakit.engine.worker import child
from datakit.errors import DatakitError, exit_code_of
from datakit.exit_codes import ExitCode
from datakit.storage.manifest import Manifest

HEARTBEAT_SECONDS = 30.0


@dataclass
class _Progress:
    """A running step, its current phase, and how many tasks of this phase are done or have failed."""

    stage: str = ""
    dataset: str = ""
    phase: str = ""
    tasks: int = 0
    done: int = 0
    failed: int = 0


class EventLog(Observer):
    """Writes events to `events.jsonl` in the run's directory. directory: its URL, which ends with the run's id."""

    def __init__(self, directory: str) -> None:
        self._file = EventFile(directory)
        self.url: str = self._file.url
        self._heartbeat = DriverHeartbeat(self._beat, HEARTBEAT_SECONDS)
        self._running: dict[str, _Progress] = {}  # the running steps, by directory
        self._latest = _Progress()  # the step that most recently started or entered a phase
        self._missed, self._active = 0, time.monotonic()

    def _write(self, event: str, **facts: object) -> None:
        self._active = time.monotonic()
        self._file.write(event, facts)

    def run_started(self, start: RunStart) -> None:
        facts = {name: value for name, value in asdict(start).items() if name not in ("run", "log")}
        here = {"host": os.uname().nodename, "pid": os.getpid(), "heartbeat_seconds": HEARTBEAT_SECONDS}
        self._write("run_started", **facts, **here, versions=versions())
        self._file.publish()
        self._heartbeat.start()

    def _beat(self) -> None:
        """Write a heartbeat for each running step, or one for the run if no step is running. This method runs in the
        heartbeat's own thread. Failures are only counted, and the next heartbeat that succeeds states their number. If
        the disk or the store does not recover, the driver's own thread fails to write its next event, and this ends the
        run.
        """
        silent = round(time.monotonic() - self._active, 1)
        missed = {"missed": self._missed} if self._missed else {}
        try:
            for progress in list(self._running.values()) or [self._latest]:
                self._file.write("heartbeat", {**asdict(progress), "silent_seconds": silent, **missed})
            self._file.publish()
            self._missed = 0
        except (DatakitError, OSError):
            self._missed += 1

    def run_ended(self, ending: RunEnding) -> None:
        self._heartbeat.stop()
        self._write("run_ended", **asdict(ending))
        self._file.publish()

    def note(self, text: str) -> None:
        self._write("note", text=text)

    def step_started(self, step: Step) -> None:
        self._begin(step, "", 0, 0)
        self._write("step_started", stage=step.stage, dataset=step.dataset, directory=step.directory)

    def _begin(self, step: Step, phase: str, tasks: int, done: int) -> None:
        self._latest = self._running[step.directory] = _Progress(step.stage, step.dataset, phase, tasks, done)

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        tasks = len(phase.tasks)
        self._begin(step, phase.name, tasks, done)
        place = {"stage": step.stage, "dataset": step.dataset, "phase": phase.name}
        self._write("phase_started", **place, tasks=tasks, done=done, slots=slots)

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        progress = self._running.get(outcome.step_directory, self._latest)
        progress.done += verdict is Verdict.DONE
        progress.failed += verdict in (Verdict.FAIL, Verdict.REFUSE)
        self._write(
            "attempt_ended",
            stage=progress.stage,
            dataset=progress.dataset,
            phase=outcome.phase,
            task=outcome.key,
            attempt=outcome.number,
            cause=outcome.cause,
            verdict=verdict,
            message=outcome.message,
            seconds=round(outcome.seconds, 4),
            cpu_seconds=round(outcome.cpu_seconds, 4),
            peak_memory=outcome.peak_memory,
            budget=outcome.budget,
            written=outcome.written,
            node=outcome.node,
        )

    def tick(self) -> None:
        self._active = time.monotonic()

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        self._running.pop(step.directory, None)
        place = {"stage": step.stage, "dataset": step.dataset, "directory": step.directory}
        self._write("step_ended", **place, reused=reused, rows=manifest.totals.rows)
        self._file.publish()

    def step_failed(self, step: Step, error: BaseException) -> None:
        self._running.pop(step.directory, None)
        place = {"stage": step.stage, "dataset": step.dataset, "directory": step.directory}
        facts = {"error": type(error).__name__, "reason": reason_of(error), "exit_code": exit_code_of(error)}
        self._write("step_failed", **place, **facts)
        self._file.publish()


def reason_of(error: BaseException | None) -> str:
    """Return why a run or a step ended: "done", "interrupted", "terminated", "timed out", or the whole message of
    the error. An error that is not datakit's own is described without its message, which may quote documents.
    """
    if error is None:
        return "done"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit):
        code = exit_code_of(error)
        reasons = {ExitCode.TERMINATED: "terminated", ExitCode.TIMED_OUT: "timed out"}
        other = f"the program ended itself with exit code {code}"
        return next((reason for known, reason in reasons.items() if code == known), other)
    return str(error) if isinstance(error, DatakitError) else child.describe_error(error)["message"]
