"""Checks and kills processes that may exit, and whose pid may be reused, at any moment; sets their fake JAX devices."""

from __future__ import annotations

import os
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


def fake_devices(count: int) -> dict[str, str]:
    """Return the environment variable that gives a program `count` devices and the tests' other flags.

    The last count wins. With fewer devices, a training step takes less time.
    """
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"}
