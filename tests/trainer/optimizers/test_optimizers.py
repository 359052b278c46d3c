"""Optimizers are chosen in the run file, and one of your own needs ten lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import RecipeError, UsageError
from datakit.trainer.config import Run
from datakit.trainer.optimizers import KIND, adamw, load_optimizer, record
from datakit.trainer.run_file import read_run_file
from datakit.trainer.train import train
from tests.support.paths import REPOSITORY
from tests.support.trainer.trainer_runs import TextBytes, losses, silent, small_run, tiny_run

RUN = 'name = "own"\nsteps = 1\n[model]\nhidden = 32\n[optimizer]\n'
DOCUMENTED = re.search(
    r"```python\n(from dataclasses.*?class Config\(Optimizer\).*?)```",
    (REPOSITORY / "docs/optimizers.md").read_text(),
    re.DOTALL,
)


def run_of(folder: Path, optimizer: str) -> Run:
    path = folder / "run.toml"
    path.write_text(RUN + optimizer)
    return read_run_file(path).run(256)


@pytest.mark.parametrize("kind", KIND.built_in)
def test_the_run_file_chooses_by_kind(kind: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, f'kind = "{kind}"\nlearning_rate = 0.5\n')
    assert type(run.optimizer) is load_optimizer(kind)
    assert run.optimizer.learning_rate == 0.5
    assert run.content({})["optimizer"]["kind"] == kind


def test_settings_of_another_optimizer_are_unknown(tmp_path: Path) -> None:
    for wrong in (
        "weight_decay = 0.1\n",
        'kind = "adamw"\nadam_learning_rate = 0.1\n',
        'kind = "muonh"\nscale = "rms"\n',
    ):
        with pytest.raises(RecipeError, match=r"\[optimizer\]: unknown key"):
            run_of(tmp_path, wrong)
    with pytest.raises(RecipeError, match=r"\[optimizer\]: schedule: Invalid enum value 'triangle'"):
        run_of(tmp_path, 'schedule = "triangle"\n')
    with pytest.raises(UsageError, match="no optimizer 'muonw'; did you mean 'muon'"):
        run_of(tmp_path, 'kind = "muonw"\n')


def test_the_example_in_the_documentation_trains(tmp_path: Path) -> None:
    assert DOCUMENTED is not None
    source = DOCUMENTED[1]
    assert len([line for line in source.splitlines() if line.strip()]) <= 22
    (tmp_path / "sign_descent.py").write_text(source)
    optimizer = run_of(tmp_path, 'kind = "sign_descent.py"\nlearning_rate = 0.003\nclip_norm = 2.0\n').optimizer
    run = tiny_run(optimizer=optimizer)
    directory = train(run, TextBytes(), str(tmp_path), say=silent).directory
    found = losses(directory)
    assert found[-1] < found[0] - 0.1
    with pytest.raises(RecipeError, match="unknown key 'learning_rat'; did you mean 'learning_rate'"):
        run_of(tmp_path, 'kind = "sign_descent.py"\nlearning_rat = 0.003\n')


def test_the_source_of_a_file_enters_the_fingerprint(tmp_path: Path) -> None:
    assert DOCUMENTED is not None
    (tmp_path / "mine.py").write_text(DOCUMENTED[1])
    first = run_of(tmp_path, 'kind = "mine.py"\n')
    assert record(first.optimizer).keys() >= {"kind", "source", "learning_rate"}
    assert record(first.optimizer)["kind"] == "mine.py"
    assert "source" not in record(adamw.Config())
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved/mine.py").write_text(DOCUMENTED[1])
    assert run_of(tmp_path / "moved", 'kind = "mine.py"\n').fingerprint({}) == first.fingerprint({})
    (tmp_path / "mine.py").write_text(DOCUMENTED[1] + "# edited\n")
    assert run_of(tmp_path, 'kind = "mine.py"\n').fingerprint({}) != first.fingerprint({})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "class Config: pass\n",
            "Config is not a dataclass derived from Optimizer; see trainer/optimizers/protocol.py",
        ),
        (
            "from datakit.trainer.optimizers.protocol import Optimizer\nclass Config(Optimizer): pass\n",
            "Config does not define moments and update; see",
        ),
    ],
)
def test_a_file_without_an_optimizer_is_refused(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(source)
    with pytest.raises(UsageError, match=f"optimizer 'wrong.py': {message}"):
        run_of(tmp_path, 'kind = "wrong.py"\n')


def test_a_run_needs_an_optimizer() -> None:
    wrong: Any = {"learning_rate": 0.1}
    with pytest.raises(UsageError, match="`optimizer` is not an instance of the Config class of an optimizer"):
        small_run(optimizer=wrong)
