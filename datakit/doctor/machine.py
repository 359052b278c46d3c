"""Checks this machine before a run: libraries, temporary disk, memory for tasks, open-file limit, the kernel's count of
written bytes, and the cache of compiled kernels. Where possible, a check tries the operation itself instead of
guessing. `examine` decides which checks run, including those of the root (`root.py`) and the cluster (`cluster.py`).
All checks together take one second (three seconds with a cluster, twenty if the cluster refuses the connection).
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from datakit.doctor.cluster import check_cluster
from datakit.doctor.finding import Finding, State, disk_usage, nearest_existing
from datakit.doctor.root import check_local_root, check_store
from datakit.engine.task import Phase
from datakit.engine.versions import LIBRARIES, versions
from datakit.engine.worker.disk_use import written_bytes
from datakit.engine.worker.memory import MEMORY_SHARE, memory_limit, usable_memory
from datakit.storage import urls

OPEN_FILES = 1024  # a lower soft limit is a problem; most Linux systems have this one by default


def examine(root: str | None = None, ray: str | None = None) -> Iterator[Finding]:
    """Yield findings on this machine and, if given, on `root` and the cluster at the address `ray`. A problem may be
    the cause of those that follow it.
    """
    for check in (libraries, temporary_disk, memory, open_files, bytes_written, kernel_cache):
        yield check()
    if root is not None:
        root = urls.absolute(root)
        yield from check_local_root(root) if urls.is_local(root) else check_store(root)
    if ray is not None:
        yield from check_cluster(ray, root)


def libraries() -> Finding:
    """Check that the libraries that determine the bytes of the output are installed, and list their versions."""
    found = versions()
    missing = [name for name in LIBRARIES if name not in found]
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    if missing:
        return Finding("libraries", State.PROBLEM, f"{', '.join(missing)} not installed", "pip install datakit")
    return Finding("libraries", State.OK, text)


def temporary_disk() -> Finding:
    """Check the disk that holds scratch files. If TMPDIR is not writable, Python silently uses another directory."""
    check, remedy = "temporary disk", "free some space, or set TMPDIR to a larger disk"
    wanted = os.environ.get("TMPDIR")
    if wanted and os.path.isdir(wanted) and (found := disk_usage(check, wanted, remedy)).state is State.PROBLEM:
        return found
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding(check, State.PROBLEM, error.strerror or str(error), remedy)
    if wanted and not os.path.samefile(nearest_existing(Path(wanted)), used):
        text = f"TMPDIR is {wanted}, which cannot be written, so {used} would be used"
        return Finding(check, State.PROBLEM, text, "set TMPDIR to a writable directory")
    return disk_usage(check, used, remedy)


def memory() -> Finding:
    """Check that the memory (of the machine or cgroup) suffices for one task per CPU, each with the default budget."""
    budget = next(field.default for field in fields(Phase) if field.name == "memory_bytes")
    assert isinstance(budget, int)
    slots, usable = len(os.sched_getaffinity(0)), usable_memory()
    text = (
        f"{memory_limit() / 1e9:.1f} GB for this process (machine and cgroup), {MEMORY_SHARE:.0%} of it for tasks: "
        f"{usable / 1e9:.1f} GB for {slots} CPUs; a task may use {budget / 1e9:.1f} GB or more"
    )
    if usable < budget:
        return Finding("memory", State.PROBLEM, text, "raise the container's memory limit or use a larger machine")
    if usable < slots * budget:
        return Finding("memory", State.WARNING, text, "not all CPUs can be used at once; more memory would help")
    return Finding("memory", State.OK, text)


def open_files() -> Finding:
    """Check how many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        return Finding("open files", State.PROBLEM, f"at most {soft} (hard limit {hard})", f"ulimit -n {OPEN_FILES}")
    return Finding("open files", State.OK, f"at most {soft}")


def bytes_written() -> Finding:
    """Check that the kernel counts what a process writes; the limits on disk use need this count."""
    before = written_bytes("self")
    Path(os.devnull).write_bytes(b"0")
    if written_bytes("self") > before:
        return Finding("bytes written", State.OK, "counted by the kernel")
    text = "the kernel does not count them (/proc/self/io), so limits.max_expansion does not stop a task while it runs"
    return Finding("bytes written", State.WARNING, text, "use a kernel with CONFIG_TASK_IO_ACCOUNTING")


def kernel_cache() -> Finding:
    """Check that compiled kernels can be cached. If not, each fork server spends seconds compiling them, or fails."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "numba"
    package = Path(__file__).parents[1]
    folders = [Path(chosen)] if chosen else [package / "dedup" / "__pycache__", home]
    for folder in folders:
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=nearest_existing(folder)):
            return Finding("compiled kernels", State.OK, f"cached in {folder}")
    text = f"cannot be cached: {', '.join(map(str, folders))} not writable"
    return Finding("compiled kernels", State.PROBLEM, text, "set NUMBA_CACHE_DIR to a writable directory")
