"""Reports and lists show nothing to which a link leads out of the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import RootError
from datakit.serve.access import Access
from datakit.serve.app import Server
from datakit.serve.root import ServedRoot
from tests.support.small_shelf import step


def moved_out(path: Path, outside: Path) -> None:
    """Move a file or a directory out of the root, and leave a link to it."""
    path.rename(outside / path.name)
    path.symlink_to(outside / path.name)


@pytest.mark.parametrize("name", ["latest.json", "runs", "tokenize-*", "tokenize-*/manifest.json"])
def test_report_about_a_dataset_follows_no_link_out_of_the_root(finished_copy: Path, name: str) -> None:
    server = Server(ServedRoot(str(finished_copy / "root")), Access())
    moved_out(step(finished_copy, f"root/shelf/{name}"), finished_copy)
    with pytest.raises(RootError, match="outside of the root"):
        server.report({"dataset": "shelf"})


def test_report_about_a_run_follows_no_link_out_of_the_root(finished_copy: Path) -> None:
    server = Server(ServedRoot(str(finished_copy / "root")), Access())
    run = step(finished_copy, "root/shelf/runs/*")
    moved_out(run / "events.jsonl", finished_copy)
    with pytest.raises(RootError, match="outside of the root"):
        server.report({"kind": "runs", "dataset": "shelf", "run": run.name})


@pytest.mark.parametrize("name", ["tokenize-*", "tokenize-*/manifest.json"])
def test_steps_outside_of_the_root_are_not_listed(finished_copy: Path, name: str) -> None:
    server = Server(ServedRoot(str(finished_copy / "root")), Access())
    before = server.pages.page({}, "shelf").steps
    moved_out(step(finished_copy, f"root/shelf/{name}"), finished_copy)
    after = server.pages.page({}, "shelf")
    assert len(after.steps) == len(before) - 1
    assert any(text.startswith("1 of the directories") for text in after.problems)
