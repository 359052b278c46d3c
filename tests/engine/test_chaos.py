"""A run with random kills and faults leaves the output of an undisturbed one, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.annotate.curated_shelf import write_curated_shelf
from tests.support.faults.chaos import Quiet, run_round

SOAK_ROUNDS, CURATED_ROUNDS = 30, 10


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Quiet:
    """Run undisturbed."""
    return Quiet.run(tmp_path_factory.mktemp("quiet"))


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> Quiet:
    """Run a recipe with annotators, rules and edits undisturbed."""
    return Quiet.run(tmp_path_factory.mktemp("curated"), write_curated_shelf)


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, SOAK_ROUNDS))])
def test_random_kills_and_faults_do_not_change_output(quiet: Quiet, tmp_path: Path, number: int) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    report = run_round(quiet, tmp_path / "round", seed, hangs=number > 0)
    assert not report.troubles, report.line()
    assert report.kills or report.faults, "nothing happened in this round"


@pytest.mark.soak
@pytest.mark.parametrize("number", range(CURATED_ROUNDS))
def test_random_kills_and_faults_do_not_change_what_is_curated(curated: Quiet, tmp_path: Path, number: int) -> None:
    report = run_round(curated, tmp_path / "round", random.SystemRandom().randrange(1 << 30))
    assert not report.troubles, f"round {number}: {report.line()}"
    assert report.kills or report.faults, "nothing happened in this round"
