"""Starts fork servers in an environment where libraries start no threads, keeps the most recently used servers (four by
default), and requests children from them.

`ForkServer` and `ForkServerPool` are thread-safe. While a server starts, only the attempts that need it wait. A
pool's template process starts in 300-500 ms, once per worker process. A server forked from the template starts in
10-250 ms, once per worker process and set of preloads.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from io import FileIO
from typing import Any

from datakit.engine.interpreter import command, environment, import_path, installation_at_start
from datakit.engine.task import Preload, decode, encode
from datakit.engine.worker import forking, forkserver, forkserver_template
from datakit.engine.worker.boot_output import BootDeathError, BootOutput
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.storage.stale_files import remove_dead_scratch

SINGLE_THREADED = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# mimalloc (Arrow) reserves this much at a time; its default, 1 GiB, could exceed a child's hard limit
ARENA_BYTES = "64MiB"
# The template process is not started with `-m`, so that `__main__` is not a second copy of `forkserver_template`.
PROGRAM = "from datakit.engine.worker.forkserver_template import main; main()"
CLOSE_SECONDS, KILL_SECONDS = 1.0, 10.0  # time allowed for an exit once the control socket is closed, and after SIGKILL


class BootError(Exception):
    """The preloads of a fork server failed. `reply` has the form in which a child reports failures."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__(reply["message"])
        self.reply = reply


class Template:
    """The client's side of the connection to the template process."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lock, self._output, self._said = threading.Lock(), BootOutput(), ""
        shown = _standard_error()
        try:
            self._process = subprocess.Popen(  # in its own session, because only the driver handles Ctrl-C
                command(PROGRAM, str(theirs.fileno()), str(shown)),
                pass_fds=[theirs.fileno(), shown],
                env=_environment(),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=self._output.descriptor,
                stderr=self._output.descriptor,
            )
        finally:
            theirs.close()
            os.close(shown)

    def alive(self) -> bool:
        """Return True if the process is running."""
        return self._process.poll() is None

    def fork(self, control: socket.socket, output: BootOutput, kernels: bool) -> tuple[int, int]:
        """Request a fork server that serves `control`. `output` receives the server's output until the server has
        started. `kernels` is True if the server needs numba. Return the server's pid and the read end of its status
        pipe. Raises BootDeathError.
        """
        with self._lock:  # the template process forks one server at a time
            read, write = os.pipe()
            descriptors = [write, control.fileno(), output.descriptor]
            try:
                with contextlib.suppress(OSError):  # if the process is dead, `os.read` below returns no pid
                    socket.send_fds(self._control, [forkserver_template.KERNELS.pack(kernels)], descriptors)
            finally:
                os.close(write)
            pid = os.read(read, forking.PID.size)
            if pid:
                return *forking.PID.unpack(pid), read
            os.close(read)
            self._end()
        raise BootDeathError("the template process died before it forked", self._process.returncode, self._said)

    def close(self) -> None:
        """End the process and its servers. May be called twice."""
        self._end()

    def _end(self) -> None:
        """End the template process and its servers, and keep the end of the process's output."""
        if self._control.fileno() < 0:
            return
        self._control.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.closing(self._output):
            self._said = self._output.text()


class ForkServer:
    """The client's side of the connection to one fork server. Thread-safe."""

    def __init__(
        self, template: Template, preloads: tuple[Preload, ...], compiling: Callable[[], None] = lambda: None
    ) -> None:
        """Start the server and wait until it has booted; call `compiling` if the server has to compile kernels. What
        the server writes while booting is copied to this process's standard error. If the server dies while booting,
        the error's message quotes the last lines of its output instead. Raises BootError or BootDeathError.
        """
        self._lock = threading.Lock()
        with contextlib.closing(BootOutput()) as output:
            self._control, self.pid, self._status = _forked(template, output, preloads)
            try:
                send_frame(self._control, encode(_boot_message(preloads)))
                while (reply := decode(receive_frame(self._control))) == forkserver.COMPILING:
                    compiling()
            except (EOFError, OSError) as error:
                code = self._exit_code()
                self.close()
                raise BootDeathError("the fork server died while starting", code, output.text()) from error
            output.show()
        if "error" in reply:
            self.close()
            raise BootError(reply)

    def alive(self) -> bool:
        """Return True if the server is running. It dies with the template process."""
        return not self._has_exited_within(0)

    def fork(self, budget: int, status: int, channel: int, heartbeat: int) -> None:
        """Request a child with a memory budget in bytes and these descriptors. Raises OSError if the server is gone."""
        with self._lock:
            socket.send_fds(self._control, [forkserver.BUDGET.pack(budget)], [status, channel, heartbeat])

    def close(self) -> None:
        """End the server and all its children."""
        self._control.close()
        if not self._has_exited_within(CLOSE_SECONDS):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._has_exited_within(KILL_SECONDS)
        self._status.close()

    def _has_exited_within(self, seconds: float) -> bool:
        """Return True if the template process reports the server's exit, or ends, within `seconds`."""
        if self._status.closed:
            return True
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _exit_code(self) -> int | None:
        """Return the dead server's exit code, or None if it died with the template process, which reports exits."""
        ended = self._status.read(forking.EXIT.size)
        return os.waitstatus_to_exitcode(forking.EXIT.unpack(ended)[0]) if ended else None


def _forked(template: Template, output: BootOutput, preloads: tuple[Preload, ...]) -> tuple[socket.socket, int, FileIO]:
    """Request a fork server; return its control socket, pid and status pipe."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with theirs:
            pid, status = template.fork(theirs, output, any(preload.kernels for preload in preloads))
    except ConnectionError:
        ours.close()
        raise
    return ours, pid, FileIO(status)


class ForkServerPool:
    """A process's fork servers, one per set of preloads. If there are already `limit` servers, the least recently used
    idle one is closed before another is started. Servers with different preloads start at the same time.
    """

    def __init__(self, limit: int = 4) -> None:
        self.on_compiling: Callable[[], None] = lambda: None  # called when a server starts to compile kernels
        self._limit, self._lock = limit, threading.Lock()
        # Record datakit's files before the first server starts, so that an upgrade during the run is noticed.
        installation_at_start()
        remove_dead_scratch()
        self._servers: dict[tuple[Preload, ...], ForkServer] = {}  # the most recently used is last
        self._uses: Counter[tuple[Preload, ...]] = Counter()
        self._starting: defaultdict[tuple[Preload, ...], threading.Lock] = defaultdict(threading.Lock)
        self._compiling: set[tuple[Preload, ...]] = set()
        self._template: Template | None = None
        self._closings = 0  # how many times `close` has been called

    @property
    def compiling(self) -> bool:
        """Return True if a server is compiling kernels while it starts."""
        return bool(self._compiling)

    def use(self, preloads: tuple[Preload, ...]) -> contextlib.AbstractContextManager[ForkServer]:
        """Provide a server with these preloads; keep it open during the block. Raises BootError or BootDeathError, and
        ConnectionError if the pool is closed before the server has started.
        """
        return self._use(preloads, self._closings)

    @contextlib.contextmanager
    def _use(self, preloads: tuple[Preload, ...], closings: int) -> Iterator[ForkServer]:
        with self._lock:
            self._uses[preloads] += 1
            starting = self._starting[preloads]
        try:
            with starting:
                server = self._find(preloads) or self._start(preloads, closings)
            yield server
        finally:
            with self._lock:
                self._uses[preloads] -= 1

    def prepare(self, preloads: tuple[Preload, ...]) -> None:
        """Start a server in a thread, unless there is one already. If it does not start, the first attempt that needs
        it tries again and reports the reason.
        """
        arguments = preloads, self._closings
        threading.Thread(target=self._prepare, args=arguments, name="datakit-boot", daemon=True).start()

    def _prepare(self, preloads: tuple[Preload, ...], closings: int) -> None:
        with contextlib.suppress(BootError, OSError), self._use(preloads, closings):
            pass

    def _find(self, preloads: tuple[Preload, ...]) -> ForkServer | None:
        with self._lock:
            server = self._servers.pop(preloads, None)
            if server is not None and server.alive():
                self._servers[preloads] = server
                return server
        if server is not None:
            server.close()
        return None

    def _start(self, preloads: tuple[Preload, ...], closings: int) -> ForkServer:
        with self._lock:
            self._require_open(closings)
            idle = [key for key in self._servers if not self._uses[key]]
            surplus = [self._servers.pop(key) for key in idle[: max(0, len(self._servers) + 1 - self._limit)]]
            template = self._living_template()
        for unused in surplus:
            unused.close()
        try:
            server = ForkServer(template, preloads, partial(self._compiles, preloads))
        finally:
            self._compiling.discard(preloads)
        try:
            with self._lock:
                self._require_open(closings)
                self._servers[preloads] = server
                return server
        except ConnectionError:
            server.close()
            raise

    def _require_open(self, closings: int) -> None:
        """Raise ConnectionError if the pool was closed since it had been closed `closings` times."""
        if closings != self._closings:
            raise ConnectionError("the fork servers were closed before this one had started")

    def _living_template(self) -> Template:
        if self._template is not None and not self._template.alive():
            self._template.close()
            self._template = None
        self._template = self._template or Template()
        return self._template

    def _compiles(self, preloads: tuple[Preload, ...]) -> None:
        self._compiling.add(preloads)
        self.on_compiling()

    def close(self) -> None:
        """End all servers, their children and the template process."""
        with self._lock:
            self._closings += 1
            servers, template = list(self._servers.values()), self._template
            self._servers.clear()
            self._template = None
        for server in servers:
            server.close()
        if template is not None:
            template.close()


def _standard_error() -> int:
    """Return a new descriptor of this process's standard error, or of /dev/null if it is closed."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _boot_message(preloads: tuple[Preload, ...]) -> forkserver.Boot:
    return forkserver.Boot(preloads, _environment(), tuple(import_path()), installation_at_start())


def _environment() -> dict[str, str]:
    """Return a fork server's environment, in which imports start no threads and the import path is this process's."""
    settings = {"MIMALLOC_ARENA_RESERVE": ARENA_BYTES, "TOKENIZERS_PARALLELISM": "true"}
    return environment() | dict.fromkeys(SINGLE_THREADED, "1") | settings
