"""Every change that a task leaves in its process is found and named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.engine.children.leaving_tasks import EFFECTS
from tests.support.paths import REPOSITORY

SCRIPT = """
import sys
from datakit.engine.worker.reuse.process_state import differences, process_state
from tests.support.engine.children.leaving_tasks import EFFECTS, wait_for_idle_threads
wait_for_idle_threads()
before = process_state()
EFFECTS[sys.argv[1]]()
print(*differences(before, process_state()), sep=", ")
"""
NAMES = {
    "pool": "",
    "nothing": "",
    "some memory": "",
    "memory": "",  # is judged separately
    "environment of C": "environment",
    "caught signals": "caught signals, signal handlers",
    "child processes": "open files, child processes",
    "waiting threads": "threads",
    "native threads": "threads",
    "ended child processes": "child processes",
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_effect_is_named(effect: str) -> None:
    if effect == "processors" and "processors" not in _difference("processors"):
        pytest.skip("this machine has one processor")
    assert _difference(effect) == NAMES.get(effect, effect)


def _difference(effect: str) -> str:
    command = [sys.executable, "-c", SCRIPT, effect]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY, timeout=60)
    return found.stdout.strip()
