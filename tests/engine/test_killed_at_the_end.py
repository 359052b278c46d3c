"""A driver killed when all was done but its tidying up: the next run finds its work done, and tidies up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import datakit
from datakit.engine.observe.observer import SilentObserver
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.storage import atomic
from tests.support.engine import engine_tasks
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import tree


def temporary_name_of_the_dead(name: str) -> str:
    """What a process that is no more would have called its file."""
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return atomic.temporary_name(name).replace(f"-{os.getpid()}-", f"-{int(dead.stdout)}-")


def test_what_a_killed_driver_left_beside_its_manifest_goes(tmp_path: Path) -> None:
    step, local = engine_tasks.number_step(str(tmp_path)), LocalExecutor(1)
    run_step(step, engine_tasks.numbers(2), lambda: local, RunOptions(), SilentObserver())
    local.close()
    before = tree(str(tmp_path))
    name = temporary_name_of_the_dead("manifest.json")
    (tmp_path / "exchange").mkdir()
    for left in (name, "exchange/run.arrow", "partial.json"):
        (tmp_path / left).write_text("left")
    alive = tmp_path / atomic.temporary_name("of-a-live-process")
    alive.touch()
    standing = run_step(step, engine_tasks.numbers(2), lambda: local, RunOptions(), SilentObserver())
    assert standing.totals.rows == 4
    assert tree(str(tmp_path)) == before
    assert not (tmp_path / name).exists() and not (tmp_path / "exchange").exists()
    assert alive.exists()


def test_what_a_killed_driver_left_for_the_nodes_of_its_cluster_goes_with_a_run_that_asks_none(tmp_path: Path) -> None:
    recipe, root = write_shelf(tmp_path / "shelf", sources=1), tmp_path / "root"
    (root / ".probe").mkdir(parents=True)
    for name in (temporary_name_of_the_dead("nonce"), atomic.temporary_name("nonce")):
        (root / ".probe" / name).touch()
    datakit.run(recipe, root=root, until="download")
    assert [path.name for path in (root / ".probe").iterdir()] == [name], "that of a live process stays"
    (root / ".probe" / name).rename(root / ".probe" / temporary_name_of_the_dead("nonce"))
    assert datakit.run(recipe, root=root, until="download").reused
    assert not (root / ".probe").exists()
