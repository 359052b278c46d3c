"""Runs the template process of a pool of fork servers: it imports, once, the libraries that all stages need, and forks
a server for each set of preloads.

These imports take 0.25 s of CPU time, and loading what numba needs for its first kernel takes another 0.4 to 0.7 s. A
run of ten small steps on two CPUs starts four servers. With the template process, from which a server without preloads
starts in 10 ms, the run takes a third less CPU time than if each server imported everything itself.

The template process runs no user code and imports no preloads, so a bad preload harms only its own server. Numba is
loaded only when a server first needs it, because some runs need no kernels. The template process remains the servers'
parent, because only a parent learns how a process ended. If the template process dies, the kernel kills its servers;
the client notices that their status pipes are closed, and starts another template process. If the client dies, even by
SIGKILL, the servers notice that their control sockets are closed, kill their children and exit. The template process
notices that its own control socket is closed, and waits for the servers to exit, but for at most 5 seconds, since a
preload may hang. No process holds a descriptor of another process's socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

from datakit.engine.arrow_without_pandas import leave_out_pandas
from datakit.engine.worker import child, forkserver
from datakit.engine.worker.forking import MESSAGE_BYTES, Forker
from datakit.engine.worker.memory_watcher import die_with
from datakit.text import compilation

# Every stage uses these libraries. The first call of `numpy.unique` imports numpy.ma, which takes 0.07 s.
LIBRARIES = ("pyarrow", "pyarrow.compute", "pyarrow.parquet", "numpy.ma", "datakit.storage.parquet")
KERNELS = struct.Struct("<q")  # 1 if the fork server needs numba
assert KERNELS.size == MESSAGE_BYTES
LONGEST_EXIT_SECONDS = 5  # time for servers to end their children; then servers are killed, even during a preload


def main() -> None:
    """Serve on the control socket whose descriptor is the first command-line argument. The second argument is the
    descriptor of the client's standard error, to which servers write once they have started.
    """
    _disable_core_dumps()
    control, shown = map(int, sys.argv[1:3])
    _Template(socket.socket(fileno=control), shown).run()


def _disable_core_dumps() -> None:
    """Make this process and all its descendants leave no core dumps, which would hold documents and credentials.

    The limit is one byte where possible: the kernel ignores a limit of zero if it pipes core dumps to a program, but
    takes a limit of one as a request for no dump (core(5), and do_coredump in the kernel).
    """
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    limit = 0 if most == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


@cache
def _load(load: Callable[[], None]) -> dict[str, Any] | None:
    """Load libraries once. Return None or, if loading failed, the failure that fork servers are to report."""
    try:
        gc.disable()  # imports make many objects and hardly any garbage: collections would take 10 % of the time
        load()
        child.require_one_thread("the libraries")
        gc.freeze()  # otherwise garbage collections in the servers would copy the pages that they inherit
    except BaseException as error:  # noqa: BLE001 - sent to the client, which raises BootError
        return child.describe_error(error)
    finally:
        gc.enable()
    return None


def _import_libraries() -> None:
    for module in LIBRARIES:
        importlib.import_module(module)
    leave_out_pandas()


class _Template(Forker):
    """Forks fork servers. `_shown`: the client's standard error. `_failure`: the reason why the next server cannot
    work, or None.
    """

    def __init__(self, control: socket.socket, shown: int) -> None:
        super().__init__(control)
        self._shown = shown
        self._failure: dict[str, Any] | None = None

    def _prepare(self, message: bytes) -> None:
        (kernels,) = KERNELS.unpack(message)
        self._failure = _load(_import_libraries) or (_load(compilation.load_numba) if kernels else None)

    def _become(self, message: bytes, *descriptors: int) -> None:
        die_with(self._pid)
        os.setsid()  # in its own session, because only the driver handles Ctrl-C
        control, output = descriptors
        try:
            forkserver.serve(socket.socket(fileno=control), self._failure, output, self._shown)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the process ends here, as an interpreter would
            traceback.print_exc()

    def _exit(self) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST_EXIT_SECONDS)  # ends this process, whereupon the kernel kills the servers
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        os._exit(0)
