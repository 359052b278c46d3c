"""Lets a process keep the steps that it relies on, so that `datakit gc` on any host leaves them in place.

    with Lease(root, USE, "datakit run shelf") as lease:
        lease.hold(directories)     # before their manifests are read

Neither the process nor `datakit gc` uses a lock, because locks do not reach all hosts and no object store has them.
Instead, each side first writes what it wants and then reads what the other side wants:

    a run            writes its lease, then reads the announcements of `datakit gc`, then looks for finished steps
    `datakit gc`     writes its announcement, then reads the leases, then moves the steps that no lease names

The side that writes last then reads the file of the other. If the run sees an announcement that names one of its steps,
it waits until that announcement is gone, and only then checks whether the step is finished. If `datakit gc` sees the
lease, it leaves the step and its inputs in place. So no step is moved while a run relies on it, whichever process is
killed at whatever point. Both sides write to the folder that they list, so on NFS neither reads a cached listing that
is older than its own write.

A process that is stopped for longer than EXPIRED_SECONDS loses its lease, because others may have removed the file. The
process measures this time from just before one renewal to just after the next, with a clock that goes on while the
machine sleeps. Others begin to count later, at the modification time of the file, so they never end a lease that its
process considers live. Once the lease is lost, `hold` and `require` raise an error. `datakit gc` checks its
announcement right before and right after each move; see `retention/collection.py`.

No lease is written in a root in which this user may not write. A run that finds all its steps finished there would need
a lease only while it reads their manifests; any other run is refused.

Cost: one file written when steps are added (for a run, usually once) and every 30 seconds, and one listing.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

import msgspec

from datakit.engine.observe.driver_heartbeat import DriverHeartbeat
from datakit.errors import DatakitError, NotFoundError, RootError, StorageError
from datakit.leases.lease_files import (
    COLLECT,
    EXPIRED_SECONDS,
    FOLDER,
    RENEW_SECONDS,
    USE,
    FoundLease,
    LeaseFile,
    read_leases,
    remove_expired,
)
from datakit.leases.own_folder import own_folder, paths_below
from datakit.storage import atomic, removal, urls
from datakit.storage.manifest import is_finished

WAIT_SECONDS = 0.2  # between two readings of the announcements


class Lease:
    """A lease of this process on steps of a root, as a context manager. kind: USE or, for an announcement that the
    steps will be removed, COLLECT. command: the command that the process executes, for messages. say: shows a message
    to the user.
    """

    def __init__(self, root: str, kind: str, command: str, say: Callable[[str], None] = lambda text: None) -> None:
        self.root, self._kind, self._command, self._say = root, kind, command, say
        self.url: str = urls.join(own_folder(root, FOLDER), f"{kind}-{uuid.uuid4().hex}.json")
        self._steps: set[str] = set()
        self._waited: set[str] = set()  # the steps for which announcements have been read
        self._written = self._lost = False
        self._renewed = 0.0  # the time by `_now` right before the lease was last written
        self._lock = threading.RLock()
        self._heartbeat = DriverHeartbeat(self._renew, RENEW_SECONDS)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._written:
            self._heartbeat.stop()
            with self._lock, suppress(DatakitError):  # a file that cannot be removed expires
                removal.remove(self.url)

    def hold(self, directories: Iterable[str]) -> None:
        """Add steps to the lease. Unless the lease is itself an announcement, return only once no live announcement
        names any of its steps. Directories outside of the root are ignored. In a root that does not exist yet, nothing
        is written until `begin` is called.

        Raises StorageError if the lease has expired.
        """
        steps = {path for directory in directories for path in paths_below(self.root, directory)}
        if self._lost:
            self.require()
        if steps <= self._waited:
            return
        self._steps |= steps
        if not urls.is_local(self.root) or os.path.isdir(urls.local_path(self.root)):
            self.begin()

    def hold_finished(self, directories: Iterable[str]) -> None:
        """Add finished steps to the lease. Raises NotFoundError if one was removed before it was in the lease, and
        StorageError if the lease has expired.
        """
        steps = list(directories)
        self.hold(steps)
        gone = next((step for step in steps if not is_finished(step)), None)
        if gone is not None:
            raise NotFoundError(
                f"{gone} was removed while this command started; run the command again, or restore the step from the "
                f"trash in {urls.join(self.root, '.trash')}"
            )

    def begin(self) -> None:
        """Write the lease, creating the root if it does not exist, and wait as `hold` does. If this user may not write
        in the root, an announcement raises RootError, and any other lease is not written.
        """
        if self._lost:
            self.require()
        if self._written and self._steps <= self._waited:
            return
        try:
            self._write()
        except RootError:
            if self._kind == COLLECT:
                raise
            return  # this user may not write here
        if self._lost:
            self.require()
        if self._kind == USE:
            wait_for_collections(self.root, self._steps - self._waited, self._say)
        self._waited |= self._steps

    def require(self) -> None:
        """Raise StorageError if this process has lost its lease."""
        late = self._written and _now() - self._renewed >= EXPIRED_SECONDS
        if self._lost or late or (self._written and not urls.exists(self.url)):
            raise StorageError(
                f"{self.url} has expired: this process did not renew it for {EXPIRED_SECONDS:.0f} seconds, because it "
                "was stopped or could not reach the root, so others may have removed the steps that it relies on; run "
                "the same command again (finished work is kept)"
            )

    def _write(self) -> None:
        content = LeaseFile(self._kind, sorted(self._steps), os.uname().nodename, os.getpid(), self._command)
        with self._lock:
            begun, before = self._written, _now()
            atomic.replace_bytes(msgspec.json.encode(content) + b"\n", self.url)
            self._lost = self._lost or (begun and _now() - self._renewed >= EXPIRED_SECONDS)
            self._written, self._renewed = True, before
        if not begun:
            self._heartbeat.start()

    def _renew(self) -> None:
        """Write the lease again, in the heartbeat's thread. If the disk or the store fails, the next renewal tries
        again. If every renewal fails for EXPIRED_SECONDS, the lease expires, and the next call of `require` raises an
        error.
        """
        with self._lock, suppress(DatakitError, OSError):
            self._lost = self._lost or not urls.exists(self.url)
            if not self._lost:
                self._write()


def _now() -> float:
    """Return the time by a clock that keeps running while this process is stopped or its machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def wait_for_collections(root: str, steps: Iterable[str], say: Callable[[str], None]) -> None:
    """Wait until no live announcement names any of these steps, which are given by their paths in the root. Expired
    announcements are removed, so that the processes that wrote them cannot go on removing steps.
    """
    wanted, told = set(steps), False
    while True:
        found = read_leases(root, COLLECT)
        remove_expired(found)
        busy = next((lease for lease in found if _names(lease, wanted)), None)
        if busy is None:
            return
        if not told:
            say(f"waiting for {busy.content.holder}, which is removing steps from {root}")
            told = True
        time.sleep(WAIT_SECONDS)


def _names(lease: FoundLease, steps: set[str]) -> bool:
    return not lease.expired and not steps.isdisjoint(lease.content.steps)
