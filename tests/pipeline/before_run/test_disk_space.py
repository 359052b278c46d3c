"""A run that a local disk cannot hold is refused before it starts, unless that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import datakit
from datakit.errors import NoSpaceError
from datakit.pipeline import estimate
from datakit.pipeline.before_run import disk_space
from datakit.pipeline.before_run.disk_space import temporary_bytes
from datakit.pipeline.graph import build
from datakit.pipeline.planning import Remaining
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.recipe import load_recipe

NEEDED = 150_000  # the files of the shelf have about 72 kB


def test_refusal_names_folder_sizes_and_override(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    monkeypatch.setattr(estimate, "disk_free", lambda folder: 10_000)
    with pytest.raises(NoSpaceError, match=r"this run needs about .* kB in .*/root for .*--ignore-disk-space"):
        datakit.run(shelf, root, workers=1, until="normalize")
    assert not list(root.glob("sources/*/normalize-*"))
    datakit.run(shelf, root, workers=1, until="normalize", ignore_disk_space=True)
    datakit.run(shelf, root, workers=1, until="normalize")  # nothing is left to write


def test_written_parts_of_an_unfinished_step_are_not_needed_again(shelf: Path, tmp_path: Path) -> None:
    before = datakit.plan(shelf, tmp_path / "root", until="normalize").disk_needed
    assert before is not None and 0 < before < NEEDED
    for step in datakit.plan(shelf, tmp_path / "root", until="normalize").steps:
        if step.stage == "normalize":
            Path(step.directory, "exchange").mkdir(parents=True)
            Path(step.directory, "exchange", "run").write_bytes(bytes(10_000))
    after = datakit.plan(shelf, tmp_path / "root", until="normalize").disk_needed
    assert after is not None and before - 20_000 <= after <= before - 10_000


def test_disk_of_temporary_files_is_compared_too(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "temporary_bytes", lambda *facts: 1 << 62)
    with pytest.raises(NoSpaceError, match="for temporary files"):
        datakit.run(shelf, tmp_path / "root", workers=1, until="normalize")


@pytest.mark.parametrize(
    ("root", "stages", "share"),
    [("/tmp", {"normalize"}, 0.0), ("/tmp", {"dedup"}, 0.2), ("memory://r", {"normalize", "dedup"}, 1.05)],
)
def test_temporary_files_follow_workers_and_partitions(shelf: Path, root: str, stages: set[str], share: float) -> None:
    graph = build(load_recipe(shelf), root, ListingOptions(dry_run=True))
    text, workers = 1 << 40, 3
    left = Remaining(frozenset(stages), 0, text)
    assert temporary_bytes(graph, left, workers) == pytest.approx(workers * (text >> 14) * share, rel=0.01)
    assert temporary_bytes(graph, Remaining(frozenset(stages), 0, None), workers) == 0
