"""Provides the commands as functions that return what the commands print and raise instead of exiting."""

from __future__ import annotations

import os

from datakit.engine.ledger.status import StepStatus, read_status, step_directories
from datakit.errors import InputError
from datakit.pipeline import RunPlan, RunResult, inspect, plan, run
from datakit.storage import urls

__all__ = ["RunPlan", "RunResult", "inspect", "plan", "run", "status"]


def status(directory: str | os.PathLike[str]) -> list[StepStatus]:
    """Read the state of every task of every step in or below a directory, from its files alone."""
    place = urls.absolute(os.fspath(directory))
    found = [read_status(step) for step in step_directories(place)]
    if not found:
        raise InputError(f"{place} contains no datakit step; give the directory of a step, a dataset or a root")
    return found
