"""Measure the overhead of the engine: a real driver, real children, tasks that only sleep or write a small file.

    python -m benchmarks.engine_overhead [--workers 4] [--tiny 100000] [--s3 0.03] [--ray]

Prints a table. First: slot time beyond the work for 5,000 tasks of 10 ms, batched and with one child each. Then, for
many tiny tasks that write a file each: the driver's memory, its CPU per task, and the time to recognize the finished
step with and without its manifest. Takes a minute or two. `--s3` repeats the second part on an object store (moto over
HTTP) that delays each read by that many seconds. `--ray` runs everything on a private Ray cluster, metrics included.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from datakit.engine.executor import Executor
from datakit.engine.ledger.ledger import AttemptLine, LedgerWriter, UnknownLine, driver_name, read_ledger
from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.observer import Observer, ObserverGroup
from datakit.engine.observe.progress import LineView
from datakit.engine.ray_backend.metrics import RayMetrics
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Plan
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.storage import removal, urls
from tests.support.engine import poison_tasks
from tests.support.faults.faulty_proxy import faulty_proxy
from tests.support.s3 import s3_root

PROBE = """
import sys, time
from datakit.engine.scheduler.driver import run_step
from datakit.engine.observe.observer import Observer
from tests import poison_tasks
started = time.monotonic()
step = poison_tasks.poison_step(sys.argv[1])
def refuse(): raise SystemExit("a worker was asked for")
manifest = run_step(step, poison_tasks.files(int(sys.argv[2])), refuse, Observer())
print(time.monotonic() - started, len(manifest.partitions))
"""


def timed(plan: Plan, directory: Path, workers: int, ray: bool) -> float:
    """Seconds of a run with all displays a user has; the cluster is started before."""
    executor = _on_ray(directory, workers) if ray else LocalExecutor(workers)
    watches: list[Observer] = [LineView(open("/dev/null", "w")), EventLog(str(directory / "runs"))]  # noqa: SIM115
    observer = ObserverGroup([*watches, RayMetrics()] if ray else watches)
    executors: list[Executor] = [executor]
    try:
        started = time.monotonic()
        run_step(poison_tasks.poison_step(str(directory)), plan, executors.pop, observer)
        return time.monotonic() - started
    finally:
        executor.close()


def _on_ray(directory: Path, workers: int) -> Executor:
    from datakit.engine.ray_backend.executor import RayExecutor

    return RayExecutor("local", str(directory), workers)


def slot_time(tasks: int, seconds: float, workers: int, batched: bool, ray: bool) -> tuple[float, float]:
    """(slot milliseconds per task beyond its work, by the wall clock; the same by the ledger)."""
    directory = Path(tempfile.mkdtemp(prefix="datakit-overhead-"))
    try:
        plan = poison_tasks.naps(tasks, seconds) if batched else poison_tasks.naps(tasks, seconds, tiny=False)
        wall = timed(plan, directory, workers, ray)
        lines = [line for line in read_ledger(str(directory)) if isinstance(line, AttemptLine)]
        beside = sum(line.seconds - line.work_seconds for line in lines)
        return 1000 * (wall * workers / tasks - seconds), 1000 * beside / tasks
    finally:
        shutil.rmtree(directory)


def many(tasks: int, workers: int, latency: float | None, ray: bool) -> None:
    """Measure the driver's own cost with many tasks, in a process of its own so that the peak is its own."""
    directory = Path(tempfile.mkdtemp(prefix="datakit-many-"))
    try:
        before = resource.getrusage(resource.RUSAGE_SELF)
        wall = timed(poison_tasks.files(tasks), directory, workers, ray)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"{tasks:,} tasks that write a file each: {wall:.0f} s, {1000 * wall * workers / tasks:.2f} ms of slot each"
        )
        print(f"  driver: {1000 * cpu / tasks:.3f} ms of CPU a task, peak {after.ru_maxrss / 1024:.0f} MiB")
        print(f"  the step is done: seen in {_probe(directory, tasks):.2f} s")
        (directory / "manifest.json").unlink()
        print(f"  all tasks are done, no manifest: in {_probe(directory, tasks):.2f} s")
        if latency is not None:
            on_s3(directory, tasks, latency)
    finally:
        shutil.rmtree(directory)


def on_s3(directory: Path, tasks: int, latency: float) -> None:
    """Copy the step to an object store: its files, and its ledger in segments as a driver writes them there."""
    lines = [line for line in read_ledger(str(directory)) if not isinstance(line, UnknownLine)]
    shutil.rmtree(directory / "ledger")
    with s3_root(latency=latency, holding=str(directory)) as root:
        ledger = LedgerWriter(root, driver_name())
        for line in lines:
            ledger.append(line)
        ledger.close()
        segments = len(urls.listing(urls.join(root, "ledger")))
        print(f"on S3, {1000 * latency:.0f} ms before each answer to a read; {segments} segments of the ledger")
        print(f"  the step is done: seen in {_seen(root, tasks, lambda: None)}")
        forget = urls.join(root, "manifest.json")
        print(f"  all tasks are done, no manifest: in {_seen(root, tasks, lambda: removal.remove(forget))}")


def _seen(root: str, tasks: int, before: Callable[[], None]) -> str:
    """Time it without the request-counting proxy, which would add latency."""
    before()
    seconds = _probe(root, tasks)
    before()
    with faulty_proxy(0.0) as proxy:
        _probe(root, tasks)
    return f"{seconds:.2f} s, {proxy.requests.total()} requests {dict(proxy.requests)}"


def _probe(directory: Path | str, tasks: int) -> float:
    command = [sys.executable, "-c", PROBE, str(directory), str(tasks)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, partitions = done.stdout.split()
    assert int(partitions) == tasks
    return float(seconds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=psutil.cpu_count() or 1)
    parser.add_argument("--tiny", type=int, default=100_000)
    parser.add_argument("--only-many", action="store_true", help="run only the part with many tasks")
    parser.add_argument("--ray", action="store_true", help="run on a private Ray cluster")
    parser.add_argument("--s3", type=float, metavar="SECONDS", help="also run on an object store with this latency")
    options = parser.parse_args()
    if not options.only_many:
        for batched in (True, False):
            wall, ledger = slot_time(5000, 0.010, options.workers, batched, options.ray)
            how = "many to a child" if batched else "a child each"
            print(f"5,000 tasks of 10 ms, {how}: {wall:.2f} ms of slot time beside the work each ({ledger:.2f} in it)")
        command = [sys.executable, "-m", "benchmarks.engine_overhead", "--only-many"]
        command += ["--s3", str(options.s3)] if options.s3 is not None else []
        command += ["--ray"] if options.ray else []
        subprocess.run([*command, "--workers", str(options.workers), "--tiny", str(options.tiny)], check=True)
        return
    many(options.tiny, options.workers, options.s3, options.ray)


if __name__ == "__main__":
    main()
