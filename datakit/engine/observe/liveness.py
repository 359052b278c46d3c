"""Decides whether the driver of a run is alive, from the run's id, its first event and the age of its newest event.

A run on this machine is alive as long as its process exists. The process of a run on another machine cannot be seen, so
such a run counts as ended once it has missed three heartbeats.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import psutil

MISSED_BEATS, BEAT_SECONDS = 3, 30.0  # BEAT_SECONDS: the heartbeat interval of a run that does not state it
STAMP_FORMAT, STAMP = "%Y%m%dT%H%M%S", 15  # the start time at the beginning of a run's id: format, number of characters
SLACK_SECONDS = 60.0  # allowance for clock changes; a process that began even later has reused the run's pid


def driver_alive(run: str, started: Mapping[str, Any] | None, silent: float) -> bool:
    """Return True if the driver of a run that has recorded no end shows signs of life. started: the run's first event.
    silent: the seconds since its newest event.
    """
    if is_local(started):
        return process_runs(run)
    return silent < patience(started)


def is_local(started: Mapping[str, Any] | None) -> bool:
    """Return True if the run began on this machine, or does not say where."""
    here = os.uname().nodename
    return (started or {}).get("host", here) == here


def patience(started: Mapping[str, Any] | None) -> float:
    """Return after how many seconds without an event a run counts as silent: three heartbeats."""
    seconds = (started or {}).get("heartbeat_seconds", BEAT_SECONDS)
    return MISSED_BEATS * (seconds if isinstance(seconds, int | float) else BEAT_SECONDS)


def process_runs(run: str) -> bool:
    """Return True if the process of the run with this id exists on this machine. The current process does not count,
    because the runs that it started earlier have ended.
    """
    began, pid, *_ = [*run.split("-"), "", ""]
    try:
        if int(pid) == os.getpid():
            return False
        process = psutil.Process(int(pid))
        started = datetime.strptime(began[:STAMP], STAMP_FORMAT).replace(tzinfo=UTC).timestamp()
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < started + SLACK_SECONDS
    except (ValueError, OverflowError, psutil.NoSuchProcess):
        return False
