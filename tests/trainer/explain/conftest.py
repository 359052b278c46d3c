"""One finished run with planted documents, for all tests of the room."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit.trainer.commands import train_file
from tests.support.trainer.trainer_runs import silent

pytest.importorskip("pyarrow")
from tests.support.explain.planted import write_planted


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a finished run with planted documents. Tests must not change it."""
    file = write_planted(tmp_path_factory.mktemp("planted"))
    return train_file(file, str(file.parent), say=silent).directory


@pytest.fixture
def copied(run: str, tmp_path: Path) -> Path:
    """A copy of the run's root, which a test may change; the run's directory in it."""
    shutil.copytree(Path(run).parents[1], tmp_path / "root")
    return tmp_path / "root" / Path(run).parent.name / Path(run).name
