"""What fails in practice, looked at before a run: disks, memory, limits, libraries, the root, the clock, the cluster.

Each check answers one finding: ok, a warning (the run goes on, but slower or nearer to a limit) or a problem (it would
fail), with the next step to take. Nothing is guessed where it can be tried: the root is written, read and deleted for
real, a store's conditional PUT is tried twice, the cluster is joined. Takes a second; three with a
cluster, twenty where it refuses us.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

from datakit.doctor.finding import GIB, Finding, State, attempt, disk, standing
from datakit.doctor.root import local_root, store
from datakit.engine.ray_backend import agreement
from datakit.engine.task import Phase
from datakit.engine.versions import LIBRARIES, versions
from datakit.engine.worker.memory_limits import MEMORY_SHARE, memory_limit, usable_memory
from datakit.errors import DatakitError
from datakit.storage import stale_files, urls

OPEN_FILES = 1024
REFUSED_TOKEN = "InvalidAuthToken"  # Ray prints it, again and again, and then says only that it failed to connect
OTHER_VERSION = "Version mismatch"


def examine(root: str | None = None, ray: str | None = None) -> Iterator[Finding]:
    """Every check that applies, in an order in which the first problem explains the others."""
    yield libraries()
    yield temporary_disk()
    yield memory()
    yield open_files()
    yield kernels_cache()
    if root is not None:
        root = urls.absolute(root)
        yield from local_root(root) if urls.is_local(root) else store(root)
    if ray is not None:
        yield from _ray(ray, root)


def libraries() -> Finding:
    """The versions that decide what bytes come out."""
    found = versions()
    missing = [name for name in LIBRARIES if name not in found]
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    if missing:
        return Finding("libraries", State.PROBLEM, f"{', '.join(missing)} not installed", "pip install datakit")
    return Finding("libraries", State.OK, text)


def temporary_disk() -> Finding:
    """Where attempts keep scratch. Python takes another place, without a word, where TMPDIR cannot be written."""
    check, remedy = "temporary disk", "free some, or set TMPDIR to a larger disk"
    wanted = os.environ.get("TMPDIR")
    if wanted and os.path.isdir(wanted) and (found := disk(check, wanted, remedy)).state is State.PROBLEM:
        return found
    try:
        taken = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding(check, State.PROBLEM, error.strerror or str(error), remedy)
    if wanted and not os.path.samefile(standing(Path(wanted)), taken):
        text = f"TMPDIR is {wanted}, which cannot be written: {taken} would be taken"
        return Finding(check, State.PROBLEM, text, "set TMPDIR to a directory that may be written")
    return disk(check, taken, remedy)


def memory() -> Finding:
    """Whether the machine, or the cgroup, has room for one default task on each CPU."""
    budget = next(field.default for field in fields(Phase) if field.name == "memory_bytes")
    assert isinstance(budget, int)
    slots, usable = len(os.sched_getaffinity(0)), usable_memory()
    text = (
        f"{memory_limit() / GIB:.1f} GiB for this process (machine and cgroup), {MEMORY_SHARE:.0%} of it for tasks: "
        f"{usable / GIB:.1f} GiB for {slots} CPUs; a task may take {budget / GIB:.1f} GiB and more"
    )
    if usable < budget:
        return Finding(
            "memory", State.PROBLEM, text, "raise the memory limit of the container or take a larger machine"
        )
    if usable < slots * budget:
        return Finding("memory", State.WARNING, text, "not all CPUs can be in use at once; give more memory for speed")
    return Finding("memory", State.OK, text)


def open_files() -> Finding:
    """How many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        return Finding("open files", State.PROBLEM, f"at most {soft} (hard limit {hard})", f"ulimit -n {OPEN_FILES}")
    return Finding("open files", State.OK, f"at most {soft}")


def kernels_cache() -> Finding:
    """Whether compiled kernels can be kept: without, each fork server compiles for some seconds, or cannot."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "numba"
    package = Path(__file__).parents[1]
    places = [Path(chosen)] if chosen else [package / "dedup" / "__pycache__", home]
    for place in places:
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=standing(place)):
            return Finding("compiled kernels", State.OK, f"kept in {place}")
    text = f"cannot be kept: {', '.join(map(str, places))} may not be written"
    return Finding("compiled kernels", State.PROBLEM, text, "set NUMBA_CACHE_DIR to a directory that may be written")


def _ray(address: str, root: str | None) -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        yield Finding("ray", State.OK, f"ray {version('ray')}")
    except PackageNotFoundError:
        yield Finding("ray", State.PROBLEM, "ray is not installed", "pip install 'datakit[ray]'")
        return
    yield _authentication()
    if address == "auto":
        yield (found := _stale_address())
        if found.state is State.PROBLEM:
            return
    with tempfile.TemporaryDirectory() as folder:
        remedy = "`ray status` on the head node; see docs/operations.md"
        shared = root or folder
        if root is None and address != "local":
            yield attempt("cluster", f"{address} answers", remedy, lambda: _reach(address))
            text = "not joined: whether all nodes share a root and our versions is not known"
            yield Finding("cluster", State.WARNING, text, "give --root, too")
            return
        yield _cluster(address, shared)
    stale_files.remove_dead_scratch()


def _reach(address: str) -> None:
    if address != "auto":
        agreement.assert_reachable(address)


def _cluster(address: str, root: str) -> Finding:
    """Joins for real; what Ray only prints is told, too."""
    from datakit.engine.ray_backend.executor import RayExecutor

    remedy = "`ray status` on the head node; see docs/operations.md"
    with _overheard() as printed:
        try:
            RayExecutor(address, root).close()
        except (DatakitError, OSError) as error:
            text, cause = str(error), " ".join(str(error.__cause__).split())
            if REFUSED_TOKEN in printed():
                text = f"{address} asks for a token, and ours is missing or another one"
                remedy = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what the cluster was started with"
            elif OTHER_VERSION in cause:
                text, remedy = f"{address}: {cause}", "install the same versions of Ray and Python on all machines"
            return Finding("cluster", State.PROBLEM, text, remedy)
    return Finding("cluster", State.OK, f"{address}: joined; every node shares the root and has the same versions")


@contextlib.contextmanager
def _overheard() -> Iterator[Callable[[], str]]:
    """What libraries print on standard error meanwhile is kept, and told by the function that this yields."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _authentication() -> Finding:
    """What Ray will do about tokens, and whether it can."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    token = "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else str(file) if file.exists() else None
    text = f"RAY_AUTH_MODE is {mode or 'not set'}, token: {token or 'none'}"
    if mode == "token" and token is None:
        return Finding("ray token", State.PROBLEM, text, "set RAY_AUTH_TOKEN to the cluster's token")
    if mode != "token" and token is not None:
        remedy = (
            "set RAY_AUTH_MODE=token if the cluster asks for it; else remove the token: a mismatch ends in a timeout"
        )
        return Finding("ray token", State.WARNING, text, remedy)
    return Finding("ray token", State.OK, text)


def _stale_address() -> Finding:
    """`auto` follows RAY_ADDRESS or a file that the last `ray start` left, whose cluster may be long gone."""
    try:
        return Finding("ray address", State.OK, f"auto means {agreement.auto_address()}, which answers")
    except DatakitError as error:
        return Finding("ray address", State.PROBLEM, str(error), agreement.AUTO_REMEDY)
