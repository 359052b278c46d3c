"""A logged batch is made again from the caches; what cannot be made again is refused or left out with a reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.validate.validation import Report, validate
from tests.support.validate.damage import only

pytestmark = pytest.mark.xdist_group("validate")


@pytest.fixture
def run(whole_root: Path) -> str:
    return str(only(whole_root, "small/train-*"))


def batches(report: Report) -> tuple[int, list[str]]:
    """Return how many batches were compared, and what was left out."""
    (result,) = (one for step in report.steps for one in step.results if one.check == "batches")
    return result.amounts["batch"], result.skipped


@pytest.mark.parametrize("number", [1, 3, 5, 6])
def test_named_step_is_made_again(run: str, number: int) -> None:
    report = validate(run, training_step=number)
    assert (report.findings, batches(report)) == ([], (1, []))


def test_last_step_is_made_again_only_with_deep(run: str) -> None:
    assert batches(validate(run, deep=True)) == (1, [])
    count, skipped = batches(validate(run))
    assert (count, len(skipped)) == (0, 1)


def test_step_without_a_row_is_refused(run: str) -> None:
    with pytest.raises(UsageError, match="steps 1 to 6 have rows"):
        validate(run, training_step=7)


def test_unfinished_run_is_checked_without_its_batches(whole_root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(only(whole_root, "small/train-*"), tmp_path / "train-0123456789ab"))
    (copy / "manifest.json").unlink()
    report = validate(str(copy), deep=True)
    (step,) = report.steps
    compared = {one.check: bool(one.amounts) for one in step.results}
    assert (report.findings, compared) == ([], {"checkpoints": True, "metrics": True, "batches": False})
    with pytest.raises(UsageError, match="is unfinished"):
        validate(str(copy), training_step=3)
