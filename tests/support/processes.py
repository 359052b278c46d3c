"""Checks and kills processes that may exit, and whose pid may be reused, at any moment."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def ended(process: psutil.Process) -> bool:
    """Return True if the process has exited; a zombie counts as exited."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each process that still exists."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
