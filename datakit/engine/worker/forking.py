"""Forks a process for each request on a socket, reaps the process, and reports its end on a status pipe: the loop that
the fork server and its template process have in common.

A request consists of 8 bytes and file descriptors, the first of which is the status pipe. The new process's pid is
written to this pipe, followed, when the process exits, by its exit status and resource usage.
"""

from __future__ import annotations

import array
import contextlib
import os
import selectors
import signal
import socket
import struct
from abc import ABC, abstractmethod
from resource import struct_rusage

MESSAGE_BYTES = 8
PID = struct.Struct("<q")
# wait status, peak resident bytes, user seconds, system seconds; the bytes that `_ended` returns follow
EXIT = struct.Struct("<qqdd")
DESCRIPTORS_BYTES = socket.CMSG_SPACE(3 * array.array("i").itemsize)


class Forker(ABC):
    """Runs the loop; subclasses define what a forked process does."""

    def __init__(self, control: socket.socket) -> None:
        self._control, self._pid = control, os.getpid()
        self._statuses: dict[int, int] = {}  # pid -> status pipe
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> None:
        """Fork on request until the parent closes its end of the socket."""
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                elif not self._accept():
                    self._exit()
            self._reap()

    def _prepare(self, message: bytes) -> None:  # noqa: B027 - optional
        """Do what must be done before the process forks."""

    @abstractmethod
    def _become(self, message: bytes, *descriptors: int) -> None:
        """Do the work of the forked process, which no longer holds any of the loop's resources."""

    def _started(self, pid: int, message: bytes) -> None:  # noqa: B027 - optional
        """Record that a process has been forked."""

    def _ended(self, pid: int) -> bytes:
        """Record that a process has been reaped, and return the bytes to append to the report about it."""
        return b""

    @abstractmethod
    def _exit(self) -> None:
        """End the forked processes and this one. Never returns."""

    def _accept(self) -> bool:
        """Serve one request. Return False if the parent has closed its end of the socket."""
        received = array.array("i")
        message, ancillary, _, _ = self._control.recvmsg(MESSAGE_BYTES, DESCRIPTORS_BYTES)
        if not message:
            return False
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(data)
        status, *descriptors = received
        self._prepare(message)
        pid = os.fork()
        if pid == 0:
            try:
                self._leave(status)
                self._become(message, *descriptors)
            finally:
                os._exit(1)  # reached only if the forked process could not report its failure; the parent sees a crash
        self._statuses[pid] = status
        self._started(pid, message)
        for descriptor in descriptors:
            os.close(descriptor)
        _write(status, PID.pack(pid))
        return True

    def _leave(self, status: int) -> None:
        """In the forked process, close the loop's resources, so that only the loop's own process holds them open."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._control.close()
        for descriptor in (self._wake_read, self._wake_write, status, *self._statuses.values()):
            os.close(descriptor)

    def _reap(self) -> None:
        while True:
            try:
                pid, wait_status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            status, more = self._statuses.pop(pid, None), self._ended(pid)
            if status is not None:
                _write(status, _report(wait_status, usage) + more)
                os.close(status)


def _report(wait_status: int, usage: struct_rusage) -> bytes:
    return EXIT.pack(wait_status, usage.ru_maxrss * 1024, usage.ru_utime, usage.ru_stime)


def _write(status: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent no longer waits for the forked process
        os.write(status, data)
