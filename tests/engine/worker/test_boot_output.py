"""The message about a process that died while it started quotes the end of its output and tells causes apart."""

from __future__ import annotations

import os
import signal

import pytest

from datakit.engine.executor import BOOT_DEATH
from datakit.engine.worker.boot_output import LINE_CHARACTERS, LINES_SHOWN, BootDeathError, BootOutput
from datakit.engine.worker.exit_causes import TAIL_BYTES


@pytest.mark.parametrize(
    ("code", "output", "own"),
    [
        (1, "ImportError: no module named example", True),
        (0, "", True),
        (-signal.SIGSEGV, "", True),
        (-signal.SIGABRT, "terminate called", True),
        (-signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'", False),
        (1, "MemoryError", False),
        (1, "OSError: [Errno 12] Cannot allocate memory", False),
        (1, "BlockingIOError: [Errno 11] Resource temporarily unavailable", False),
        (-signal.SIGKILL, "", False),
        (-signal.SIGTERM, "", False),
        (-40, "", False),  # a real-time signal
        (None, "", False),
    ],
)
def test_memory_and_signals_from_outside_do_not_count(code: int | None, output: str, own: bool) -> None:
    assert (BootDeathError("the fork server died", code, output).error_type == BOOT_DEATH) is own


def test_message_quotes_the_last_lines() -> None:
    output = "\n\n".join(f"line {number} {'x' * LINE_CHARACTERS}" for number in range(100))
    first, *quoted = str(BootDeathError("the fork server died", 3, output)).splitlines()
    assert first == "the fork server died (exit code 3); the end of its output:"
    assert [line.split()[1] for line in quoted] == [str(number) for number in range(100 - LINES_SHOWN, 100)]
    assert {len(line) for line in quoted} == {2 + LINE_CHARACTERS}


def test_end_of_a_long_output_is_kept() -> None:
    output = BootOutput()
    os.write(output.descriptor, b"\xff" * TAIL_BYTES + b"the end")
    assert output.text().endswith("\ufffdthe end") and len(output.text()) == TAIL_BYTES
    output.close()
