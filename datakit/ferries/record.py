"""Defines the record of a ferry: its outcome, what each part took, and the checksums of its outputs.

A record holds no text, no path and no URL, so it can be published as it is. Times are kept as measured, with the
factors of the calibration (`calibration.py`), so a record stays useful if the rule of comparison changes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from datakit.ferries.calibration import Calibration
from datakit.ferries.machine import Machine

FORMAT = "datakit.ferryrecord/1"
FILE_NAME = "ferry_record.json"
MEGABYTE = 1e6
Outcome = Literal["passed", "no baseline", "failed", "killed", "timed out", "interrupted", "terminated"]
SOUND: tuple[Outcome, ...] = ("passed", "no baseline")  # nothing was wrong with these runs


class Part(msgspec.Struct, frozen=True):
    """The cost of a stage of a ferry, or of a stage of the pipeline in it ("run/dedup"). factors: the calibration.
    retries: attempts beyond the first of each task. text_bytes: the size of the text that was processed, or None.
    steady: False if the CPU time depends on chance, because the stage was interrupted or resumed. requested, task_peak:
    the memory that was requested for the task that came closest to its request, and the peak of this task; 0 for a
    command.
    """

    name: str
    wall_seconds: float
    cpu_seconds: float
    peak_rss: int
    factors: Calibration
    retries: int = 0
    text_bytes: int | None = None
    steady: bool = True
    requested: int = 0
    task_peak: int = 0

    @property
    def calibrated_cpu(self) -> float:
        """CPU time in calibrated seconds."""
        return self.cpu_seconds / self.factors.cpu_seconds

    @property
    def calibrated_wall(self) -> float:
        """Wall-clock time in calibrated seconds."""
        return self.wall_seconds / self.factors.wall_seconds

    @property
    def megabytes_per_cpu_second(self) -> float | None:
        """Megabytes of text per measured (not calibrated) CPU second."""
        if self.text_bytes is None or not self.cpu_seconds:
            return None
        return self.text_bytes / MEGABYTE / self.cpu_seconds


class StepOutput(msgspec.Struct, frozen=True):
    """The output of a step: its identity, and the checksum of its manifest, which covers the checksums of all files."""

    identity: str
    checksum: str


class Observed(msgspec.Struct, frozen=True):
    """A request of the ferry (`Request` in ferry.py), and the peak that this run observed. unit: of the peak."""

    what: str
    amount: str
    sizes: str
    peak: float
    unit: Literal["bytes", "CPUs"]


class Failure(msgspec.Struct, frozen=True):
    """A reason why a ferry failed. cause: the reason, in the same words each time, without measured values, texts or
    paths. detail: the measured values, for people.
    """

    stage: str
    cause: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.stage}: {self.cause}" + (f" ({self.detail})" if self.detail else "")


class Record(msgspec.Struct, frozen=True, tag_field="event", tag="ended"):
    """The record of a ferry that has ended, and a line of the history. root: the name of its folder. stage: the last
    stage that began. scale: the size of generated texts, relative to the full size. compared_with: the number of
    earlier records with which the performance was compared. compared_steps: the number of steps whose bytes were
    compared with an earlier record. alerted: the failures that were sent to the webhook. requests: what the ferry
    requests of its machines, with the observed peaks.
    """

    ferry: str
    nonce: str
    root: str
    started: float
    ended: float
    outcome: Outcome
    stage: str
    scheduled: bool
    scale: float
    machine: Machine
    version: str
    parts: list[Part] = []
    steps: dict[str, StepOutput] = {}
    figures: dict[str, float] = {}
    failures: list[Failure] = []
    compared_with: int = 0
    compared_steps: int = 0
    alerted: list[Failure] = []
    requests: list[Observed] = []
    format: str = FORMAT

    @property
    def sound(self) -> bool:
        """True if later runs may be compared with this one."""
        return self.outcome in SOUND
