"""The fork server: a single-threaded process, exec'ed once, from which each attempt is forked in a few milliseconds.

A new interpreter with our imports costs 150-700 ms an attempt, a fork of this one 3-12 ms. It is started with
`python -c`, so its `__main__` is empty: a server that re-imports the parent's `__main__` (as the standard library's
does) pays for the command line, and inside a Ray worker for all of Ray, in every child.

It runs no user code itself: it imports what the preloads name, checks that it still has one thread (a fork copies only
the calling thread, and with it every lock that another one held), and forks. When its parent goes, it sees the end of
the control socket, kills its children and leaves: no orphans, even after `kill -9` of the parent.

Protocol, over a Unix socket pair: the parent sends the boot message; the server answers whether its preloads work; then
each request is a budget of memory with three file descriptors: the attempt's channel (request in, result out), the
status pipe (the server writes the child's pid, and at its end the exit status, resource usage and what
`memory_watcher.py` read) and the cursor (shared memory).
"""

from __future__ import annotations

import array
import contextlib
import importlib
import os
import selectors
import signal
import socket
import struct
import sys
from typing import Any

from datakit.engine.task import Preload, decode, encode
from datakit.engine.worker import child
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.engine.worker.memory_watcher import READING, Gauges, kill
from datakit.engine.worker.preload import preloaded

ALWAYS = ("pyarrow", "pyarrow.compute", "pyarrow.parquet", "datakit.storage.parquet")
BUDGET = struct.Struct("<q")
PID = struct.Struct("<q")
END = struct.Struct("<qqdd")  # wait status, peak resident bytes, user seconds, system seconds; a READING follows
END_BYTES = END.size + READING.size
DESCRIPTORS_BYTES = socket.CMSG_SPACE(3 * array.array("i").itemsize)


def serve(control: socket.socket) -> None:
    """Boot, then fork on request until the parent closes its end."""
    preloads = decode(receive_frame(control), tuple[Preload, ...])
    gauges = Gauges()
    failure = _boot(preloads)
    send_frame(control, encode(failure or {"pid": os.getpid(), "threads": child.foreign_threads()}))
    if failure is None:
        _Server(control, preloads, gauges).run()


def _boot(preloads: tuple[Preload, ...]) -> dict[str, Any] | None:
    """Import and call what was asked for; None, or the failure in the form in which a child reports its own."""
    try:
        for module in ALWAYS:
            importlib.import_module(module)
        for preload in preloads:
            importlib.import_module(preload.module)
            if preload.function:
                preloaded(preload.function, *preload.arguments)
    except BaseException as error:  # noqa: BLE001 - reported to the parent, which raises it there
        return child.describe_error(error)
    return None


class _Server:
    """Forks children, reaps them, and reports how each one ended on its own pipe."""

    def __init__(self, control: socket.socket, preloads: tuple[Preload, ...], gauges: Gauges) -> None:
        self._control, self._preloads, self._gauges = control, preloads, gauges
        self._children: dict[int, tuple[int, int]] = {}  # pid -> status pipe, entry in the table of memory
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> None:
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                elif not self._accept():
                    self._leave()
            self._reap()

    def _accept(self) -> bool:
        descriptors = array.array("i")
        message, ancillary, _, _ = self._control.recvmsg(BUDGET.size, DESCRIPTORS_BYTES)
        if not message:
            return False
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data)
        channel, status, cursor = descriptors
        pid = os.fork()
        if pid == 0:
            self._become_child(channel, status, cursor)
        self._children[pid] = status, self._gauges.add(pid, *BUDGET.unpack(message))
        os.close(channel)
        os.close(cursor)
        os.write(status, PID.pack(pid))
        return True

    def _become_child(self, channel: int, status: int, cursor: int) -> None:
        """Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            self._control.close()
            for descriptor in (self._wake_read, self._wake_write, self._gauges.descriptor, status):
                os.close(descriptor)
            for other, _ in self._children.values():
                os.close(other)
            child.run(channel, cursor, self._preloads)
        finally:
            os._exit(1)  # only reached when the child could not even report; its parent calls that a crash

    def _reap(self) -> None:
        while True:
            pid, wait_status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == self._gauges.pid:
                self._leave()  # nobody watches the children any more: another server has to
            if pid in self._children:
                status, entry = self._children.pop(pid)
                end = END.pack(wait_status, usage.ru_maxrss * 1024, usage.ru_utime, usage.ru_stime)
                with contextlib.suppress(BrokenPipeError):  # the parent gave this attempt up
                    os.write(status, end + self._gauges.take(entry).pack())
                os.close(status)

    def _leave(self) -> None:
        for pid in self._children:
            kill(pid)
        os._exit(0)


def main() -> None:
    """The server's process: the control socket is the descriptor that the command line names."""
    serve(socket.socket(fileno=int(sys.argv[1])))
