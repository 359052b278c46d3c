"""Runs the real driver of a step without files: counts what it would read and write, and accesses no root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from datakit.engine.ledger.ledger import Digests, LedgerWriter, Line
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import StepRun
from datakit.engine.scheduler.finish import manifest_of
from datakit.engine.scheduler.phase_run import PhaseRun, PhaseStart
from datakit.engine.task import Output, Phase, Plan, Step, encode
from datakit.storage.manifest import Manifest, pieces, sealed


@dataclass
class Metadata:
    """The metadata of a step. ledger, manifest: sizes in bytes (the shared data is counted by phase). listed: how often
    the step's files are listed. files: the number of files that its tasks write.
    """

    ledger: int = 0
    manifest: int = 0
    listed: int = 0
    files: int = 0


@dataclass
class SimulatedLedger(LedgerWriter):
    """Counts the bytes of the lines that would be written to a ledger."""

    bytes: int = 0

    def start(self) -> None:
        """Do nothing, because there is no file."""

    def append(self, line: Line) -> None:
        """Count a line."""
        self.bytes += len(msgspec.json.encode(line)) + 1

    def tick(self) -> None:
        """Flush nothing."""

    def flush(self) -> None:
        """Flush nothing."""

    def close(self) -> None:
        """Do nothing, because there is no file."""


Enter = Callable[[Step, Phase, int], None]  # called with the size of the phase's shared data
End = Callable[[Step, Phase], None]


class SimulatedStep(StepRun):
    """A `StepRun` without files; its phases, results and manifest are made as usual."""

    def __init__(self, step: Step, plan: Plan, observer: Observer, enter: Enter, end: End) -> None:
        self._counted = SimulatedLedger(step.directory, "simulation")
        super().__init__(step, plan, observer, self._counted)
        self.metadata: Metadata = Metadata()
        self._shared_bytes, self._on_enter, self._on_end = 0, enter, end

    def enter(self, start: PhaseStart, slots: int) -> None:
        self._on_enter(self.step, start.phase, self._shared_bytes)
        super().enter(start, slots)

    def advance(self, ended: PhaseRun | None = None) -> PhaseStart | Manifest:
        if ended is not None:
            self._on_end(self.step, ended.phase)
        return super().advance(ended)

    def _begin(self) -> None:
        self.metadata.listed += 1

    def _forget_failures(self) -> None:
        pass

    def _share(self, phase: Phase, digests: Digests) -> str | None:
        self._shared_bytes = len(encode(phase.shared)) if phase.shared else 0
        return "exchange/shared" if phase.shared else None

    def _finish(self, output: Output) -> Manifest:
        manifest = sealed(manifest_of(self.step, output, self._tally.counters))
        self.metadata.ledger, self.metadata.listed = self._counted.bytes, self.metadata.listed + 1
        self.metadata.files = self._tally.written.count(b"\n")
        self.metadata.manifest = sum(map(len, pieces(manifest)))
        return manifest
