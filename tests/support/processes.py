"""Looking at and killing processes that may be gone at any moment, or whose number another one has by now."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more; a zombie does not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each that is still there."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
