"""A simulated passages step has the phases of a real one, and its counts add up at any size."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.pipeline.simulate.clock import Cluster
from datakit.pipeline.simulate.simulation import simulate
from datakit.recipe import load_recipe
from tests.support.passages.shelf import TABLES


@pytest.mark.parametrize("size", [10**6, 10**11])
def test_simulated_step_has_all_phases(tmp_path: Path, size: int) -> None:
    path = tmp_path / "two.toml"
    tables = [f'[[sources]]\nname = "{name}"\nurl = "s3://bucket/{name}"\n' for name in ("web", "books")]
    path.write_text('name = "two"\n' + "\n".join(tables) + TABLES + '[tokenize]\ntokenizer = "bytes"\n')
    found = simulate(load_recipe(path), size, Cluster(3, 8))
    (step,) = [one for one in found.steps if one.stage == "passages"]
    phases = {one.phase: one for one in step.phases}
    assert [name for name in phases if not name.endswith("-merge")] == [
        "passages", "copies", "stretches", "texts", "substrings", "write",
    ]  # fmt: skip
    assert phases["passages"].exchanged > 0.05 * size
    assert step.partitions == sum(one.partitions for one in found.steps if one.stage == "normalize")
