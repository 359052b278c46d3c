"""A passages step has the same bytes on Ray, and after its driver was killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from datakit.api import run
from tests.support.engine.runs import attempts
from tests.support.faults.cluster import SharedCluster
from tests.support.passages.shelf import recipe_with
from tests.support.paths import REPOSITORY
from tests.support.trees import tree


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_with(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(scope="module")
def expected(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a run that nothing disturbs."""
    root = tmp_path_factory.mktemp("calm")
    run(recipe, root=root, workers=2)
    return tree(str(root))


@pytest.mark.parametrize("phase", ["copies", "stretches", "texts", "substrings", "write"])
def test_a_killed_run_continues_where_it_stopped(
    recipe: Path, expected: dict[str, str], tmp_path: Path, phase: str
) -> None:
    command = [sys.executable, "-m", "tests.support.passages.shelf", str(recipe), str(tmp_path), phase]
    killed = subprocess.run(command, cwd=REPOSITORY, env=os.environ, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    (step,) = (tmp_path / "shelf").glob("passages-*")
    assert not (step / "manifest.json").exists()
    before = done(step)  # without tasks that ended just before the kill: their lines were not written yet
    run(recipe, root=tmp_path, workers=4)
    assert tree(str(tmp_path)) == expected
    assert all(done(step)[name] == count for name, count in before.items())


def done(step: Path) -> Counter[str]:
    """Count the tasks of each phase that were done, including repetitions."""
    return Counter(line.phase for line in attempts(step) if line.result is not None)


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
def test_ray_writes_the_same_bytes(
    recipe: Path, expected: dict[str, str], shared_cluster: SharedCluster, tmp_path: Path
) -> None:
    run(recipe, root=tmp_path, workers=2, ray=shared_cluster.cluster.address)
    assert tree(str(tmp_path)) == expected
