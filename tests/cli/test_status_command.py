"""`datakit status` shows the tasks of finished and failed steps (a failed one: test_run_command.py)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import invoke


def test_done_steps_have_one_line_each(finished: Path) -> None:
    shown = invoke("status", "root", cwd=finished)
    lines = shown.stdout.splitlines()
    assert lines[0] == "done:" and len(lines) == 2 + 2 * 12, "a line and a directory each"
    stages = [line.split()[0] for line in lines[2::2]]
    assert stages[:6] == [*["download"] * 2, *["normalize"] * 2, *["signatures"] * 2]
    assert stages[6:] == ["dedup", "select", "consolidate", "train-tokenizer", "contract", "tokenize"]
    assert "route" not in shown.stdout and "--all" in shown.stderr
    assert max(map(len, lines[2::2])) <= 80


def test_dataset_shows_the_steps_of_its_sources(finished: Path) -> None:
    assert invoke("status", "root/shelf", cwd=finished).stdout == invoke("status", "root", cwd=finished).stdout
    single = next((finished / "root" / "shelf").glob("dedup-*"))
    assert "done, " in invoke("status", single, cwd=finished).stdout


def test_partial_first_run_is_shown_for_its_dataset(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_text('{"text": "one"}\n{"text": \n' + '{"text": "two"}\n' * 9)
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "raw"\nurl = "raw"\n')
    assert invoke("run", "r.toml", "--root", "root", cwd=tmp_path).returncode == 3
    shown = invoke("status", "root/r", cwd=tmp_path)
    assert shown.returncode == 0
    first, *others = shown.stdout.splitlines()
    assert "/sources/raw/normalize-" in first, "what is not done comes first"
    assert any(line.startswith("download") for line in others)
    assert "act on the messages above, then repeat" in shown.stderr


def test_status_shows_every_task_of_a_root(finished: Path) -> None:
    shown = invoke("status", "root", "--all", cwd=finished)
    assert shown.returncode == 0
    assert shown.stdout.count("\n  done, ") == 12
    order = [Path(line).name.partition("-")[0] for line in shown.stdout.splitlines() if line.startswith("/")]
    assert order == [*["download"] * 2, *["normalize"] * 2, *["signatures"] * 2, *order[6:]]
    assert order[6:] == ["dedup", "select", "consolidate", "train", "contract", "tokenize"]
    assert shown.stdout.count(", last active 20") == 12
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
