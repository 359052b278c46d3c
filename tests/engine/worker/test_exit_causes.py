"""The causes of an attempt's end are told apart and say where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.engine.executor import Attempt, Cause
from datakit.engine.task import Task, encode
from datakit.engine.worker import exit_causes
from datakit.engine.worker.reuse.attempt_files import FAULT_FILE
from tests.support.engine.runs import (
    run_task,
    shared_executor,
)


def test_causes_are_distinguished() -> None:
    assert run_task("write_number", number=1, fault="raise").cause is Cause.ERROR
    assert run_task("write_number", number=1, fault="refuse").cause is Cause.REFUSED
    crash = run_task("write_number", number=1, fault="segfault")
    assert (crash.cause, crash.error_type) == (Cause.CRASH, "SIGSEGV")
    assert "engine_tasks.py" in crash.message  # faulthandler says where
    slow = run_task("write_number", number=1, fault="cpu limit")
    assert (slow.cause, slow.error_type) == (Cause.HANG, "CpuLimit") and "more CPU time" in slow.message
    assert run_task("write_number", number=1, fault="exit").cause is Cause.CRASH
    memory = run_task("write_number", number=1, fault="memory", memory_bytes=200 << 20)
    assert (memory.cause, memory.error_type) == (Cause.MEMORY, "OverBudget")
    assert memory.peak_memory < 700 << 20


def test_frames_beyond_the_tail_are_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = "".join(f'  File "other.py", line {number} in wait\n' for number in range(40))
    crashed = 'Current thread 0x1 (most recent call first):\n  File "task.py", line 7 in work\n'
    (tmp_path / FAULT_FILE).write_text(f"{crashed}\nThread 0x2 (most recent call first):\n{frames}")
    assert "task.py" in exit_causes._innermost_frames(tmp_path)
    monkeypatch.setattr(exit_causes, "TAIL_BYTES", 300)
    assert exit_causes._innermost_frames(tmp_path) == ""


def test_hang_message_says_where(tmp_path: Path) -> None:
    local = shared_executor(1)
    shared = {"poison": {"3": "loop"}, "seconds": 0.0, "batch": 2}
    (tmp_path / "shared.msgpack").write_bytes(encode(shared))
    task = Task("only", "tests.support.engine.poison_tasks:digest_records", {"first": 0, "stop": 10})
    local.submit(Attempt(task, "test", str(tmp_path), 1, 1, 1 << 30, shared="shared.msgpack", hang_seconds=0.5))
    (outcome,) = local.wait(120)
    assert outcome.cause is Cause.HANG
    assert "no progress for 0.5 s after 0 records" in outcome.message
    assert "records.txt:2 and 1 more" in outcome.message
    assert "poison_tasks.py" in outcome.message and "in _loop" in outcome.message
