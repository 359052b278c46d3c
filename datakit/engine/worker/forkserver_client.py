"""The parent's end of the fork servers: starting them, asking them for children, keeping a few.

Safe for threads. A server boots in 130-500 ms, once for each set of preloads and worker process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from datakit.engine.task import Preload, decode, encode
from datakit.engine.worker import forkserver
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.storage.stale_files import remove_dead_scratch

SINGLE_THREADED = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Not `-m`: the child's __main__ must be neither this package's module under a second name nor the user's script.
BOOT = "from datakit.engine.worker.forkserver import main; main()"


class BootError(Exception):
    """A fork server that could not do what its preloads ask; `reply` is the failure as a child would report it."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__(reply["message"])
        self.reply = reply


class Zygote:
    """The parent's end of a fork server. Thread safe."""

    def __init__(self, preloads: tuple[Preload, ...]) -> None:
        """Starts the server and waits for its boot. Raises BootError."""
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = [sys.executable, "-c", BOOT, str(theirs.fileno())]
        self._process = subprocess.Popen(  # a session of its own: Ctrl-C at the terminal is the driver's to handle
            command, pass_fds=[theirs.fileno()], env=_environment(), start_new_session=True, stdin=subprocess.DEVNULL
        )
        theirs.close()
        send_frame(self._control, encode(preloads))
        try:
            reply = decode(receive_frame(self._control))
        except (EOFError, OSError) as error:
            raise ConnectionError(f"the fork server ended at its start ({self._process.wait()})") from error
        if "error" in reply:
            self.close()
            raise BootError(reply)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._process.poll() is None

    def fork(self, budget: int, channel: int, status: int, cursor: int) -> None:
        """Ask for a child with this budget that owns these descriptors. Raises OSError where the server is gone."""
        with self._lock:
            socket.send_fds(self._control, [forkserver.BUDGET.pack(budget)], [channel, status, cursor])

    def close(self) -> None:
        """End the server and all its children."""
        self._control.close()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ZygotePool:
    """The fork servers of one worker process, one for each set of preloads; the longest unused one makes room."""

    def __init__(self, limit: int = 2) -> None:
        self._limit, self._lock = limit, threading.Lock()
        remove_dead_scratch()
        self._servers: dict[tuple[Preload, ...], Zygote] = {}
        self._uses: dict[tuple[Preload, ...], int] = {}

    @contextlib.contextmanager
    def use(self, preloads: tuple[Preload, ...]) -> Iterator[Zygote]:
        """A server with these preloads, started if need be, and not taken away meanwhile. Raises BootError."""
        with self._lock:
            server = self._find(preloads)
            self._uses[preloads] = self._uses.get(preloads, 0) + 1
        try:
            yield server
        finally:
            with self._lock:
                self._uses[preloads] -= 1

    def _find(self, preloads: tuple[Preload, ...]) -> Zygote:
        server = self._servers.pop(preloads, None)
        if server is not None and not server.alive():
            server.close()
            server = None
        if server is None:
            idle = [key for key in self._servers if not self._uses.get(key)]
            while len(self._servers) >= self._limit and idle:
                self._servers.pop(idle.pop(0)).close()
            server = Zygote(preloads)
        self._servers[preloads] = server  # now the last used
        return server

    def close(self) -> None:
        """End every server, and with it every child."""
        with self._lock:
            for server in self._servers.values():
                server.close()
            self._servers.clear()


def _environment() -> dict[str, str]:
    """The server's: libraries start no threads at import, and it finds what this process finds."""
    ours = [path for path in sys.path if path and "-packages/ray/" not in path]  # Ray puts copies of its own in front
    limits = dict.fromkeys(SINGLE_THREADED, "1")
    paths = {"PYTHONPATH": os.pathsep.join(ours)}
    arrow = {
        "MIMALLOC_ARENA_RESERVE": "64MiB"
    }  # not 1 GiB: what it has reserved already passes any wall (`memory_watcher.py`)
    return os.environ | limits | paths | arrow | {"TOKENIZERS_PARALLELISM": "true"}
