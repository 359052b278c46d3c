"""Writes a run's events to `events.jsonl` as one JSON object per line, and decides which fields each event has.

The file is in the run's directory, for programs to read. On a disk, each line is appended immediately. In an object
store, where appending is impossible, the whole file is rewritten at the end of each step. Nothing depends on the file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Phase, Step
from datakit.printable import escaped_json
from datakit.redaction import redacted
from datakit.storage import atomic, urls
from datakit.storage.manifest import Manifest

FILE_NAME = "events.jsonl"


class EventLog(Observer):
    """Writes events to `events.jsonl` in the directory whose URL is `directory`."""

    def __init__(self, directory: str) -> None:
        self.url: str = urls.join(directory, FILE_NAME)
        self._remote: list[bytes] = []

    def _write(self, event: str, **facts: Any) -> None:
        plain = orjson.dumps({"time": time.time(), "event": event} | facts)
        line = escaped_json(plain.decode()).encode() + b"\n"
        if not urls.is_local(self.url):
            self._remote.append(line)
            return
        path = Path(urls.local_path(self.url))
        with atomic.storage_errors(self.url):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(line)

    def _publish(self) -> None:
        if self._remote:
            atomic.replace_bytes(b"".join(self._remote), self.url)

    def run_started(self, dataset: str, sources: Mapping[str, str]) -> None:
        """Write the first event: the dataset that the run makes, and the name of each of its sources with the directory
        of the source's files ("" for a remote source).
        """
        self._write("run_started", dataset=dataset, sources=dict(sources))

    def note(self, text: str) -> None:
        self._write("note", text=redacted(text))

    def step_started(self, step: Step) -> None:
        self._write("step_started", stage=step.stage, dataset=step.dataset, directory=step.directory)

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        total = len(phase.tasks)
        self._write("phase_started", stage=step.stage, dataset=step.dataset, phase=phase.name, tasks=total, done=done)

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        self._write(
            "attempt_ended",
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

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        self._write("step_ended", stage=step.stage, dataset=step.dataset, reused=reused, rows=manifest.totals.rows)
        self._publish()

    def step_failed(self, step: Step, error: BaseException) -> None:
        self._write("step_failed", stage=step.stage, dataset=step.dataset, error=type(error).__name__)
        self._publish()
