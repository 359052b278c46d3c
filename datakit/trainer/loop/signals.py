"""Turns SIGTERM and Ctrl-C into requests to end a run after its current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from datakit.exit_codes import ExitCode


@contextmanager
def stop_requests() -> Iterator[Mapping[int, bool]]:
    """Yield a mapping from SIGTERM and SIGINT to booleans, each of which is True once its signal has arrived. Outside
    the main thread, both stay False. A second signal ends the run immediately.
    """
    arrived = {int(signal.SIGTERM): False, int(signal.SIGINT): False}
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return

    def request(number: int, _: Any) -> None:
        if any(arrived.values()):
            raise ending(number == signal.SIGTERM)
        arrived[number] = True

    before = {number: signal.signal(number, request) for number in arrived}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ending(terminated: bool) -> BaseException:
    """Return the exception that ends a run after SIGTERM or, if `terminated` is false, after Ctrl-C."""
    return SystemExit(ExitCode.TERMINATED) if terminated else KeyboardInterrupt()
