"""Defines a ferry as plain data: what it runs, what it checks, what it may take, and when it is scheduled.

Limits on CPU and wall-clock time are in calibrated seconds (`calibration.py`), so they mean the same on fast, slow and
busy machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal[
    "generate", "warm-up", "run", "validate", "train", "interrupt", "resume", "validate-training", "again", "compare",
    "report",
]  # fmt: skip
Peak = Literal["bytes written", "CPUs", "memory of a task", "memory of a process"]
NOT_OBSERVED = "not yet observed"


@dataclass(frozen=True)
class Limits:
    """The most that all measured stages together may take. cpu, wall: calibrated seconds. peak_rss: bytes of resident
    memory of the largest process.
    """

    wall: float
    cpu: float
    peak_rss: int


@dataclass(frozen=True)
class Request:
    """Something that a ferry needs from its machines. amount: how much of it. sizes: the sizes of the data that require
    this amount. peak: the measured value that the record of a run states beside the request.
    """

    what: str
    amount: str
    sizes: str
    peak: Peak
    observed: str = NOT_OBSERVED


@dataclass(frozen=True)
class Training:
    """The training run of a ferry. run_file: the name of a file in `recipes/`. loss_below: the loss of the last step
    must be lower than this.
    """

    run_file: str
    steps: int
    loss_below: float


@dataclass(frozen=True)
class Ferry:
    """A scheduled run. recipe: a name in datakit's catalog, or a file in `recipes/`, which is copied into the root.
    schedule: five cron fields, in UTC. timeout: seconds after which the run is stopped.
    """

    name: str
    description: str
    recipe: str
    stages: tuple[Stage, ...]
    limits: Limits
    schedule: str
    timeout: float
    training: Training | None = None
    requests: tuple[Request, ...] = ()
    needs_cluster: bool = False
