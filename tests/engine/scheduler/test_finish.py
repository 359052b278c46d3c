"""Outputs are checked before the manifest is written, and leftovers of a killed driver are removed after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import datakit
from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.observer import Observer
from datakit.engine.ray_backend.agreement import announce_compilation, nonce_below, take_announcement
from datakit.engine.task import Phase, Step
from datakit.errors import CorruptError, NotFoundError
from datakit.storage import atomic
from datakit.storage.manifest import Manifest, find_manifest
from tests.support.engine.runs import (
    outputs,
    run_numbers,
)
from tests.support.faults.abandoned import unlocked_name
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import tree


class Meddler(Observer):
    """Changes the step's directory when the second phase starts, and remembers finished tasks."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self._meddle = meddle
        self.done: list[str] = []

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        if phase.name == "second":
            self._meddle()

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        self.done += [outcome.key, *(one.key for one in outcome.more)]


def run_meddled(directory: Path, meddle: Callable[[], object]) -> tuple[Manifest, list[str]]:
    """Run the step of numbers with a Meddler; return its manifest and the tasks that ran."""
    observer = Meddler(meddle)
    return run_numbers(directory, observer=observer), observer.done


def test_output_removed_during_the_run_is_noticed(tmp_path: Path) -> None:
    step, untouched = tmp_path / "step", run_numbers(tmp_path / "untouched")

    def tidy() -> None:
        (step / "number-002.txt").unlink()
        (step / "number-004.txt").unlink()

    with pytest.raises(NotFoundError, match=r"number-002\.txt is missing from .*step; .* run again"):
        run_meddled(step, tidy)
    assert find_manifest(str(step)) is None
    manifest, done = run_meddled(step, lambda: None)
    assert (manifest, sorted(done)) == (untouched, ["number-002", "number-004"])
    assert outputs(step) == outputs(tmp_path / "untouched")


def test_output_changed_during_the_run_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "number-002.txt"
    with pytest.raises(
        CorruptError, match=r"number-002\.txt .* has 4 bytes, but its task wrote 1; .* remove it and run"
    ):
        run_meddled(tmp_path, lambda: path.write_text("else"))
    path.unlink()
    assert run_meddled(tmp_path, lambda: None)[1] == ["number-002"]


def test_names_are_durable_before_the_manifest_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, after a power cut, the manifest might exist while a file that it lists has lost its name."""
    synced: list[str] = []
    sync, link = os.fsync, os.link

    def record_sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def record_link(source: str, target: str) -> None:
        if str(target).endswith("manifest.json"):
            synced.append("link of the manifest")
        link(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "link", record_link)
    step = tmp_path / "root" / "step"
    run_numbers(step)
    named = synced.index("link of the manifest")
    assert str(step) in synced[:named]
    assert {str(step), str(step.parent)} <= set(synced[named:])


def test_leftovers_beside_a_manifest_are_removed(tmp_path: Path) -> None:
    run_numbers(tmp_path, 2)
    before = tree(str(tmp_path))
    name = unlocked_name(tmp_path, "manifest.json").name
    (tmp_path / "exchange").mkdir()
    for left in (name, "exchange/run.arrow", "partial.json"):
        (tmp_path / left).write_text("left")
    with atomic.staging(str(tmp_path / "of-a-live-process")) as alive:
        assert run_numbers(tmp_path, 2).totals.rows == 4
        assert tree(str(tmp_path)) == before
        assert not (tmp_path / name).exists() and not (tmp_path / "exchange").exists()
        assert alive.exists()


def test_leftover_cluster_probes_are_removed(tmp_path: Path) -> None:
    recipe, root = write_shelf(tmp_path / "shelf", sources=1), tmp_path / "root"
    (root / ".probe").mkdir(parents=True)
    dead = unlocked_name(root / ".probe", "nonce")
    dead.touch()
    with nonce_below(str(root)) as expected:
        announce_compilation(expected)
        kept = {path.name for path in (root / ".probe").iterdir()} - {dead.name}
        datakit.run(recipe, root=root, until="download")
        assert {path.name for path in (root / ".probe").iterdir()} == kept, "those of a live process stay"
        assert take_announcement(expected)
    assert not (root / ".probe").exists()
    (root / ".probe").mkdir()
    for path in (dead, root / ".probe" / f"compiling{dead.name}"):
        path.touch()
    assert datakit.run(recipe, root=root, until="download").reused
    assert not (root / ".probe").exists()
