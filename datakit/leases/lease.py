"""Lets a process keep the steps that it relies on, so that `datakit gc` on any host leaves them in place.

    with Lease(root, USE, "datakit run shelf") as lease:
        lease.hold(directories)     # before their manifests are read

Neither side has a lock, because locks do not reach all hosts and no object store has them. Instead, each side first
writes what it wants and then reads what the other side wants:

    a run            writes its lease, then reads the announcements of `datakit gc`, then looks for finished steps
    `datakit gc`     writes its announcement, then reads the leases, then moves the steps that no lease names

Whichever of the two writes comes last, its process then reads the other's file. If the run sees an announcement that
names one of its steps, it waits until that announcement is gone, and only then looks whether the step is finished. If
`datakit gc` sees the lease, it leaves the step and its inputs in place. So no step is moved while a run relies on it,
whichever process is killed at whatever point. Both sides write to the folder that they list, so on NFS neither reads a
cached listing that is older than its own write.

A process that is stopped for longer than EXPIRED_SECONDS loses its lease, because others may have removed the file. The
process measures this with a clock that also counts the time during which the machine sleeps, from before one renewal to
after the next. Others count from the time of the file, which lies between the two, so they never end a lease that its
process considers live. After a loss, `hold` and `require` raise an error. `datakit gc` checks its announcement right
before and right after each move; see `retention/collection.py`.

A root in which this user may not write gets no lease: a run that finds all steps done there needs none for longer than
it takes to read their manifests, and any other run is refused.

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

WAIT_SECONDS = 0.2  # between two looks at an announcement


class Lease:
    """The lease of this process on steps of a root, as a context manager. command: what the process does. say: shows a
    message to the user.
    """

    def __init__(self, root: str, kind: str, command: str, say: Callable[[str], None] = lambda text: None) -> None:
        self.root, self._kind, self._command, self._say = root, kind, command, say
        self.url: str = urls.join(own_folder(root, FOLDER), f"{kind}-{uuid.uuid4().hex}.json")
        self._steps: set[str] = set()
        self._waited: set[str] = set()  # the steps for which announcements have been read
        self._written = self._lost = False
        self._renewed = 0.0  # by `_now`, before the last renewal
        self._lock = threading.RLock()
        self._heartbeat = DriverHeartbeat(self._renew, RENEW_SECONDS)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._written:
            self._heartbeat.stop()
            with self._lock, suppress(DatakitError):  # what cannot be removed expires
                removal.remove(self.url)

    def hold(self, directories: Iterable[str]) -> None:
        """Add steps to the lease, and return once no live announcement names any of them. Directories outside of the
        root are ignored. In a root that does not exist yet, nothing is written until `begin`.

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
        """Write the lease, even if the root has to be created for it. Raises RootError for an announcement in a root in
        which this user may not write.
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
        again; if it does not recover, the lease expires, and the next call of `require` raises an error.
        """
        with self._lock, suppress(DatakitError, OSError):
            self._lost = self._lost or not urls.exists(self.url)
            if not self._lost:
                self._write()


def _now() -> float:
    """Return the time by a clock that goes on while this process or its machine is stopped."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def wait_for_collections(root: str, steps: Iterable[str], say: Callable[[str], None]) -> None:
    """Return once no live announcement of `datakit gc` names any of these steps, which are given by their paths in the
    root. Expired announcements are removed, so that their processes cannot go on.
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
