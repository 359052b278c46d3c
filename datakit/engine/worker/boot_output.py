"""Captures what a process writes to its standard output and error while it starts, and describes its death.

The output of a template process, and that of a fork server until it has started, goes to memory (a memfd): if the
process dies, this output explains the death. Once a server has started, the output captured so far is printed on
standard error. Later, its children's output goes to files of their own (`child.py`).

Two kinds of death are told apart. A signal from outside (such as SIGKILL from the kernel or SIGTERM from a scheduler)
and a lack of memory are temporary causes, so another try may succeed. After any other death, another try would probably
fail too, so the driver gives up when a second process dies in the same way (`scheduler/boot_deaths.py`).
"""

from __future__ import annotations

import os
import re
import signal
import sys

from datakit.engine.executor import BOOT_DEATH
from datakit.engine.worker.exit_causes import FAILED_ALLOCATION, TAIL_BYTES, signal_name
from datakit.printable import printable
from datakit.redaction import redacted

FAULTS = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP))
SHORTAGE = re.compile(r"MemoryError|cannot allocate memory|resource temporarily unavailable", re.IGNORECASE)
LINES_SHOWN, LINE_CHARACTERS = 20, 300  # how much of the output a message quotes


class BootDeathError(ConnectionError):
    """Raised if a fork server dies while starting, or if the template process dies before forking it.
    error_type: BOOT_DEATH if the cause lies in the process itself, else "ForkServerDied".
    """

    def __init__(self, death: str, code: int | None, output: str) -> None:
        """death: what died, and when. code: the process's exit code, -N if signal N ended the process, or None for a
        fork server whose template process died too.
        """
        how = "with the template process" if code is None else _how(code)
        super().__init__(f"{death} ({how}){_quoted(output)}")
        own = code is not None and (code >= 0 or -code in FAULTS) and not _lacked_memory(output)
        self.error_type: str = BOOT_DEATH if own else "ForkServerDied"


class BootOutput:
    """The output of one process. The process's descriptors 1 and 2 are to be copies of `descriptor`."""

    def __init__(self) -> None:
        self.descriptor: int = os.memfd_create("boot-output")

    def text(self) -> str:
        """Return the last 64 KiB of the output."""
        size = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")

    def show(self) -> None:
        """Copy the output to this process's standard error."""
        if text := self.text():
            print(printable(redacted(text)), end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        os.close(self.descriptor)


def send_output_to(descriptor: int) -> None:
    """Make the standard output and error of this process copies of a descriptor, and close the descriptor itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _how(code: int) -> str:
    return signal_name(-code) if code < 0 else f"exit code {code}"


def _lacked_memory(output: str) -> bool:
    return bool(SHORTAGE.search(output) or FAILED_ALLOCATION.search(output.encode()))


def _quoted(output: str) -> str:
    lines = [line[:LINE_CHARACTERS] for line in output.splitlines() if line.strip()]
    shown = "".join(f"\n  {line}" for line in lines[-LINES_SHOWN:])
    return f"; the end of its output:{shown}" if shown else "; it wrote nothing"
