"""Failures that may pass are repeated after a wait, for a limited time."""

from __future__ import annotations

import pytest

from datakit.download.web.patience import LONGEST_WAIT, PassingError, Patience, asked_wait
from datakit.errors import StorageError
from tests.support.hub_server.downloads import VirtualClock


def test_waits_double_and_end() -> None:
    time = VirtualClock()
    patience = Patience("a", time.clock())
    for _ in range(5):
        patience.wait(PassingError("busy"))
    with pytest.raises(StorageError, match=r"the download of a failed 6 times in a row; the last error was: busy; run"):
        patience.wait(PassingError("busy"))
    assert all(0.75 * 2**n <= wait <= 1.25 * 2**n for n, wait in enumerate(time.waits)) and len(time.waits) == 5


def test_progress_starts_the_count_again() -> None:
    patience = Patience("a", VirtualClock().clock())
    for _ in range(20):
        patience.wait(PassingError("busy"))
        patience.succeeded()


def test_server_is_not_asked_before_the_time_that_it_names() -> None:
    time = VirtualClock()
    Patience("a", time.clock()).wait(PassingError("busy", 90.0))
    assert 90 < time.passed <= 91
    with pytest.raises(StorageError, match="asks to wait 901 s; run again after that time"):
        Patience("a", time.clock()).wait(PassingError("busy", LONGEST_WAIT + 1))
    assert time.passed <= 91


def test_date_in_the_header_is_compared_with_the_clock() -> None:
    clock = VirtualClock().clock()  # its time begins on 1 July 2026, 10:00 GMT
    assert asked_wait("Wed, 01 Jul 2026 10:02:00 GMT", clock) == 120
    assert asked_wait("Wed, 01 Jul 2026 09:00:00 GMT", clock) == 0
    assert asked_wait("tomorrow", clock) is None
