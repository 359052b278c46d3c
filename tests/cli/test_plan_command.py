"""`datakit plan` shows states, reasons and resources."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import invoke


def test_plan_shows_states_and_reasons(finished: Path) -> None:
    shown = invoke("plan", "shelf/shelf.toml", "--root", "root", cwd=finished)
    done = shown.stdout
    assert "next: datakit run shelf/shelf.toml --root root" in shown.stderr
    assert "11 steps, 11 done" in " ".join(done.split())
    assert "workers:" in done
    assert "memory:" in done
    assert "disk:    about 0 B more needed" in done
    changed = invoke(
        "plan", "shelf/shelf.toml", "--root", "root", "--set", "dedup.threshold=0.5", "--json", cwd=finished
    )
    plan = json.loads(changed.stdout)
    assert [entry["stage"] for entry in plan["steps"] if entry["state"] == "to run"] == [
        "dedup", "select", "consolidate", "train-tokenizer", "tokenize",
    ]  # fmt: skip
