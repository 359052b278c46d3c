"""Runs datakit commands for tests, each in a process of its own with limits, and measures it.

The processes are forked from one that has already imported datakit, because imports take longer than most commands.
Each becomes the leader of a session, and this program adopts what a command leaves behind, so it can wait for all of
its processes, and count them. Requests and answers are lines of JSON on stdin and stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

import psutil

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.02
END_SECONDS = 20.0  # until what a command has started must have ended, after the command itself
TIMED_OUT = 124


def serve() -> None:
    """Answer requests until stdin ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run a command; return its exit code, peak memory, written bytes, CPU seconds and how many processes it left."""
    child = os.fork()
    if child == 0:
        execute(request)
    usage = Usage()
    code = wait(child, request["seconds"], usage)
    left = wait_for_rest(usage)
    return {"code": code, "left": left, **vars(usage)}


class Usage:
    """The resources that the processes of a command have used."""

    def __init__(self) -> None:
        self.memory, self.written, self.cpu_seconds = 0, 0, 0.0

    def reap(self, options: int) -> tuple[int, int] | None:
        """Reap a child, if one has ended; return its process id and exit code."""
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | options)
        if ended is None:
            return None
        written = bytes_written(ended.si_pid)
        pid, status, used = os.wait4(ended.si_pid, 0)
        self.memory = max(self.memory, used.ru_maxrss << 10)
        self.written += written
        self.cpu_seconds += used.ru_utime + used.ru_stime
        return pid, os.waitstatus_to_exitcode(status)


def bytes_written(pid: int) -> int:
    """Return the bytes that a process that has ended, and those it has waited for, passed to write()."""
    with suppress(OSError), open(f"/proc/{pid}/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))
    return 0


def wait(child: int, seconds: float, usage: Usage) -> int:
    """Wait for the command; kill it with all that it has started when its time is over."""
    end = time.monotonic() + seconds
    while True:
        ended = usage.reap(os.WNOHANG)
        if ended is not None and ended[0] == child:
            return ended[1]
        if ended is None:
            if time.monotonic() > end:
                kill_all()
                return TIMED_OUT
            time.sleep(POLL_SECONDS)


def wait_for_rest(usage: Usage) -> int:
    """Wait for the processes that the command left behind, and return how many had to be killed."""
    end, killed = time.monotonic() + END_SECONDS, 0
    while True:
        try:
            ended = usage.reap(os.WNOHANG)
        except ChildProcessError:
            return killed
        if ended is None:
            if time.monotonic() > end:
                killed += kill_all()
                end = time.monotonic() + END_SECONDS
            time.sleep(POLL_SECONDS)


def kill_all() -> int:
    """Kill every process below this one; return how many there were."""
    found = psutil.Process().children(recursive=True)
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    return len(found)


def execute(request: dict[str, Any]) -> NoReturn:
    """Run the command in this process, and end it."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    for target, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), target)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["written"], request["written"]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from datakit.cli import main

    sys.argv = ["datakit", *request["words"]]
    sys.exit(main(request["words"]))


if __name__ == "__main__":
    import datakit.cli
    import datakit.pipeline.running  # noqa: F401 - what most commands need

    serve()
