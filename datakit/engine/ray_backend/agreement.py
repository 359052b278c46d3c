"""What every node of a cluster must have in common with the driver: the root, and the versions that make the bytes.

The driver leaves a nonce under `<root>/.probe/`; a node that cannot read it works on another disk, and what it would
write there would be lost to everybody else. Versions are compared because output bytes are a function of them. Checked
on all nodes before the first task, and once more in each worker process, since nodes may join later: one small read.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from datakit.engine.versions import comparable_versions
from datakit.errors import InputError, NotFoundError, RootError, StorageError, UsageError
from datakit.storage import atomic, stale_files, urls

FOLDER = ".probe"
AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN = secrets.token_hex(32)  # one a process: Ray keeps the first that it sees
CONNECT_SECONDS = 5.0
ADDRESS_VARIABLE, ADDRESS_FILE = "RAY_ADDRESS", "/tmp/ray/ray_current_cluster"
AUTO_REMEDY = (
    "start a cluster (`ray start --head`), or name one: --ray HOST:PORT; "
    f"`unset {ADDRESS_VARIABLE}`, or `ray stop`, makes this machine forget one that is gone"
)
READ_TRIES, READ_WAIT_SECONDS = 4, 0.5  # a network mount may see a new file a little later


@dataclass(frozen=True)
class Expected:
    """What a node must find: the file `nonce_url` below `root` with the content `nonce`, and these versions."""

    root: str
    nonce_url: str
    nonce: str
    versions: dict[str, str]


@dataclass(frozen=True)
class NodeReport:
    """What a node found. `nonce` is None where the file is not there; `trouble` says why it could not be read."""

    host: str
    pid: int
    nonce: str | None = None
    trouble: str = ""
    versions: dict[str, str] = field(default_factory=dict)


@contextmanager
def nonce_below(root: str) -> Iterator[Expected]:
    """Leaves a nonce below `root` while the block runs. Raises RootError where the root cannot be written."""
    folder = urls.join(root, FOLDER)
    nonce, url = uuid.uuid4().hex, urls.join(folder, atomic.temporary_name("nonce"))
    atomic.commit_bytes(nonce.encode(), url)
    try:
        yield Expected(root, url, nonce, comparable_versions())
    finally:
        urls.remove(url)
        if urls.is_local(folder):
            _remove_if_empty(Path(urls.local_path(folder)))


def remove_dead_nonces(root: str) -> None:
    """Remove what drivers that were killed left below a local root; a run that finds all done would ask nobody."""
    folder = urls.join(root, FOLDER)
    if urls.is_local(root):
        with suppress(PermissionError):  # of those who may only read, nobody expects it
            if stale_files.remove_dead_files(folder):
                _remove_if_empty(Path(urls.local_path(folder)))


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except (
        OSError
    ) as error:  # another driver's nonce may be there, or come at this moment; or it was the first to leave
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


def assert_reachable(address: str) -> None:
    """Raises UsageError at once. Ray itself takes 163 s to see that nobody answers, and then ends the process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is no address of a Ray cluster; use local, auto or host:port")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UsageError(f"no Ray cluster answers at {address} ({error}); `ray status` shows the address") from error


def auto_address() -> str:
    """What "auto" means: RAY_ADDRESS, else what the last `ray start` on this machine left.

    Either may name a cluster that is long gone, so it is tried. Raises UsageError; AUTO_REMEDY is what to do then.
    """
    address, origin = os.environ.get(ADDRESS_VARIABLE, ""), ADDRESS_VARIABLE
    if not address:
        path, origin = Path(ADDRESS_FILE), ADDRESS_FILE
        address = path.read_text().strip() if path.exists() else ""
    if not address:
        raise UsageError(f"auto finds no Ray cluster: {ADDRESS_VARIABLE} is not set and {ADDRESS_FILE} is not there")
    try:
        assert_reachable(address)
    except UsageError as error:
        raise UsageError(f"auto means {address} (from {origin}): {error}") from error
    return address


@contextmanager
def private_token() -> Iterator[None]:
    """A token for a cluster of this process alone, in the environment while the block runs, and in no file.

    Ray turns token authentication on by itself for such a cluster, and would otherwise leave a token in the home
    directory, which changes how clusters that are started later behave. What the user has chosen stays.
    """
    before = {name: os.environ.get(name) for name in AUTHENTICATION}
    if not any(before.values()):
        os.environ["RAY_AUTH_TOKEN"] = _TOKEN
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def examine(expected: Expected) -> NodeReport:
    """Look around on this node."""
    host, pid, nonce, trouble = os.uname().nodename, os.getpid(), None, ""
    for wait in range(READ_TRIES):
        time.sleep(READ_WAIT_SECONDS if wait else 0)
        try:
            nonce = urls.read_bytes(expected.nonce_url).decode(errors="replace")
            break
        except NotFoundError:
            trouble = "a file that the driver wrote there is not there"
        except (StorageError, InputError) as error:
            trouble = str(error)
    return NodeReport(host, pid, nonce, trouble if nonce is None else "", comparable_versions())


def require(expected: Expected, report: NodeReport, node: str) -> None:
    """Raises RootError or InputError, naming the node, where it does not fit to the driver."""
    if report.nonce != expected.nonce:
        trouble = report.trouble or "the file that the driver wrote there has another content"
        raise RootError(
            f"node {node} does not share the root {expected.root}: {trouble}; the root must be the same place for all "
            "nodes of the cluster: an object store (s3://..., gs://...) or a network mount at the same path"
        )
    differences = [
        f"{library} is {report.versions.get(library, 'not installed')}, the driver has {version}"
        for library, version in expected.versions.items()
        if report.versions.get(library) != version
    ]
    if differences:
        raise InputError(
            f"node {node} would write other bytes than the driver expects: {'; '.join(differences)}; install the same "
            "versions on all nodes"
        )
