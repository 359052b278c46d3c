"""What fails in practice, looked at before a run: disks, memory, limits, libraries, the root, the clock, the cluster.

Each check answers one finding: ok, a warning (the run goes on, but slower or nearer to a limit) or a problem (it would
fail), with the next step to take. Nothing is guessed where it can be tried: the root is written, read and deleted for
real, a store's conditional PUT is tried twice, the cluster is joined. Takes a second; ten with a cluster.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path

from datakit.engine import cluster, leftovers
from datakit.engine.limits import MEMORY_SHARE, memory_limit, usable_memory
from datakit.engine.task import Phase
from datakit.errors import DatakitError, DivergentOutputError
from datakit.storage import atomic, urls

FULL, NEARLY_FULL = 0.95, 0.90  # Ray refuses work on a disk above the first
SPARE_BYTES = 2 << 30
OPEN_FILES = 1024
SKEW_SECONDS, REFUSED_SECONDS = 60.0, 600.0  # S3 refuses requests that are 15 minutes off
CONNECT_SECONDS = 5.0
GIB = 1 << 30
CLOCKS = {"s3": "https://s3.amazonaws.com", "gs": "https://storage.googleapis.com", "hf": "https://huggingface.co"}


class State(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do where that is not well."""

    check: str
    state: State
    message: str
    next_step: str = ""


def examine(root: str | None = None, ray: str | None = None) -> Iterator[Finding]:
    """Every check that applies, in an order in which the first problem explains the others."""
    yield libraries()
    yield disk("temporary disk", tempfile.gettempdir(), "free some, or set TMPDIR to a larger disk")
    yield memory()
    yield open_files()
    yield kernels_cache()
    if root is not None:
        root = urls.absolute(root)
        yield from _local_root(root) if urls.is_local(root) else _store(root)
    if ray is not None:
        yield from _ray(ray, root)


def libraries() -> Finding:
    """The versions that decide what bytes come out."""
    found = cluster.versions()
    missing = [name for name in cluster.LIBRARIES if name not in found]
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    if missing:
        return Finding("libraries", State.PROBLEM, f"{', '.join(missing)} not installed", "pip install datakit")
    return Finding("libraries", State.OK, text)


def disk(check: str, path: str, remedy: str) -> Finding:
    """How full the disk of a path is."""
    usage = shutil.disk_usage(path)
    share = 1 - usage.free / usage.total
    text = f"{path}: {share:.0%} full, {usage.free / GIB:.1f} GiB free"
    if share >= FULL or usage.free < SPARE_BYTES:
        return Finding(check, State.PROBLEM, text, remedy)
    return Finding(check, State.WARNING, text, remedy) if share >= NEARLY_FULL else Finding(check, State.OK, text)


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
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=_standing(place)):
            return Finding("compiled kernels", State.OK, f"kept in {place}")
    text = f"cannot be kept: {', '.join(map(str, places))} may not be written"
    return Finding("compiled kernels", State.PROBLEM, text, "set NUMBA_CACHE_DIR to a directory that may be written")


def _standing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(place for place in (path, *path.parents) if place.exists())


def _attempt(check: str, message: str, remedy: str, action: Callable[[], object]) -> Finding:
    """ok with the message, or the problem that the action raises."""
    try:
        action()
    except (DatakitError, OSError) as error:
        return Finding(check, State.PROBLEM, str(error), remedy)
    return Finding(check, State.OK, message)


def _local_root(root: str) -> Iterator[Finding]:
    place = _standing(Path(root))
    remedy = "choose another --root, or give yourself the right to write there"
    if not place.is_dir():
        yield Finding("root", State.PROBLEM, f"{place} is not a directory", remedy)
        return
    yield _attempt("root", f"{place}: written, read and deleted", remedy, lambda: _write_and_read(str(place)))
    yield disk("root's disk", str(place), "free some, or choose another --root; `datakit gc` lists what can go")


def _store(root: str) -> Iterator[Finding]:
    remedy = "check AWS_ENDPOINT_URL, the credentials and the bucket's name, and that they allow get, put, list, delete"
    found = _attempt(
        "root", f"{root}: put, read, listed and deleted", remedy, lambda: _write_and_read(f"{root}/.probe")
    )
    yield found
    if found.state is State.OK:
        yield _conditional(f"{root}/.probe")
    yield _clock(urls.protocol(root))


def _write_and_read(folder: str) -> None:
    url, data = urls.join(folder, atomic.temporary_name("doctor")), uuid.uuid4().bytes
    atomic.commit_bytes(data, url)
    try:
        if urls.read_bytes(url) != data:
            raise OSError(f"{url} reads as something else than what was written there")
        urls.listing(folder)
    finally:
        urls.remove(url)


def _conditional(folder: str) -> Finding:
    """The second of two different files under one name must be refused."""
    url = urls.join(folder, atomic.temporary_name("doctor"))
    try:
        atomic.commit_bytes(b"first", url)
        atomic.commit_bytes(b"second", url)
    except DivergentOutputError:
        return Finding("conditional put", State.OK, "a name that is taken is refused")
    except DatakitError as error:
        return Finding("conditional put", State.PROBLEM, str(error), "the store must allow If-None-Match on PUT")
    finally:
        urls.remove(url)
    text = "the store overwrites what it should refuse (If-None-Match is ignored): two drivers could harm each other"
    return Finding("conditional put", State.PROBLEM, text, "use a store, or a version of it, with conditional writes")


def _clock(protocol: str) -> Finding:
    """This machine's clock against the store's `Date`."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") if protocol == "s3" else None
    endpoint = endpoint or CLOCKS.get(protocol)
    if endpoint is None:
        return Finding("clock", State.WARNING, f"not compared: no address of {protocol}:// is known", "compare by hand")
    try:
        date = _date_of(endpoint)
    except OSError as error:
        return Finding("clock", State.WARNING, f"not compared: {endpoint} does not answer ({error})", "compare by hand")
    if date is None:
        return Finding("clock", State.WARNING, f"not compared: {endpoint} sends no Date", "compare by hand")
    skew = time.time() - parsedate_to_datetime(date).timestamp()
    text, remedy = (
        f"{skew:+.0f} s against {endpoint}",
        "set the clock (chrony, ntpd): stores refuse requests 15 min off",
    )
    state = State.PROBLEM if abs(skew) > REFUSED_SECONDS else State.WARNING if abs(skew) > SKEW_SECONDS else State.OK
    return Finding("clock", state, text, remedy if state is not State.OK else "")


def _date_of(endpoint: str) -> str | None:
    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as answer:
            return answer.headers["Date"]
    except urllib.error.HTTPError as error:  # an answer, too
        return error.headers["Date"]


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
            yield _attempt("cluster", f"{address} answers", remedy, lambda: _reach(address))
            text = "not joined: whether all nodes share a root and our versions is not known"
            yield Finding("cluster", State.WARNING, text, "give --root, too")
            return
        message = f"{address}: joined; every node shares the root and has the same versions"
        yield _attempt("cluster", message, remedy, lambda: _join(address, shared))
    leftovers.remove_dead_scratch()


def _reach(address: str) -> None:
    if address != "auto":
        cluster.assert_reachable(address)


def _join(address: str, root: str) -> None:
    from datakit.engine.ray import RayExecutor

    RayExecutor(address, root).close()


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
        return Finding("ray address", State.OK, f"auto means {cluster.auto_address()}, which answers")
    except DatakitError as error:
        return Finding("ray address", State.PROBLEM, str(error), cluster.AUTO_REMEDY)
