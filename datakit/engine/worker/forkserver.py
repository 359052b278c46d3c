"""Runs the fork server: a single-threaded process that imports the preloads once and then forks a child per attempt.

A new interpreter with our imports would cost 150-700 ms per attempt; a fork of the server costs 3-12 ms. The server is
started with `python -c`, so its `__main__` is empty. A server that re-imported the parent's `__main__` (as the standard
library's server does) would import the command line in every child and, inside a Ray worker, all of Ray. Apart from the
preloads, the server runs no user code. It checks that the preloads have started no threads. (A fork copies only the
calling thread, but it copies all locks, including those that other threads hold.) When the server's parent dies, even
by `kill -9`, the server sees the end of the control socket, kills its children and exits, so no orphans remain.

The protocol uses a Unix socket pair. The parent sends the boot message, and the server reports whether its preloads
succeeded and, before that, if it compiles kernels. Each subsequent request consists of a memory budget and three file
descriptors: the attempt's channel (request in, result out), the status pipe and the heartbeat (shared memory). To the
status pipe, the server writes the child's pid and, when the child exits, its exit status, resource usage and memory
use.
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
from collections.abc import Callable
from typing import Any

from datakit.engine.task import Preload, decode, encode
from datakit.engine.worker import child
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.engine.worker.memory_watcher import MEMORY_USE, MemoryWatcher, kill
from datakit.engine.worker.preloaded_values import preloaded
from datakit.text import compilation

ALWAYS = ("pyarrow", "pyarrow.compute", "pyarrow.parquet", "datakit.storage.parquet")  # imported by every stage
COMPILING = {"compiling": True}  # sent before the report on the preloads, if numba compiles a kernel
BUDGET = struct.Struct("<q")
PID = struct.Struct("<q")
EXIT = struct.Struct("<qqdd")  # wait status, peak resident bytes, user seconds, system seconds; a MEMORY_USE follows
EXIT_BYTES = EXIT.size + MEMORY_USE.size
DESCRIPTORS_BYTES = socket.CMSG_SPACE(3 * array.array("i").itemsize)


def serve(control: socket.socket) -> None:
    """Boot, and then fork on request until the parent closes its end of the socket."""
    preloads = decode(receive_frame(control), tuple[Preload, ...])
    watcher = MemoryWatcher()
    failure = _boot(preloads, lambda: send_frame(control, encode(COMPILING)))
    send_frame(control, encode(failure or {"pid": os.getpid()}))
    if failure is None:
        _ForkServer(control, preloads, watcher).run()


def _boot(preloads: tuple[Preload, ...], compiling: Callable[[], None]) -> dict[str, Any] | None:
    """Import and call the preloads; call `compiling` if kernels have to be compiled. Return None, or the failure in the
    form in which a child reports failures.
    """
    try:
        for module in ALWAYS:
            importlib.import_module(module)
        for preload in preloads:
            importlib.import_module(preload.module)
            if preload.function:
                with compilation.announced(compiling):
                    preloaded(preload.function, *preload.arguments)
        if threads := child.foreign_threads():  # a fork copies the locks that they hold, but not the threads
            raise RuntimeError(f"the preloads started threads ({', '.join(threads)}), so the server cannot fork safely")
    except BaseException as error:  # noqa: BLE001 - sent to the parent, which raises BootError
        return child.describe_error(error)
    return None


class _ForkServer:
    """Forks children, reaps them, and writes to each child's status pipe how the child ended."""

    def __init__(self, control: socket.socket, preloads: tuple[Preload, ...], watcher: MemoryWatcher) -> None:
        self._control, self._preloads, self._watcher = control, preloads, watcher
        self._children: dict[int, tuple[int, int]] = {}  # pid -> (status pipe, entry in the watcher's table)
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
                    self._exit()
            self._reap()

    def _accept(self) -> bool:
        """Serve one request. Return False if the parent has closed its end of the socket."""
        descriptors = array.array("i")
        message, ancillary, _, _ = self._control.recvmsg(BUDGET.size, DESCRIPTORS_BYTES)
        if not message:
            return False
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data)
        channel, status, heartbeat = descriptors
        pid = os.fork()
        if pid == 0:
            self._become_child(channel, status, heartbeat)
        self._children[pid] = status, self._watcher.add(pid, *BUDGET.unpack(message))
        os.close(channel)
        os.close(heartbeat)
        os.write(status, PID.pack(pid))
        return True

    def _become_child(self, channel: int, status: int, heartbeat: int) -> None:
        """Run the attempt. Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            self._control.close()
            for descriptor in (self._wake_read, self._wake_write, self._watcher.descriptor, status):
                os.close(descriptor)
            for other, _ in self._children.values():
                os.close(other)
            child.run(channel, heartbeat, self._preloads)
        finally:
            os._exit(1)  # reached only if the child could not report its failure; the parent then sees a crash

    def _reap(self) -> None:
        while True:
            pid, wait_status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == self._watcher.pid:
                self._exit()  # children must not run unwatched, and the client starts another server
            if pid in self._children:
                status, entry = self._children.pop(pid)
                report = EXIT.pack(wait_status, usage.ru_maxrss * 1024, usage.ru_utime, usage.ru_stime)
                with contextlib.suppress(BrokenPipeError):  # the parent has abandoned this attempt
                    os.write(status, report + MEMORY_USE.pack(*self._watcher.remove(entry)))
                os.close(status)

    def _exit(self) -> None:
        for pid in self._children:
            kill(pid)
        os._exit(0)


def main() -> None:
    """Serve on the control socket whose file descriptor is the first command-line argument."""
    serve(socket.socket(fileno=int(sys.argv[1])))
