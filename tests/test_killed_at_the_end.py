"""A driver killed between a step's manifest and its tidying up: the next run finds the step done, and tidies up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from datakit.engine.driver import RunOptions, run_step
from datakit.engine.local import LocalExecutor
from datakit.engine.watch import Silent
from datakit.storage import atomic
from tests import engine_tasks
from tests.trees import tree


def test_what_a_killed_driver_left_beside_its_manifest_goes(tmp_path: Path) -> None:
    step, local = engine_tasks.number_step(str(tmp_path)), LocalExecutor(1)
    run_step(step, engine_tasks.numbers(2), lambda: local, RunOptions(), Silent())
    local.close()
    before = tree(str(tmp_path))
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    name = atomic.temporary_name("manifest.json").replace(f"-{os.getpid()}-", f"-{int(dead.stdout)}-")
    (tmp_path / "exchange").mkdir()
    for left in (name, "exchange/run.arrow", "partial.json"):
        (tmp_path / left).write_text("left")
    alive = tmp_path / atomic.temporary_name("of-a-live-process")
    alive.touch()
    standing = run_step(step, engine_tasks.numbers(2), lambda: local, RunOptions(), Silent())
    assert standing.totals.rows == 4
    assert tree(str(tmp_path)) == before
    assert not (tmp_path / name).exists() and not (tmp_path / "exchange").exists()
    assert alive.exists()
