"""Runs the fork server: a single-threaded process that imports the preloads once and then forks children on request.

Starting a new interpreter with the same imports would take 150-700 ms; forking the server takes 3-12 ms. A child may
run several attempts (`child.py`).
The server is itself a fork of the template process (`forkserver_template.py`), which is started with `python -c`, so
`__main__` is empty in both. A server that re-imported the parent's `__main__` (as the standard library's server does)
would import `datakit.cli` in every child and, inside a Ray worker, all of Ray. Apart from the preloads, the server runs
no user code. It checks that the preloads have started no threads. (A fork copies only the calling thread, but it copies
all locks, including those that other threads hold.) When the server's client dies, even by `kill -9`, the server
notices that the control socket is closed, kills its children and exits, so no orphans remain.

The protocol uses a Unix socket pair. The client sends the boot message. If the server has to compile kernels, it
reports that first; then it reports whether its preloads succeeded. Each subsequent request consists of a memory budget
and three file descriptors: the status pipe (`forking.py`), the child's channel (requests in, results out) and the
heartbeat (shared memory). On the status pipe, the memory use of the child's last attempt follows its exit status.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datakit.engine.interpreter import Installation, installation
from datakit.engine.task import Preload, decode, encode
from datakit.engine.worker import child
from datakit.engine.worker.boot_output import send_output_to
from datakit.engine.worker.forking import EXIT, MESSAGE_BYTES, Forker
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.engine.worker.memory_watcher import MEMORY_USE, MemoryWatcher, kill
from datakit.engine.worker.preloaded_values import preloaded
from datakit.errors import InputError
from datakit.text import compilation

COMPILING = {"compiling": True}  # sent before the report on the preloads, if numba has to compile a kernel
BUDGET = struct.Struct("<q")
assert BUDGET.size == MESSAGE_BYTES
EXIT_BYTES = EXIT.size + MEMORY_USE.size


@dataclass(frozen=True)
class Boot:
    """The boot message: the preloads, the client's present environment and import path, and the files of datakit that
    the client runs.
    """

    preloads: tuple[Preload, ...]
    environment: dict[str, str]
    path: tuple[str, ...]
    installation: Installation


def serve(control: socket.socket, failure: dict[str, Any] | None, output: int, shown: int) -> None:
    """Boot, and then fork on request until the client closes its end of the socket.

    failure: the template process's failure, if any, which the server reports instead of importing the preloads. output:
    the descriptor that receives the server's output during these imports. shown: the client's standard error, which
    receives the server's other output.
    """
    later = os.dup(shown)
    send_output_to(shown)
    boot = decode(receive_frame(control), Boot)
    watcher = MemoryWatcher()
    send_output_to(output)
    failure = failure or _boot(boot, lambda: send_frame(control, encode(COMPILING)))
    send_output_to(later)
    send_frame(control, encode(failure or {}))
    if failure is None:
        _ForkServer(control, boot.preloads, watcher).run()


def _boot(boot: Boot, compiling: Callable[[], None]) -> dict[str, Any] | None:
    """Import and call the preloads; call `compiling` if kernels have to be compiled. Return None, or the failure in the
    form in which a child reports failures.
    """
    try:
        gc.disable()  # preloads, like imports, make many objects and hardly any garbage
        _adopt(boot)
        _require_same_files(boot.installation)
        for preload in boot.preloads:
            importlib.import_module(preload.module)
            if preload.function:
                with compilation.announced(compiling):
                    preloaded(preload.function, *preload.arguments)
        child.require_one_thread("the preloads")
        gc.freeze()  # otherwise garbage collections in the children would copy the pages that they inherit
    except BaseException as error:  # noqa: BLE001 - sent to the client, which raises BootError
        return child.describe_error(error)
    finally:
        gc.enable()
    return None


def _adopt(boot: Boot) -> None:
    """Adopt the client's environment and import path, which may have changed since the template process was started."""
    os.environ.clear()
    os.environ.update(boot.environment)
    sys.path[:] = boot.path
    importlib.invalidate_caches()


def _require_same_files(client: Installation) -> None:
    """Raise InputError unless this process runs the files of datakit that its client runs."""
    found = installation()
    if found.folder != client.folder:
        raise InputError(
            f"a worker process imports datakit from {found.folder} but was started by a program that imports "
            f"datakit from {client.folder}; remove one of the two from the import path (PYTHONPATH), and run again"
        )
    if found != client:
        raise InputError(
            f"the files of datakit in {found.folder} changed after this program started, so new worker processes would "
            "run different code; run again: finished work is kept"
        )


class _ForkServer(Forker):
    """Forks children, whose memory the watcher measures."""

    def __init__(self, control: socket.socket, preloads: tuple[Preload, ...], watcher: MemoryWatcher) -> None:
        super().__init__(control)
        self._preloads, self._watcher = preloads, watcher
        self._entries: dict[int, int] = {}  # pid -> entry in the watcher's table
        self._reserved = 0  # the entry of the next child

    def _prepare(self, message: bytes) -> None:
        self._reserved = self._watcher.reserve()

    def _become(self, message: bytes, *descriptors: int) -> None:
        channel, heartbeat = descriptors
        child.run(channel, heartbeat, self._preloads, self._watcher.own_memory(self._reserved))

    def _started(self, pid: int, message: bytes) -> None:
        self._watcher.add(self._reserved, pid, *BUDGET.unpack(message))
        self._entries[pid] = self._reserved

    def _ended(self, pid: int) -> bytes:
        if pid == self._watcher.pid:
            self._exit()  # children must not run unwatched, and the client starts another server
        entry = self._entries.pop(pid, None)
        return b"" if entry is None else MEMORY_USE.pack(*self._watcher.remove(entry))

    def _exit(self) -> None:
        for pid in self._entries:
            kill(pid)
        os._exit(0)
