"""Tells the driver how many bytes the attempts on a Ray cluster have written so far, for the progress display, and
thereby which attempts have begun, and on which node.

Every REPORT_SECONDS, each Ray worker process puts the byte count of its attempt and the id of its node into the
key-value store of Ray's head node. Each attempt has its own key there; the driver reads the keys of its running
attempts. The reports need neither an additional process nor files in the root. The limits on disk use do not depend on
the reports: each node enforces the limits itself. A failure to send or read a report is ignored; if the head node stays
unreachable, the executor ends the run (`connection.py`). The report of an attempt whose worker is killed stays in the
store, where it takes some 100 bytes.

Cost: each running attempt sends one request every REPORT_SECONDS; an attempt that ends within this time sends none. The
requests are sent by a separate thread, so a slow head node does not delay the checks of what the attempt writes. The
driver spends at most 5 % of its time on reading reports.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterable, Iterator

import ray
import ray.exceptions
from ray.experimental import internal_kv

NAMESPACE = b"datakit"
REPORT_SECONDS = 2.0
READING_SHARE = 0.05  # the largest share of the driver's time that may go into reading reports
FAILURES = (ray.exceptions.RayError, RuntimeError, ConnectionError, TimeoutError)


def new_key() -> str:
    """Return a key for the reports of one attempt."""
    return f"written-{uuid.uuid4().hex}"


class Reporter:
    """Sends the reports of this process's attempts, which run one after another."""

    def __init__(self) -> None:
        self._key, self._written, self._changed = "", 0, threading.Condition()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def attempt(self, key: str) -> Iterator[None]:
        """During the `with` block, send the numbers passed to `note` under this key; remove the report at the end."""
        with self._changed:
            self._key, self._written = key, 0
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_all, daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._key = ""
                self._changed.notify()

    def note(self, written: int) -> None:
        """Note that the attempt has written this many bytes so far. Returns at once."""
        with self._changed:
            self._written = written

    def _send_all(self) -> None:
        node = ray.get_runtime_context().get_node_id()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._key)
                key = self._key
            sent = False
            while self._still_runs(key):
                with contextlib.suppress(*FAILURES):
                    internal_kv._internal_kv_put(key, f"{self._written} {node}", namespace=NAMESPACE)
                    sent = True
            if sent:
                with contextlib.suppress(*FAILURES):
                    internal_kv._internal_kv_del(key, namespace=NAMESPACE)

    def _still_runs(self, key: str) -> bool:
        """Wait for REPORT_SECONDS and return True, or return False as soon as the attempt with this key has ended."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._key != key, REPORT_SECONDS)


class DiskReports:
    """Reads reports in the driver, at most once every REPORT_SECONDS."""

    def __init__(self) -> None:
        # by the key of its reports: what each running attempt has written, and the id of its node
        self._written: dict[str, int] = {}
        self._nodes: dict[str, str] = {}
        self._due = 0.0
        self.read_at = 0.0  # when the latest reading began, on the monotonic clock

    def refresh(self, keys: Iterable[str]) -> bool:
        """Read the latest reports of all running attempts if that is due; return True if it was. keys: those of these
        attempts.
        """
        started = time.monotonic()
        if started < self._due:
            return False
        with contextlib.suppress(*FAILURES):
            found = {key: internal_kv._internal_kv_get(key, namespace=NAMESPACE) for key in keys}
            reports = {key: report.decode().split() for key, report in found.items() if report}
            self._written = {key: int(written) for key, (written, _) in reports.items()}
            self._nodes = {key: node for key, (_, node) in reports.items()}
            self.read_at = started
        spent = time.monotonic() - started
        self._due = time.monotonic() + max(REPORT_SECONDS, spent / READING_SHARE)
        return True

    def node(self, key: str) -> str | None:
        """Return the id of the node of the attempt with this key, or None if it had not begun at least REPORT_SECONDS
        before the latest reading.
        """
        return self._nodes.get(key)

    def total(self, keys: Iterable[str]) -> int:
        """Return how many bytes the attempts with these keys have written, according to their latest reports."""
        return sum(self._written.get(key, 0) for key in keys)
