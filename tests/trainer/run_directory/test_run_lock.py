"""Only one process trains a run at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.trainer.run_directory.run_lock import exclusive
from datakit.trainer.run_manifest import run_place
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import TextBytes, saving_run, stopped


def test_a_second_process_in_the_same_run_is_refused(tmp_path: Path) -> None:
    run = saving_run()
    directory = run_place(str(tmp_path), run, TextBytes().record()).directory
    with exclusive(directory), pytest.raises(UsageError, match=r"is in use by process \d+ on .*; wait for that"):
        train(run, TextBytes(), str(tmp_path))
    stopped(run, tmp_path, 1)
