"""However and wherever a run ends, nothing that it computed is lost, and the next start writes the same rows."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datakit.errors import DivergedError, LoaderError, UsageError
from datakit.loader import ArraySource, Component, Loader, Mixture
from datakit.trainer.checkpoints import checkpoint
from datakit.trainer.checkpoints.checkpoint import Checkpoints, candidates
from datakit.trainer.config import Evaluation, Log, Run
from datakit.trainer.metrics.step_metrics import Figures
from datakit.trainer.metrics.trackers import SET_ASIDE, read_metrics
from datakit.trainer.optimizer import Optimizer
from datakit.trainer.train import Outcome, train
from tests.support.trainer_runs import Rows, TextBytes, small_run

TEXT = b"It was the best of times, it was the worst of times;\n\nwe had everything before us. " * 400
KEPT = Checkpoints(interval_minutes=1e9, keep_every=3)
LATER = TextBytes(TEXT, seed=5)


class PowerCut(Exception):
    """What ends a run in these tests."""


class Ending(TextBytes):
    """The text until batch `end`; then the power is cut, or where `quiet` the data are over."""

    def __init__(self, end: int, quiet: bool = False) -> None:
        super().__init__(TEXT)
        self.end, self.quiet = end, quiet

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Rows, None, None]:
        yield from super().iterate(start, min(self.end, stop or self.end))
        if not self.quiet:
            raise PowerCut


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture
def run(cache: str) -> Run:
    """Six steps, saved and evaluated every three."""
    return small_run(
        steps=6,
        compilation_cache=cache,
        checkpoint=KEPT,
        evaluation=Evaluation(every=3),
        log=Log(progress_seconds=1e9),
    )


def tag() -> Iterator[Rows]:
    return LATER.iterate(0, 1)


def start(run: Run, root: Path, source: Any = None, evaluate: Callable[[], Any] = tag, **options: Any) -> Outcome:
    options = {"say": lambda _: None, **options}
    return train(run, source or TextBytes(TEXT), str(root), evaluations={"t": evaluate}, **options)


def directory_in(root: Path) -> str:
    return str(next((root / "plays").glob("train-*")))


def saved(root: Path) -> list[int]:
    return [one.marker.step for one in candidates([f"{directory_in(root)}/checkpoints"], lambda _: None)]


def lasting(root: Path) -> list[dict[str, Any]]:
    """The rows without what a clock says."""
    timed = ("throughput/", "eval/total_time")
    rows = read_metrics(directory_in(root))
    return [{name: value for name, value in row.items() if not name.startswith(timed)} for row in rows]


def dying_at(number: int, how: Callable[[], Any]) -> Callable[[], Any]:
    """The validation set, until it is opened for the `number`th time."""
    opened = [0]

    def batches() -> Any:
        opened[0] += 1
        if opened[0] == number:
            how()
        return tag()

    return batches


def cut() -> None:
    raise PowerCut


def asked_to_end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


# 1 is the look before the first step, 2 the evaluation at step 3, 3 the one at the end
@pytest.mark.parametrize(("number", "step"), [(2, 3), (3, 6)])
def test_what_dies_in_an_evaluation_loses_neither_the_row_nor_the_checkpoint(
    number: int, step: int, run: Run, tmp_path: Path
) -> None:
    start(run, tmp_path / "calm")
    with pytest.raises(PowerCut):
        start(run, tmp_path / "cut", evaluate=dying_at(number, cut))
    assert saved(tmp_path / "cut")[0] == step
    assert lasting(tmp_path / "cut")[-1]["global_step"] == step
    outcome = start(run, tmp_path / "cut")
    assert outcome.resumed_from == step
    assert lasting(tmp_path / "cut") == lasting(tmp_path / "calm")
    assert outcome.figures["train/loss"] == lasting(tmp_path / "calm")[-1]["train/loss"]


@pytest.mark.parametrize("step", [3, 6])
def test_whoever_is_asked_to_end_saves_and_leaves_the_evaluation_to_the_next_start(
    step: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(run, tmp_path / "calm")
    row = Figures.row

    def signalled(self: Figures, at: int, *arguments: Any) -> dict[str, Any]:
        if at == step:
            asked_to_end()
        return row(self, at, *arguments)

    monkeypatch.setattr(Figures, "row", signalled)
    rolling = dataclasses.replace(run, checkpoint=Checkpoints())
    with pytest.raises(KeyboardInterrupt):
        start(rolling, tmp_path / "ended", evaluate=dying_at(2 if step == 3 else 3, cut))
    monkeypatch.undo()
    assert saved(tmp_path / "ended") == [step]
    assert start(rolling, tmp_path / "ended").resumed_from == step
    assert lasting(tmp_path / "ended") == lasting(tmp_path / "calm")


def test_a_signal_in_the_final_evaluation_is_no_reason_to_fail(run: Run, tmp_path: Path) -> None:
    outcome = start(run, tmp_path, evaluate=dying_at(3, asked_to_end))
    assert "eval/loss" in outcome.figures


def test_a_validation_set_without_a_prediction_is_found_before_the_first_step(run: Run, tmp_path: Path) -> None:
    row = LATER.batch(0)
    single = Rows(row.tokens, np.arange(row.tokens.size).reshape(row.tokens.shape) + 1, row.loss_mask)
    with pytest.raises(UsageError, match=r"evaluation 't' holds no token .*; give it more documents"):
        start(run, tmp_path, evaluate=lambda: [single])
    assert not (Path(directory_in(tmp_path)) / "metrics.jsonl").exists()


def test_data_that_are_too_short_are_found_before_the_first_step(run: Run, tmp_path: Path) -> None:
    tokens = np.arange(1024) % 256
    once = Component(ArraySource(tokens.astype(np.uint16), np.full(16, 64)), max_epochs=1)
    mixture = Mixture({"a": once}, {"a": 1.0}, sequence_length=32, batch_size=8)
    with Loader(mixture) as loader, pytest.raises(LoaderError, match="ends after 4 of 6 batches: component 'a' has"):
        start(run, tmp_path, loader)
    assert not list(tmp_path.rglob("*"))


def test_data_that_end_early_all_the_same_end_with_a_checkpoint(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the data end before step 6 of 6"):
        start(run, tmp_path, Ending(5, quiet=True))
    assert saved(tmp_path)[0] == 5


def test_a_run_cannot_resume_from_beyond_its_end_but_at_it(run: Run, tmp_path: Path) -> None:
    whole = start(run, tmp_path)
    with pytest.raises(UsageError, match=r"is at step 6, and this run has 5 steps; give it more"):
        start(dataclasses.replace(run, steps=5, resume_from=whole.directory), tmp_path)
    lines: list[str] = []
    at_the_end = dataclasses.replace(run, resume_from=whole.directory)
    outcome = start(at_the_end, tmp_path, say=lines.append)
    assert outcome.figures["eval/loss"] == whole.figures["eval/loss"]
    assert any("has no row of step 6; its training loss is not known" in line for line in lines)
    assert json.loads((Path(outcome.directory) / "prediction.json").read_text())["tokens"] == 6 * 8 * 32


def test_a_nan_is_told_as_one_even_where_the_disk_is_full(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "commit", full)
    exploding = Optimizer(kind="adamw", learning_rate=1e12, schedule="constant", warmup=0.0)
    every = Checkpoints(interval_minutes=1e9, keep_every=1)
    lines: list[str] = []
    with pytest.raises(DivergedError, match="there is no checkpoint yet"):
        start(dataclasses.replace(run, optimizer=exploding, checkpoint=every), tmp_path, say=lines.append)
    assert any("No space left on device" in line for line in lines)


def test_rows_beyond_the_start_are_set_aside_and_a_stage_is_told_once(run: Run, tmp_path: Path) -> None:
    with pytest.raises(PowerCut):
        start(run, tmp_path, Ending(5))
    with pytest.raises(PowerCut):
        start(run, tmp_path, Ending(3))
    rows = lasting(tmp_path)
    assert [row["global_step"] for row in rows] == [1, 2, 3]
    aside = (Path(directory_in(tmp_path)) / SET_ASIDE).read_text().splitlines()
    assert [json.loads(line)["global_step"] for line in aside] == [4, 5]
    afresh = dataclasses.replace(run, checkpoint=dataclasses.replace(KEPT, load=False))
    with pytest.raises(PowerCut):
        start(afresh, tmp_path, Ending(2))
    assert [row["global_step"] for row in lasting(tmp_path)] == [1, 2]
    start(run, tmp_path)
    assert [row["global_step"] for row in lasting(tmp_path) if "mixture/stage" in row] == [1]
