"""`datakit status` shows the tasks of finished and failed steps (a failed one: test_run_command.py)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import invoke


def test_status_shows_every_task_of_a_root(finished: Path) -> None:
    shown = invoke("status", "root", cwd=finished)
    assert shown.returncode == 0
    assert shown.stdout.count("\n  done, ") == 10
    order = [Path(line).name.partition("-")[0] for line in shown.stdout.splitlines() if line.startswith("/")]
    assert order == [*["download"] * 2, *["normalize"] * 2, *["signatures"] * 2, *order[6:]]
    assert order[6:] == ["dedup", "consolidate", "train", "tokenize"]
    assert shown.stdout.count(", last active 20") == 10
    steps = json.loads(invoke("status", "root", "--json", cwd=finished).stdout)["steps"]
    assert {task["state"] for entry in steps for task in entry["tasks"]} == {"done"}
    assert all(entry["ended"] > 0 and entry["elapsed"] >= 0 for entry in steps)
    assert all(task["attempts"] == 1 for entry in steps for task in entry["tasks"])


def test_status_says_why_a_step_without_failed_tasks_is_partial(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_text('{"text": "one"}\n{"text": \n' + '{"text": "two"}\n' * 9)
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "raw"\nurl = "raw"\n')
    ran = invoke("run", "r.toml", "--root", "root", "--set", "normalize.max_quarantined=0", cwd=tmp_path)
    assert ran.returncode == 3
    assert ran.stderr.count("1 record cannot be used") == 1
    shown = invoke("status", "root", cwd=tmp_path).stdout
    assert "\n  1 record cannot be used, but max_quarantined allows 0" in shown
    assert "a.jsonl:16: not JSON" in shown
