"""Checks that all nodes have access to the driver's root and run the same library versions and datakit files as the
driver, and that a cluster answers; resolves the address `auto`.

The driver writes a nonce under `<root>/.probe/`. A node that cannot read the nonce does not share the root, and its
output would be lost. Versions are compared because output bytes depend on them. The files of datakit are compared
because a checkout on a node's import path hides the installed version. All nodes are checked before the first task, and
each worker process is checked before its own first task, since nodes may join later. The nonce is the only file that a
check reads from the root.
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
from dataclasses import dataclass
from pathlib import Path

from datakit.engine.interpreter import Installation, installation_at_start
from datakit.engine.ray_backend.node_environment import how_to_send, withheld_variables
from datakit.engine.versions import comparable_versions
from datakit.errors import InputError, NotFoundError, RootError, StorageError, UsageError
from datakit.storage import atomic, removal, stale_files, urls
from datakit.storage.io_errors import unless_read_only

FOLDER = ".probe"
COMPILING = "compiling"  # the file that announces compilation is named with this prefix and the nonce file's name
AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN = secrets.token_hex(32)  # one token for the whole process, because Ray keeps the first token it sees
CONNECT_SECONDS = 5.0  # limit for opening a TCP connection, which takes milliseconds if the host is reachable
ADDRESS_VARIABLE, ADDRESS_FILE = "RAY_ADDRESS", "/tmp/ray/ray_current_cluster"  # Ray's own `auto` reads both
AUTO_REMEDY = (
    "start a cluster (`ray start --head`) or name one with --ray HOST:PORT; "
    f"`unset {ADDRESS_VARIABLE}` or `ray stop` removes the address of a dead cluster"
)
READ_TRIES, READ_WAIT_SECONDS = 4, 0.5  # a new file may take a moment to appear on a network mount


@dataclass(frozen=True)
class Expected:
    """The values that nodes must match: `nonce` (the content of the file at `nonce_url`, which is below `root`),
    `versions`, and the digest (but not the folder) of `installation`.

    withheld: environment variables of the driver that concern stores and are not sent to the nodes; messages name them.
    """

    root: str
    nonce_url: str
    nonce: str
    versions: dict[str, str]
    installation: Installation
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeReport:
    """The result of `examine` on a node. If no nonce could be read, `nonce` is None and `trouble` is the reason."""

    host: str
    pid: int
    versions: dict[str, str]
    installation: Installation
    nonce: str | None = None
    trouble: str = ""


@contextmanager
def nonce_below(root: str) -> Iterator[Expected]:
    """Keep a new nonce file below `root` during the `with` block. Raises RootError if the root is not writable."""
    folder, nonce = urls.join(root, FOLDER), uuid.uuid4().hex
    try:
        with atomic.temporary_file(folder, "nonce", nonce.encode()) as url:
            installation = installation_at_start()
            expected = Expected(root, url, nonce, comparable_versions(), installation, withheld_variables())
            try:
                yield expected
            finally:
                removal.remove(_announcement(expected.nonce_url))
    finally:
        if urls.is_local(folder):
            _remove_if_empty(Path(urls.local_path(folder)))


def _announcement(nonce_url: str) -> str:
    """Return the URL of the file by which a node announces that it is compiling kernels."""
    return urls.join(urls.parent(nonce_url), COMPILING + urls.name(nonce_url))


def announce_compilation(expected: Expected) -> None:
    """Tell the driver that this node is compiling kernels. An unwritable root is left for the tasks to report."""
    with suppress(StorageError, InputError):
        atomic.replace_bytes(b"", _announcement(expected.nonce_url))


def take_announcement(expected: Expected) -> bool:
    """Return True if, since the last call, a node has announced that it is compiling kernels."""
    url, found = _announcement(expected.nonce_url), False
    with suppress(StorageError, InputError):
        found = urls.exists(url)
        if found:
            removal.remove(url)
    return found


def remove_dead_nonces(root: str) -> None:
    """Remove the files that dead drivers left in the folder `.probe` of a local root. Every run does this, even without
    a cluster.
    """
    folder = Path(urls.local_path(urls.join(root, FOLDER)))
    if urls.is_local(root) and folder.is_dir():
        with unless_read_only():
            removed = stale_files.remove_dead_files(str(folder))
            for path in folder.glob(f"{COMPILING}*"):
                if not path.with_name(path.name.removeprefix(COMPILING)).exists():
                    path.unlink(missing_ok=True)
                    removed.append(path)
            if removed:
                _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:  # another driver's nonce is in the folder, or another driver has just removed the folder
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


def assert_reachable(address: str) -> None:
    """Raise UsageError if `address` is malformed or nothing is listening there. Without this check, Ray would end the
    process, but only after 163 s.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is not the address of a Ray cluster; use local, auto or host:port")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UsageError(f"no Ray cluster answers at {address} ({error}); `ray status` shows the address") from error


def auto_address() -> str:
    """Return the address for "auto": the value of RAY_ADDRESS, or else the address that the last `ray start` left on
    this machine. Either may be the address of a dead cluster, so the address is checked. Raises UsageError if no
    running cluster is found; the message names no remedy, because callers add AUTO_REMEDY.
    """
    address, origin = os.environ.get(ADDRESS_VARIABLE, ""), ADDRESS_VARIABLE
    if not address:
        path, origin = Path(ADDRESS_FILE), ADDRESS_FILE
        address = path.read_text().strip() if path.exists() else ""
    if not address:
        raise UsageError(f"auto finds no Ray cluster: {ADDRESS_VARIABLE} is not set and {ADDRESS_FILE} does not exist")
    try:
        assert_reachable(address)
    except UsageError as error:
        raise UsageError(f"auto resolves to {address} (from {origin}): {error}") from error
    return address


@contextmanager
def private_token() -> Iterator[None]:
    """During the `with` block, set RAY_AUTH_TOKEN to an authentication token for this process's private cluster. Ray
    automatically enables token authentication for such a cluster. Without this token, Ray would store a token in the
    home directory, which would change the behavior of clusters started later. A token set by the user is kept.
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
    """Return a report on this node: the nonce that it reads, its library versions, and its datakit files."""
    host, pid, nonce, trouble = os.uname().nodename, os.getpid(), None, ""
    for attempt in range(READ_TRIES):
        time.sleep(READ_WAIT_SECONDS if attempt else 0)
        try:
            nonce = urls.read_bytes(expected.nonce_url).decode(errors="replace")
            break
        except NotFoundError:
            trouble = "a file that the driver wrote is missing there"
        except (StorageError, InputError) as error:
            trouble = str(error)
    trouble = trouble if nonce is None else ""
    return NodeReport(host, pid, comparable_versions(), installation_at_start(), nonce, trouble)


def require(expected: Expected, report: NodeReport, node: str) -> None:
    """Raise RootError or InputError if the node does not match the driver; the message names the node."""
    if report.nonce != expected.nonce:
        trouble = report.trouble or "the file that the driver wrote has different content there"
        remedy = (
            "the root must be the same place for all nodes of the cluster: an object store (s3://..., gs://...) or a "
            "network mount at the same path"
        )
        if report.trouble and expected.withheld and not urls.is_local(expected.root):
            remedy = f"credentials of the driver's machine were not sent to the node; {how_to_send(expected.withheld)}"
        raise RootError(f"node {node} does not share the root {expected.root}: {trouble}; {remedy}")
    differences = [
        f"{library} is {report.versions.get(library, 'not installed')}, but the driver has {version}"
        for library, version in expected.versions.items()
        if report.versions.get(library) != version
    ]
    if differences:
        raise InputError(
            f"node {node} could write bytes that differ from the driver's: {'; '.join(differences)}; install the "
            "same versions on all nodes"
        )
    found, ours = report.installation, expected.installation
    if found.digest != ours.digest:
        raise InputError(
            f"node {node} runs files of datakit ({found.folder}) that differ from the driver's ({ours.folder}); "
            "install the same version on all nodes, and remove checkouts of datakit from the import paths (PYTHONPATH) "
            "of the nodes and the driver"
        )
