"""`datakit run` and `datakit gc` share a root without harm."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import datakit
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Step
from datakit.errors import NotFoundError, RetentionError, StorageError, UsageError
from datakit.leases import exclusive_removal
from datakit.leases.exclusive_removal import remove_unused
from datakit.leases.lease import Lease
from datakit.leases.lease_files import USE, read_leases
from datakit.retention.collection import find_garbage, remove_garbage
from datakit.retention.pinning import pin_step
from datakit.storage import removal
from datakit.storage.manifest import Manifest
from tests.support.command_line import invoke
from tests.support.engine.runs import wait_until
from tests.support.paths import REPOSITORY
from tests.support.retention.tiny_hosts import expire
from tests.support.retention.tiny_roots import step_path, steps_of, trashed, write_step

FIRST, SECOND = "dedup.threshold=0.8", "dedup.threshold=0.9"


def start(folder: Path, setting: str) -> subprocess.Popen[bytes]:
    """Start a run of the shelf in a process of its own."""
    words = ["run", "shelf/shelf.toml", "--root", "root", "--workers", "1", "--set", setting]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [sys.executable, "-m", "datakit", *words], cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def run_beside_collections(folder: Path, setting: str, kill_after: float | None = None) -> None:
    """Run a recipe while this process collects garbage again and again. kill_after: kill the run after this time."""
    process, begun = start(folder, setting), time.monotonic()
    while process.poll() is None:
        remove_garbage(str(folder / "root"), 0.0, unreachable=True)
        if kill_after is not None and time.monotonic() - begun > kill_after:
            process.kill()
        time.sleep(0.05)
    error = process.communicate()[1].decode()
    assert process.returncode == 0 or (kill_after is not None and process.returncode == -9), error


def require_good(folder: Path) -> None:
    """Check that the current cache is whole, and that nothing else than its steps is left after a collection."""
    root = str(folder / "root")
    expire(root)
    remove_garbage(root, 0.0, unreachable=True)
    assert find_garbage(root, 0.0).unreachable == ()
    done = invoke("validate", "root/shelf", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_runs_beside_collections_lose_nothing(finished_copy: Path) -> None:
    """The last run returns to settings whose steps are unreachable when it starts, unless it holds them in time."""
    first = steps_of(str(finished_copy / "root"))
    for setting in (SECOND, FIRST):
        run_beside_collections(finished_copy, setting)
    require_good(finished_copy)
    assert steps_of(str(finished_copy / "root")) == first
    assert trashed(str(finished_copy / "root"))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_killed_runs_beside_collections_lose_nothing(finished_copy: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        run_beside_collections(finished_copy, chance.choice((FIRST, SECOND)), chance.uniform(1, 15))
        if chance.random() < 0.5:
            expire(str(finished_copy / "root"))
    run_beside_collections(finished_copy, FIRST)
    require_good(finished_copy)


class LeaseReader(Observer):
    """Reads the leases of a root whenever a step ends."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.found: list[set[str]] = []

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        self.found += [set(lease.content.steps) for lease in read_leases(self.root, USE)]


def test_lease_of_a_run_lists_finished_steps_too(finished_copy: Path) -> None:
    root = str(finished_copy / "root")
    reader = LeaseReader(root)
    result = datakit.run(finished_copy / "shelf/shelf.toml", root, observer=reader)
    steps = {step.directory.removeprefix(f"{root}/") for step in result.steps}
    assert result.reused
    assert [found for found in reader.found if found >= steps] == reader.found != []
    assert read_leases(root, USE) == []


def test_fresh_run_does_not_remove_a_pinned_step(finished_copy: Path) -> None:
    root = finished_copy / "root"
    ((directory, _), (published, _)) = pin_step(str(root / "shelf"), "published", lambda text: None)
    before = steps_of(str(root))
    with pytest.raises(UsageError, match="is pinned, so it is not removed; the reason for the pin: published"):
        datakit.run(finished_copy / "shelf/shelf.toml", root, fresh=True)
    assert steps_of(str(root)) == before
    assert Path(directory).exists() and "consolidate-" in published


def test_fresh_run_does_not_remove_a_step_that_another_process_uses(finished_copy: Path) -> None:
    root = finished_copy / "root"
    before = steps_of(str(root))
    cache = next(step for step in before if step.startswith("shelf/tokenize-"))
    with Lease(str(root), USE, "datakit train") as other:
        other.hold([f"{root}/{cache}"])
        with pytest.raises(RetentionError, match=rf"{cache} is in use by datakit train \(process \d+ on "):
            datakit.run(finished_copy / "shelf/shelf.toml", str(root), fresh=True)
        assert steps_of(str(root)) == before
        expire(str(root))
        result = datakit.run(finished_copy / "shelf/shelf.toml", str(root), fresh=True)
        with pytest.raises(StorageError, match="has expired"):
            other.require()
    assert not result.reused and steps_of(str(root)) == before


def test_run_waits_while_a_fresh_run_removes_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process takes its lease after the leases were read."""
    step, said = f"{tmp_path}/{write_step(str(tmp_path), step_path('shelf', 'tokenize', '0'))}", list[str]()

    def hold() -> None:
        with Lease(str(tmp_path), USE, "datakit train", said.append) as other, pytest.raises(NotFoundError):
            other.hold_finished([step])

    thread = threading.Thread(target=hold)

    def remove(directory: str) -> None:
        thread.start()
        wait_until(lambda: bool(said))
        removal.remove_tree(directory)

    monkeypatch.setattr(exclusive_removal, "removal", SimpleNamespace(remove_tree=remove))
    with Lease(str(tmp_path), USE, "datakit run shelf") as own:
        own.hold([step])
        remove_unused(own, [step], "datakit run shelf --fresh", said.append)
    thread.join()
    assert len(said) == 1 and said[0].startswith("waiting for datakit run shelf --fresh (process ")
    assert not Path(step).exists()
