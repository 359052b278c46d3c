"""Creates roots with a time to live for ferries, and finds and removes the expired ones.

    <parent>/<ferry>-<nonce>/.datakit-ferry.json    the marker: nonce, ferry, root's name, creation time, time to live
    <parent>/.ferry-roots/<nonce>.json              the record: the same content

Only a root that a ferry itself created as an empty folder may expire. The marker alone does not prove this, because a
folder that is copied takes its marker along. Therefore a record is also kept outside of the root. It must name the
folder in which the marker is, and both must have the same content; otherwise, the folder is left alone. A root never
expires while its ferry is running, if it is reached through a link, or if it holds a pin or a live lease. A host that
cannot see the ferry's lock relies on the time to live, which is longer than a ferry may run (`ferries/runner.py`).

The age of a root is measured by the clock of its disk or store, from the latest of its creation time and the times at
which the two files were written. The marker is the last file of a root to be removed, so if a removal is killed, the
next one continues it.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec

from datakit.errors import InputError, NotFoundError, UsageError
from datakit.leases.lease_files import USE, read_leases
from datakit.leases.own_folder import file_names, own_folder
from datakit.leases.pins import read_pins
from datakit.recipe import NAME_RULE
from datakit.retention.inventory import files, is_inside
from datakit.storage import atomic, locks, removal, store_clock, urls
from datakit.storage.io_errors import storage_errors
from datakit.storage.json_data import decode

MARKER = ".datakit-ferry.json"
LOCK_NAME = "ferry_run.lock"  # in the root; a running ferry holds a lock on it
RECORDS = ".ferry-roots"
FORMAT = "datakit.ferryroot/1"
NONCE_DIGITS = 12  # digits of the nonce in the name of a root


class FerryMarker(msgspec.Struct, frozen=True):
    """The content of a marker and of a record. root: the name of the root's folder in its parent. created: seconds
    since 1970, by the clock of the disk or store.
    """

    nonce: str
    ferry: str
    root: str
    created: float
    ttl_seconds: float
    format: str = FORMAT


@dataclass(frozen=True)
class FerryRoot:
    """A root that a ferry created. url: its absolute path or URL."""

    url: str
    nonce: str
    ferry: str
    created: float
    ttl_seconds: float


@dataclass(frozen=True)
class ExpiredRoot:
    """A root of a ferry whose time to live is over, and its size."""

    url: str
    bytes: int
    why: str
    nonce: str


def create_ferry_root(parent: str, ferry: str, ttl_seconds: float) -> FerryRoot:
    """Create an empty root in the folder `parent`, which is created if it does not exist, for a run of a ferry."""
    if not NAME_RULE.fullmatch(ferry) or ttl_seconds <= 0:
        raise UsageError(
            f"a ferry's root needs a valid name and a time to live above 0 s, not {ferry!r} and {ttl_seconds} s"
        )
    parent, nonce = urls.absolute(parent), secrets.token_hex(16)
    name = f"{ferry}-{nonce[:NONCE_DIGITS]}"
    root = urls.join(parent, name)
    if urls.is_local(parent):
        with storage_errors(parent):
            os.makedirs(urls.local_path(parent), exist_ok=True)
    marker = FerryMarker(nonce, ferry, name, store_clock.now(parent), ttl_seconds)
    data = msgspec.json.format(msgspec.json.encode(marker), indent=1) + b"\n"
    atomic.commit_bytes(data, _record_url(parent, nonce))
    _create_empty(root)
    atomic.commit_bytes(data, urls.join(root, MARKER))
    return FerryRoot(root, nonce, ferry, marker.created, ttl_seconds)


def _create_empty(root: str) -> None:
    if urls.is_local(root):
        with storage_errors(root):
            os.mkdir(urls.local_path(root))  # fails if it exists
    elif urls.objects(root):
        raise InputError(f"{root} is not empty, so it cannot become the root of a ferry; run the ferry again")


def expired_ferry_roots(parent: str) -> list[ExpiredRoot]:
    """Return the expired roots of ferries directly in the folder `parent`."""
    parent = urls.absolute(parent)
    nonces = [name.removesuffix(".json") for name in file_names(own_folder(parent, RECORDS))]
    if not nonces:
        return []
    now = store_clock.now(parent)
    found = (_expired(parent, nonce, now) for nonce in nonces)
    return [root for root in found if root is not None]


def remove_ferry_root(parent: str, root: ExpiredRoot) -> bool:
    """Check again whether a root has expired, and remove it. Return False, and remove nothing, if it may not be removed
    any more.
    """
    parent = urls.absolute(parent)
    found = _expired(parent, root.nonce, store_clock.now(parent))
    if found is None or found.url != root.url:
        return False
    for name in _children(root.url):
        _remove(urls.join(root.url, name))
    removal.remove(urls.join(root.url, MARKER))
    if urls.is_local(root.url):
        with storage_errors(root.url):
            os.rmdir(urls.local_path(root.url))
    removal.remove(_record_url(parent, root.nonce))
    return True


def _children(root: str) -> list[str]:
    """Return the names of everything directly in a root, except the marker."""
    if urls.is_local(root):
        return [name for name in os.listdir(urls.local_path(root)) if name != MARKER]
    return sorted({info.path.split("/")[0] for info in urls.objects(root)} - {MARKER})


def _remove(place: str) -> None:
    path = urls.local_path(place)
    if not urls.is_local(place):
        removal.remove_tree(place)  # also removes a single object
    elif os.path.isdir(path) and not os.path.islink(path):
        removal.remove_tree(place)
    else:
        removal.remove(place)


def _record_url(parent: str, nonce: str) -> str:
    return urls.join(own_folder(parent, RECORDS), f"{nonce}.json")


def _expired(parent: str, nonce: str, now: float) -> ExpiredRoot | None:
    """Return the root that a record names, if record and marker agree, the root's time to live is over, and nothing
    uses it; otherwise None.
    """
    record_url = _record_url(parent, nonce)
    record = _read(record_url)
    if record is None or record.nonce != nonce or "/" in record.root or record.root.startswith("."):
        return None
    if not is_inside(parent, f"{record.root}/{MARKER}"):
        return None
    root = urls.join(parent, record.root)
    marker_url = urls.join(root, MARKER)
    marker = _read(marker_url)
    if marker != record:
        return None
    begun = max(record.created, urls.modified(record_url), urls.modified(marker_url))
    if now - begun < record.ttl_seconds or _is_used(root):
        return None
    size = sum(file.bytes for file in files(root))
    return ExpiredRoot(root, size, f"the ferry {record.ferry} created it for {record.ttl_seconds:.0f} seconds", nonce)


def _is_used(root: str) -> bool:
    if urls.is_local(root) and locks.is_locked(Path(urls.local_path(root), LOCK_NAME)):
        return True
    return bool(read_pins(root)) or any(not lease.expired for lease in read_leases(root, USE))


def _read(url: str) -> FerryMarker | None:
    """Return the content of a marker or a record; None if the file is missing or is neither."""
    try:
        found = decode(urls.read_bytes(url), FerryMarker)
    except (NotFoundError, msgspec.DecodeError):
        return None
    return found if found.format == FORMAT else None
