"""A child starts clean, with the preloads and nothing else."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.engine.executor import Attempt, Cause
from datakit.engine.task import Task
from tests.support.engine import engine_tasks
from tests.support.engine.runs import DEADLINE_SECONDS, fresh_executor, run_task


def test_child_is_clean() -> None:
    facts = run_task("look_around").result
    assert facts is not None
    modules = facts.details["modules"]
    assert not {"ray", "jax", "datakit.cli", "pandas", "pytest", "_pytest"} & set(modules)
    assert facts.details["main"] is None  # not pytest's, not the fork server's
    assert facts.details["threads"] == 1
    assert facts.details["arrow"] == 1 and facts.details["rayon"] == "1"


def test_child_leaves_no_core_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the user has switched core dumps on, in the folder in which datakit was started."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    monkeypatch.chdir(tmp_path)
    try:
        with fresh_executor(1) as executor:
            for fault in (None, "segfault"):
                arguments = {"number": 1, "fault": fault}
                function = "look_around" if fault is None else "write_number"
                task = Task("only", f"tests.support.engine.engine_tasks:{function}", arguments)
                executor.submit(Attempt(task, "test", str(tmp_path), 1, 1, 1 << 30, ()))
                (outcome,) = executor.wait(DEADLINE_SECONDS)
                if outcome.result is not None:
                    assert max(outcome.result.details["core"]) <= 1, (
                        "for the kernel, 1 means no dump to a program either"
                    )
            assert outcome.cause is Cause.CRASH
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    assert not list(tmp_path.glob("*core*"))


def test_failing_preload_is_reported_with_its_reason() -> None:
    outcome = run_task("look_around", preloads=(engine_tasks.BAD_PRELOAD,))
    assert outcome.cause is Cause.REFUSED
    assert outcome.message == "the tokenizer has no vocabulary"


LATE_NAME = """
import ctypes, threading, time
from datakit.engine.worker.child import require_one_thread
from datakit.errors import TaskError

PR_SET_NAME = 15
library, end = ctypes.CDLL(None), threading.Event()

def run(name):
    time.sleep(0.3)  # as if the machine were busy
    library.prctl(PR_SET_NAME, name)
    end.wait()

for name in (b"jemalloc_bg_thd", b"other"):
    threading.Thread(target=run, args=(name,), daemon=True).start()
    try:
        require_one_thread("the libraries")
        print("one thread")
    except TaskError as error:
        print(error)
"""


def test_new_threads_may_take_their_time_to_name_themselves() -> None:
    """Until then, the harmless thread of pyarrow's allocator has the name of the process."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as in a fork server; otherwise, numpy starts threads
    command = [sys.executable, "-c", LATE_NAME]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert first == "one thread"
    assert second == "the libraries started threads (other), so the server cannot fork safely"
