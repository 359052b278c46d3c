"""Where a run begins: whole checkpoints only, its own or those of the run that it names, and what the manifest says."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import CheckpointError, UsageError
from datakit.trainer.checkpoints.checkpoint import Candidate, Checkpoints
from datakit.trainer.metrics.trackers import SET_ASIDE, read_metrics
from datakit.trainer.train import train
from tests.support.trainer_runs import TextBytes
from tests.trainer.test_trainer_train import (
    STEPS,
    Ending,
    PowerCut,
    a_run,
    assert_same_state,
    checkpoints_of,
    final_state,
    largest_file,
    with_average,
)

TEXT = b"It was the best of times, it was the worst of times;\n\nwe had everything before us. " * 400


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: str) -> str:
    """The directory of a finished run with the checkpoints of steps 3, 6, 9 and 12; not to be changed."""
    return train(a_run(cache), TextBytes(TEXT), str(tmp_path_factory.mktemp("finished"))).directory


@pytest.fixture
def lines() -> list[str]:
    return []


def stopped(run: Any, root: Path, after: int, say: Any = lambda _: None) -> str:
    """Train until the power is cut; the run's directory."""
    with pytest.raises(PowerCut):
        train(run, Ending(TEXT, after), str(root), say=say)
    return str(next((root / run.name).iterdir()))


def flip(candidate: Candidate) -> None:
    """One bit of a checkpoint's arrays."""
    path = largest_file(candidate)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shorten(candidate: Candidate) -> None:
    path = largest_file(candidate)
    path.write_bytes(path.read_bytes()[:-1])


def rolling(root: Path, **more: Any) -> Checkpoints:
    return Checkpoints(interval_minutes=0.0, temporary_root=str(root), **more)


def test_an_average_begins_with_the_weights_taken_over(tmp_path: Path, cache: str, finished: str) -> None:
    still = dataclasses.replace(a_run(cache).optimizer, ema=0.999, learning_rate=1e-6, adam_learning_rate=1e-6)
    run = a_run(cache, steps=2, initialize_from=finished, optimizer=still)
    tags = {"held": lambda: TextBytes(TEXT, seed=5).iterate(0, 1)}
    figures = train(run, TextBytes(TEXT), str(tmp_path), evaluations=tags).figures
    assert figures["eval/ema/loss"] == pytest.approx(figures["eval/loss"], abs=0.01)


def test_weights_are_taken_from_a_whole_checkpoint(tmp_path: Path, cache: str, finished: str, lines: list[str]) -> None:
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    newest, before, *_ = checkpoints_of(str(other))
    flip(newest)
    run = a_run(cache, steps=2, initialize_from=str(other))
    outcome = train(run, TextBytes(TEXT), str(tmp_path / "out"), say=lines.append)
    assert any(f"{newest.path} is damaged" in line and "does not match its checksum" in line for line in lines)
    assert f"fresh start with the weights of step 9 of {before.path}" in lines
    origin = json.loads(Path(outcome.directory, "manifest.json").read_text())["details"]["origin"]
    assert origin == {"by": "initialize_from", **before.named()}
    shorten(before)
    for one in checkpoints_of(str(other))[1:]:
        flip(one)
    with pytest.raises(CheckpointError, match=r"can be read; name another run in initialize_from"):
        train(run, TextBytes(TEXT), str(tmp_path / "again"))


def test_the_manifest_names_the_weights_that_a_resumed_run_began_with(
    tmp_path: Path, cache: str, finished: str
) -> None:
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    shutil.rmtree(other / "checkpoints/step-000000012")
    run = a_run(cache, initialize_from=str(other))
    stopped(run, tmp_path / "out", 4)
    shutil.copytree(Path(finished, "checkpoints/step-000000012"), other / "checkpoints/step-000000012")
    outcome = train(run, TextBytes(TEXT), str(tmp_path / "out"))
    assert outcome.resumed_from == 3
    manifest = json.loads(Path(outcome.directory, "manifest.json").read_text())
    assert manifest["details"]["origin"]["step"] == 9


@pytest.mark.parametrize("setting", ["initialize_from", "resume_from"])
def test_another_model_s_checkpoint_is_refused_with_the_array_that_differs(
    setting: str, tmp_path: Path, cache: str, finished: str
) -> None:
    run = a_run(cache, **{setting: finished})
    for change in ({"hidden": 64}, {"layers": 3}, {"experts": 0}, {"vocabulary": 384}):
        other = dataclasses.replace(run, model=dataclasses.replace(run.model, **change))
        with pytest.raises(CheckpointError, match=r"another state than this run's: .* there and .* here .*\[model\]"):
            train(other, TextBytes(TEXT), str(tmp_path))


def test_an_average_cannot_be_taken_from_a_run_without_one(tmp_path: Path, cache: str, finished: str) -> None:
    run = with_average(a_run(cache, resume_from=finished))
    with pytest.raises(CheckpointError, match=r"ema/\S+ is missing there and .*give \[optimizer\]"):
        train(run, TextBytes(TEXT), str(tmp_path))


def test_a_copy_beside_the_checkpoints_changes_nothing(tmp_path: Path, cache: str, finished: str) -> None:
    run = a_run(cache)
    directory = stopped(run, tmp_path, 4)
    kept = Path(directory, "checkpoints/step-000000003")
    for name in ("step-000000003.bak", "step-old"):
        shutil.copytree(kept, kept.with_name(name))
    shutil.rmtree(kept.with_name("step-old") / "state")
    outcome = train(run, TextBytes(TEXT), str(tmp_path))
    assert_same_state(final_state(outcome.directory, run), final_state(finished, run))
    assert [one.marker.step for one in checkpoints_of(directory)] == [12, 9, 6, 3]
    assert kept.with_name("step-000000003.bak").exists()


def test_runs_of_two_roots_share_a_temporary_root_and_nothing_else(
    tmp_path: Path, cache: str, lines: list[str]
) -> None:
    run = a_run(cache, checkpoint=rolling(tmp_path / "scratch"))
    stopped(run, tmp_path / "one", 5)
    stopped(run, tmp_path / "two", 2, lines.append)
    assert lines[0] == "fresh start"
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert train(run, TextBytes(TEXT), str(tmp_path / "link")).resumed_from == 5
    with pytest.raises(UsageError, match="temporary_root is 'scratch'; give an absolute path"):
        Checkpoints(temporary_root="scratch")


@pytest.mark.parametrize("inside", ["", "checkpoints"])
def test_another_run_s_rolling_checkpoints_are_found(inside: str, tmp_path: Path, cache: str, lines: list[str]) -> None:
    saving = rolling(tmp_path / "scratch", keep_every=3)
    directory = stopped(a_run(cache, checkpoint=saving), tmp_path / "old", 8)
    assert checkpoints_of(directory)[0].marker.step == 6
    place = str(Path(directory, inside))
    changed = a_run(cache, checkpoint=saving, resume_from=place, expect={"train/loss": 1.0})
    assert train(changed, TextBytes(TEXT), str(tmp_path / "new")).resumed_from == 8
    stopped(a_run(cache, checkpoint=saving, initialize_from=place), tmp_path / "weights", 1, lines.append)
    assert lines[0].startswith("fresh start with the weights of step 8 of ")


def test_damaged_checkpoints_alone_are_an_error_whatever_the_damage(tmp_path: Path, cache: str) -> None:
    run = a_run(cache)
    directory = stopped(run, tmp_path, 4)
    shorten(checkpoints_of(directory)[0])
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints .* can be read; set checkpoint.load = false"):
        train(run, TextBytes(TEXT), str(tmp_path))
    Path(directory, "checkpoints/step-000000003/commit.json").write_text("{")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        train(run, TextBytes(TEXT), str(tmp_path))
    refusing = dataclasses.replace(run, checkpoint=dataclasses.replace(run.checkpoint, load=False))
    stopped(refusing, tmp_path, 1)
    assert train(run, TextBytes(TEXT), str(tmp_path)).resumed_from is None


def test_starting_afresh_keeps_no_rows_of_the_attempt_before(tmp_path: Path, cache: str) -> None:
    run = a_run(cache)
    stopped(run, tmp_path, 7)
    refusing = dataclasses.replace(run, checkpoint=dataclasses.replace(run.checkpoint, load=False))
    stopped(refusing, tmp_path, 2)
    directory = stopped(refusing, tmp_path, 2)
    assert [row["global_step"] for row in read_metrics(directory)] == [1, 2]
    aside = [json.loads(line)["global_step"] for line in Path(directory, SET_ASIDE).read_text().splitlines()]
    assert list(dict.fromkeys(aside)) == [1, 2, 3, 4, 5, 6, 7]  # a step with a checkpoint has two rows
    assert (aside[0], aside[-1]) == (1, 2)


def test_a_finished_run_does_not_start_afresh(cache: str, finished: str) -> None:
    run = a_run(cache, checkpoint=Checkpoints(load=False))
    with pytest.raises(UsageError, match=r"is finished, so checkpoint.load = false cannot start it afresh"):
        train(run, TextBytes(TEXT), str(Path(finished).parents[1]))
    assert checkpoints_of(finished)[0].marker.step == STEPS
