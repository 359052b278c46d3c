"""A run under random deaths leaves the bytes of a quiet one, and nothing else: a few rounds of the long benchmark."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.faults.chaos import Quiet, run_round

ROUNDS = 3


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Quiet:
    """An undisturbed run."""
    return Quiet.run(tmp_path_factory.mktemp("quiet"))


@pytest.mark.parametrize("number", range(ROUNDS))
def test_random_kills_and_faults_change_no_byte_and_leave_nothing(quiet: Quiet, tmp_path: Path, number: int) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    report = run_round(quiet, tmp_path / "round", seed, hangs=number == 0)
    assert not report.troubles, report.line()
    assert report.kills or report.faults, "a round in which nothing happened"
