"""Starts fork servers in an environment where libraries start no threads, asks them for children, and keeps the most
recently used servers (two by default).

The classes are thread-safe. A server boots in 130-500 ms, once per worker process and set of preloads.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from datakit.engine.task import Preload, decode, encode
from datakit.engine.worker import forkserver
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.storage.stale_files import remove_dead_scratch

SINGLE_THREADED = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
ARENA_BYTES = "64MiB"  # reserved at a time by mimalloc (Arrow); its default, 1 GiB, could exceed the hard limit at once
# The server is not started with `-m`, because `__main__` must not be a second copy of a module of this package.
SERVER_PROGRAM = "from datakit.engine.worker.forkserver import main; main()"


class BootError(Exception):
    """The preloads of a fork server failed. `reply` has the form in which a child reports failures."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__(reply["message"])
        self.reply = reply


class ForkServer:
    """The parent's side of the connection to one fork server. Thread-safe."""

    def __init__(self, preloads: tuple[Preload, ...], compiling: Callable[[], None] = lambda: None) -> None:
        """Start the server and wait until it has booted; call `compiling` if it has to compile kernels. Raises
        BootError or ConnectionError.
        """
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = [sys.executable, "-c", SERVER_PROGRAM, str(theirs.fileno())]
        self._process = subprocess.Popen(  # in its own session, because only the driver handles Ctrl-C
            command, pass_fds=[theirs.fileno()], env=_environment(), start_new_session=True, stdin=subprocess.DEVNULL
        )
        theirs.close()
        send_frame(self._control, encode(preloads))
        try:
            while (reply := decode(receive_frame(self._control))) == forkserver.COMPILING:
                compiling()
        except (EOFError, OSError) as error:
            raise ConnectionError(f"the fork server died while starting (exit code {self._process.wait()})") from error
        if "error" in reply:
            self.close()
            raise BootError(reply)

    def alive(self) -> bool:
        """Return True if the server is running."""
        return self._process.poll() is None

    def fork(self, budget: int, channel: int, status: int, heartbeat: int) -> None:
        """Request a child with this memory budget and these file descriptors. Raises OSError if the server is gone."""
        with self._lock:
            socket.send_fds(self._control, [forkserver.BUDGET.pack(budget)], [channel, status, heartbeat])

    def close(self) -> None:
        """End the server and all its children."""
        self._control.close()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ForkServerPool:
    """A process's fork servers, one per set of preloads; beyond `limit`, the least recently used idle one is closed."""

    def __init__(self, limit: int = 2) -> None:
        self.on_compiling: Callable[[], None] = lambda: None  # called when a server starts to compile kernels
        self._limit, self._lock = limit, threading.Lock()
        self.compiling = False  # True while a server that is being started compiles kernels
        remove_dead_scratch()
        self._servers: dict[tuple[Preload, ...], ForkServer] = {}
        self._uses: dict[tuple[Preload, ...], int] = {}

    @contextlib.contextmanager
    def use(self, preloads: tuple[Preload, ...]) -> Iterator[ForkServer]:
        """Yield a server with these preloads, open during the `with` block. Raises BootError or ConnectionError."""
        with self._lock:
            server = self._find_or_start(preloads)
            self._uses[preloads] = self._uses.get(preloads, 0) + 1
        try:
            yield server
        finally:
            with self._lock:
                self._uses[preloads] -= 1

    def _find_or_start(self, preloads: tuple[Preload, ...]) -> ForkServer:
        server = self._servers.pop(preloads, None)
        if server is not None and not server.alive():
            server.close()
            server = None
        if server is None:
            idle = [key for key in self._servers if not self._uses.get(key)]
            while len(self._servers) >= self._limit and idle:
                self._servers.pop(idle.pop(0)).close()
            try:
                server = ForkServer(preloads, self._compiles)
            finally:
                self.compiling = False
        self._servers[preloads] = server  # the dict's last entry is the most recently used server
        return server

    def _compiles(self) -> None:
        self.compiling = True
        self.on_compiling()

    def close(self) -> None:
        """End all servers and their children."""
        with self._lock:
            for server in self._servers.values():
                server.close()
            self._servers.clear()


def _environment() -> dict[str, str]:
    """Return the server's environment, in which imports start no threads and the import path is this process's."""
    # Ray prepends folders with its own copies of libraries to the import path.
    paths = [path for path in sys.path if path and "-packages/ray/" not in path]
    settings = {"MIMALLOC_ARENA_RESERVE": ARENA_BYTES, "TOKENIZERS_PARALLELISM": "true"}
    return os.environ | dict.fromkeys(SINGLE_THREADED, "1") | {"PYTHONPATH": os.pathsep.join(paths)} | settings
