"""Limits the threads of the encoders' libraries, and runs their first calls in threads of their own.

fastokens creates its thread pool on its first call, with one thread per CPU that the process may use, and ignores
RAYON_NUM_THREADS (measured). During that call, the calling thread is therefore limited to the task's number of CPUs. A
pool for one CPU has no thread besides the calling one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from datakit.tokenize.encoders.base import Encoder

TASKS = Path("/proc/self/task")
THREAD_END_SECONDS = 5.0  # if a thread is left then, the fork server refuses to fork (`child.require_one_thread`)


def limit_threads(encoder: Encoder, cpus: int) -> None:
    """Make the encoder start its threads now, and at most `cpus` of them. A task must call this before its
    first batch.
    """
    with limited_cpus(cpus):
        encoder.encode_batch(["one", "two"])


@contextmanager
def limited_cpus(cpus: int) -> Iterator[None]:
    """Restrict this thread, and any threads that it starts, to `cpus` CPUs during the `with` block.

    Libraries derive the size of their thread pools from this number. Afterward, these threads may use all CPUs that
    were allowed before. On systems without CPU affinity (macOS), this does nothing.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed, threads = os.sched_getaffinity(0), _threads()
    os.sched_setaffinity(0, sorted(allowed)[:cpus])
    try:
        yield
    finally:
        for thread in (_threads() - threads) | {0}:
            os.sched_setaffinity(thread, allowed)


def in_another_thread(work: Callable[[], None]) -> None:
    """Call `work` in a thread, and wait until the system has removed this thread, for at most THREAD_END_SECONDS."""
    before = _threads()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    deadline = time.monotonic() + THREAD_END_SECONDS
    while _threads() - before and time.monotonic() < deadline:
        time.sleep(0.001)


def _threads() -> set[int]:
    """Return the ids of this process's threads; none on systems without /proc."""
    return {int(thread.name) for thread in TASKS.iterdir()} if TASKS.exists() else set()
