"""A transform that changed while its `transform_version` stayed the same is noted by `plan` and `run`."""

from __future__ import annotations

from pathlib import Path

import pytest

import datakit
from datakit.engine.executor import Cause
from datakit.engine.ledger.code_changes import made_with_other_code
from datakit.engine.ledger.ledger import AttemptLine, LedgerWriter, driver_name
from datakit.engine.task import TaskResult
from datakit.errors import StepFailedError

CODE = "def keep(batch):\n    return batch{}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe whose transform is in a module beside it."""
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "noted_filters.py").write_text(CODE.format(""))
    (tmp_path / "recipe.toml").write_text(
        'name = "made"\n[[sources]]\nname = "web"\nurl = "in.jsonl"\n'
        'transform = "noted_filters:keep"\ntransform_version = 3\n'
    )
    return tmp_path / "recipe.toml"


def test_changed_transform_of_a_finished_step_is_noted(recipe: Path) -> None:
    root = recipe.parent / "root"
    assert datakit.run(recipe, root, workers=1).notes == ()
    assert datakit.run(recipe, root, workers=1).notes == ()
    (recipe.parent / "noted_filters.py").write_text(CODE.format(".slice(1)"))
    (planned,) = datakit.plan(recipe, root).notes
    result = datakit.run(recipe, root, workers=1)
    assert result.notes == (planned,) and result.reused
    assert planned.startswith("normalize web: the file of transform 'noted_filters:keep' has changed since this step")
    assert "transform_version (now 3)" in planned
    changed = ["sources.web.transform_version=4"]
    assert datakit.run(recipe, root, workers=1, settings=changed).steps_of("normalize")[0].manifest.totals.rows == 1


def test_repaired_transform_that_finished_no_task_is_not_noted(recipe: Path) -> None:
    root = recipe.parent / "root"
    (recipe.parent / "noted_filters.py").write_text(CODE.format(".no_such_method()"))
    with pytest.raises(StepFailedError):
        datakit.run(recipe, root, workers=1)
    (recipe.parent / "noted_filters.py").write_text(CODE.format(""))
    assert datakit.plan(recipe, root).notes == ()
    assert datakit.run(recipe, root, workers=1).notes == ()


def test_finished_task_of_an_unfinished_step_counts(tmp_path: Path) -> None:
    ledger = LedgerWriter(str(tmp_path), driver_name(), 2, "code 1")
    ledger.start()
    ledger.append(AttemptLine("route", "00000", "d", 1, Cause.DONE, TaskResult()))
    ledger.close()
    assert made_with_other_code(str(tmp_path), "code 2", finished=False)
    assert not made_with_other_code(str(tmp_path), "code 1", finished=False)
