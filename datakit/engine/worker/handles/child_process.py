"""A parent's handle to one child: requests it from a fork server, sends it attempts, kills it, and learns how it ended.

The handle also remembers what the child had used before the attempt that it is running (CPU time, bytes written, memory
kept), so that each attempt is charged only with its own use.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from dataclasses import dataclass
from typing import Any

from datakit.engine.executor import Cause
from datakit.engine.worker import forking, forkserver
from datakit.engine.worker.exit_causes import ExitStatus
from datakit.engine.worker.forkserver_client import ForkServer
from datakit.engine.worker.framing import receive_frame, send_frame
from datakit.engine.worker.heartbeat import Heartbeat, create_heartbeat_memory
from datakit.engine.worker.memory_watcher import MEMORY_USE, MemoryUse, kill
from datakit.errors import DatakitError, RefusedError

END_SECONDS = 5.0  # time for an idle child to exit; then it is killed


@dataclass
class ChildProcess:
    """A child of a fork server.

    attempts: the number of attempts that it has finished. cpu_seconds, written: what it had used by the end of these
    attempts. retained: the bytes of memory that it has kept from them.
    killed_for, dumped, stopped_by: of the running attempt: why the child was killed; the time at which the child was
    asked for its stack, or 0; the error that made the parent kill the child, or None.
    """

    server: ForkServer
    channel: socket.socket
    status: int
    heartbeat: Heartbeat
    pid: int = 0
    attempts: int = 0
    cpu_seconds: float = 0.0
    written: int = 0
    retained: int = 0
    killed_for: Cause | None = None
    dumped: float = 0.0
    stopped_by: DatakitError | None = None

    @classmethod
    def forked(cls, server: ForkServer, budget: int) -> ChildProcess | None:
        """Request a child from the server. Return None if the server dies before it forks; raises OSError if the server
        is gone.
        """
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(ours.close)
            with theirs:
                status_read, status_write = os.pipe()
                undo.callback(os.close, status_read)
                try:
                    heartbeat = create_heartbeat_memory()
                    try:
                        made = cls(server, ours, status_read, Heartbeat(heartbeat))
                        server.fork(budget, status_write, theirs.fileno(), heartbeat)
                    finally:
                        os.close(heartbeat)
                finally:
                    os.close(status_write)
            pid = os.read(status_read, forking.PID.size)
            if not pid:
                return None
            (made.pid,) = forking.PID.unpack(pid)
            undo.pop_all()
            return made

    def send(self, request: bytes) -> None:
        """Send an attempt to the child. If the child is dead, its exit status shows why."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_frame(self.channel, request)

    def receive(self) -> bytes | None:
        """Return the child's reply, or None if the child has ended without a complete one."""
        try:
            return receive_frame(self.channel)
        except (EOFError, ConnectionError):
            return None

    def stop(self, error: DatakitError) -> None:
        """Kill the child, and record this error as the reason unless the child was already killed for another one."""
        if self.killed_for is None:
            self.stopped_by = error
        self.kill(Cause.REFUSED if isinstance(error, RefusedError) else Cause.ERROR)

    def kill(self, cause: Cause) -> None:
        """Kill the child, and record the cause unless the child was already killed for another one."""
        self.killed_for = self.killed_for or cause
        kill(self.pid)

    def exit(self) -> tuple[ExitStatus | None, MemoryUse]:
        """Wait for the child's exit. Return how it ended, or None if the fork server is gone, and its memory use."""
        ended = os.read(self.status, forkserver.EXIT_BYTES)
        if not ended:
            return None, MemoryUse()
        status = ExitStatus(*forking.EXIT.unpack(ended[: forking.EXIT.size]))
        return status, MemoryUse(*MEMORY_USE.unpack(ended[forking.EXIT.size :]))

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Return True if the child's exit, or that of its fork server, is reported within `seconds`."""
        poll = select.poll()
        poll.register(self.status, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def finish_attempt(self, reply: dict[str, Any]) -> None:
        """Record what the child, which stays, has used so far."""
        self.attempts += 1
        self.cpu_seconds, self.written = reply["cpu_seconds_in_all"], reply["written_in_all"]
        self.retained, self.dumped = max(0, reply["retained"]), 0.0
        self.heartbeat.clear()

    def close(self) -> None:
        """Close the connections to a child that has ended or is being killed."""
        self.channel.close()
        os.close(self.status)

    def end(self) -> None:
        """End an idle child, which exits once its channel is closed, and wait for its exit."""
        self.channel.close()
        if not self.has_ended(END_SECONDS):
            kill(self.pid)
            self.has_ended(END_SECONDS)
        self.close()
