"""The limits of one rendering of a conversation. Both the process that renders and its parent import this module."""

from __future__ import annotations

import resource
import signal
from dataclasses import dataclass

GRACE_SECONDS = 2  # CPU seconds between the limit that a handler enforces and that of the kernel


@dataclass(frozen=True)
class Limits:
    """The limits of one rendering: seconds of CPU time, bytes of memory beyond that of the idle process, and the number
    of characters that it may write.
    """

    seconds: float = 10.0
    memory: int = 512 << 20
    characters: int = 16 << 20

    def begin(self) -> None:
        """Start the time of a rendering in this process: SIGPROF comes at its end, and SIGXCPU a little later."""
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        used = resource.getrusage(resource.RUSAGE_SELF)
        end = int(used.ru_utime + used.ru_stime + self.seconds) + GRACE_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))

    def end(self) -> None:
        """Stop the time of a rendering."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def exceeded(self, kind: str) -> str:
        """Describe the limit that was exceeded; `kind` is the name of a field."""
        return {
            "seconds": f"takes more than {self.seconds:g} s of CPU time",
            "memory": f"needs more than {self.memory >> 20} MiB of memory",
            "characters": f"writes more than {self.characters:,} characters",
        }[kind]
