"""Roots written by earlier versions: finished steps are still found, and half-done ones are completed.

`fixtures/root-0.1` was written by the last commit before modules moved into their present packages (95f8bb2), so its
ledgers name task functions by their old paths.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import datakit
from datakit.errors import TokenizerError
from tests.support.paths import FIXTURES
from tests.support.trees import tree

PARTIAL_STAGES = ("dedup", "consolidate")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A copy of the root with its recipe and sources."""
    return shutil.copytree(FIXTURES / "root-0.1", tmp_path / "earlier")


def test_every_finished_step_is_reused(earlier: Path) -> None:
    before = tree(str(earlier / "data"))
    result = datakit.run(earlier / "recipe.toml", earlier / "data")
    assert [step.label for step in result.steps if not step.reused] == []
    assert {path: value for path, value in tree(str(earlier / "data")).items() if path in before} == before


def test_plan_of_a_finished_root_has_nothing_to_do(earlier: Path) -> None:
    plan = datakit.plan(earlier / "recipe.toml", earlier / "data")
    assert {step.state for step in plan.steps} == {"done"}


def test_half_done_root_ends_in_the_same_bytes(earlier: Path) -> None:
    """Manifests are missing, one stage has lost its outputs, and the ledgers name functions that have moved."""
    root = earlier / "data"
    outputs = {path: value for path, value in tree(str(root)).items() if not path.startswith(".cache")}
    for stage in PARTIAL_STAGES:
        (directory,) = (root / "shelf").glob(f"{stage}-*")
        (directory / "manifest.json").unlink()
    for shard in (root / "shelf").glob("consolidate-*/*/*.parquet"):
        shard.unlink()
    result = datakit.run(earlier / "recipe.toml", root, workers=1)
    assert [step.stage for step in result.steps if not step.reused] == list(PARTIAL_STAGES)
    assert {path: value for path, value in tree(str(root)).items() if not path.startswith(".cache")} == outputs


def test_half_done_cache_of_an_unsafe_chat_format_is_refused(earlier: Path) -> None:
    (directory,) = (earlier / "data" / "shelf").glob("tokenize-*")
    (directory / "manifest.json").unlink()
    with pytest.raises(TokenizerError, match="a message's content could imitate"):
        datakit.run(earlier / "recipe.toml", earlier / "data", workers=1)
