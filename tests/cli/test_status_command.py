"""`datakit status` shows the tasks of finished and failed steps (a failed one: test_run_command.py)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import invoke


def test_status_shows_every_task_of_a_root(finished: Path) -> None:
    shown = invoke("status", "root", cwd=finished)
    assert shown.returncode == 0
    assert shown.stdout.count(": done, ") == 10
    steps = json.loads(invoke("status", "root", "--json", cwd=finished).stdout)["steps"]
    assert {task["state"] for entry in steps for task in entry["tasks"]} == {"done"}
    assert all(task["attempts"] == 1 for entry in steps for task in entry["tasks"])
