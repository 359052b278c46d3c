"""A run starts from whole checkpoints only: its own, or those of the run that it names."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datakit.errors import CheckpointError, DatakitError, UsageError
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.config import Evaluation, Run
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.train import train
from tests.support.trainer.small_models import dense
from tests.support.trainer.trainer_runs import (
    STEPS,
    Ending,
    PowerCut,
    TextBytes,
    assert_same_state,
    checkpoints_of,
    final_state,
    flip,
    losses,
    saving_run,
    shorten,
    silent,
    stopped,
)

pytestmark = pytest.mark.xdist_group("training-runs")  # as in test_train.py


def rolling(root: Path, **more: Any) -> Checkpoints:
    return Checkpoints(interval_minutes=0.0, temporary_root=str(root), **more)


def loading(run: Run, load: bool) -> Run:
    return dataclasses.replace(run, checkpoint=dataclasses.replace(run.checkpoint, load=load))


def test_loading_can_be_required_or_refused(tmp_path: Path, lines: list[str]) -> None:
    run, path = saving_run(), str(tmp_path)
    with pytest.raises(CheckpointError, match="load is true, but there is no valid checkpoint"):
        train(loading(run, True), TextBytes(), path)
    stopped(run, tmp_path, 4)
    stopped(loading(run, False), tmp_path, 2, lines.append)
    assert "fresh start" in lines
    assert any("step-000000003 is set aside: the run starts afresh" in line for line in lines)
    stopped(run, tmp_path, 4, lines.append)
    assert lines.count("fresh start") == 2
    with pytest.raises(PowerCut):
        train(loading(run, True), Ending(5), path, say=lines.append)
    assert any(line.startswith("resumed from step 3 ") for line in lines)


def test_the_newest_whole_checkpoint_wins(tmp_path: Path, lines: list[str]) -> None:
    run = saving_run()
    nine, six, three = checkpoints_of(stopped(run, tmp_path, 10))
    shorten(nine)
    flip(six)
    stopped(run, tmp_path, 4, lines.append)
    assert any("bytes instead of" in line for line in lines)
    assert any("does not match its checksum" in line for line in lines)
    assert f"resumed from step 3 of {three.path}" in lines
    assert f"warning: {six.path} is set aside: the run starts at step 3" in lines
    flip(three)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read \(1 tried\)"):
        train(run, TextBytes(), str(tmp_path))


@pytest.mark.parametrize("damage", ["shorter file", "broken marker"])
def test_damaged_checkpoints_alone_are_an_error(damage: str, tmp_path: Path) -> None:
    run = saving_run()
    directory = stopped(run, tmp_path, 4)
    if damage == "shorter file":
        shorten(checkpoints_of(directory)[0])
    else:
        Path(directory, "checkpoints/step-000000003/commit.json").write_text("{")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* can be read \(1 tried\); set checkpoint.load = false"
    ):
        train(run, TextBytes(), str(tmp_path))
    stopped(loading(run, False), tmp_path, 1)
    lines: list[str] = []
    stopped(run, tmp_path, 1, lines.append)
    assert "fresh start" in lines


def test_a_copy_of_a_checkpoint_changes_nothing(tmp_path: Path, finished: str) -> None:
    run = saving_run()
    directory = stopped(run, tmp_path, 4)
    kept = Path(directory, "checkpoints/step-000000003")
    for name in ("step-000000003.bak", "step-old"):
        shutil.copytree(kept, kept.with_name(name))
    shutil.rmtree(kept.with_name("step-old") / "state")
    outcome = train(run, TextBytes(), str(tmp_path))
    assert_same_state(final_state(outcome.directory, run), final_state(finished, run))
    assert [one.marker.step for one in checkpoints_of(directory)] == [12, 9, 6, 3]
    assert kept.with_name("step-000000003.bak").exists()


def test_rolling_checkpoints_are_few_and_elsewhere(tmp_path: Path) -> None:
    run = saving_run(checkpoint=rolling(tmp_path / "scratch", keep_every=5))
    directory = stopped(run, tmp_path / "kept", 9)
    temporary = next((tmp_path / "scratch/plays").iterdir())
    assert [one.marker.step for one in checkpoints_of(str(temporary))] == [9, 8]
    assert [one.marker.step for one in checkpoints_of(directory)] == [5]
    assert train(run, TextBytes(), str(tmp_path / "kept")).resumed_from == 9
    assert [one.marker.step for one in checkpoints_of(directory)] == [12, 10, 5]


def test_two_roots_share_only_the_temporary_root(tmp_path: Path, lines: list[str]) -> None:
    run = saving_run(checkpoint=rolling(tmp_path / "scratch"))
    stopped(run, tmp_path / "one", 5)
    stopped(run, tmp_path / "two", 2, lines.append)
    assert "fresh start" in lines
    (tmp_path / "link").symlink_to(tmp_path / "one")
    stopped(run, tmp_path / "link", 6, lines.append)
    assert any(line.startswith("resumed from step 5 ") for line in lines)


@pytest.mark.parametrize("inside", ["", "checkpoints"])
def test_another_run_s_rolling_checkpoints_are_found(inside: str, tmp_path: Path, lines: list[str]) -> None:
    saving = rolling(tmp_path / "scratch", keep_every=3)
    directory = stopped(saving_run(checkpoint=saving), tmp_path / "old", 8)
    assert checkpoints_of(directory)[0].marker.step == 6
    place = str(Path(directory, inside))
    stopped(saving_run(checkpoint=saving, resume_from=place), tmp_path / "new", 9, lines.append)
    assert any(line.startswith("resumed from step 8 ") for line in lines)
    stopped(saving_run(checkpoint=saving, initialize_from=place), tmp_path / "weights", 1, lines.append)
    assert any(line.startswith("fresh start with the weights of step 8 of ") for line in lines)


def test_starting_afresh_drops_earlier_rows(tmp_path: Path) -> None:
    run = saving_run()
    stopped(run, tmp_path, 7)
    stopped(loading(run, False), tmp_path, 2)
    directory = stopped(loading(run, False), tmp_path, 2)
    assert [row["global_step"] for row in read_metrics(directory)] == [1, 2]
    aside = [
        json.loads(line)["global_step"] for line in Path(directory, "metrics.set-aside.jsonl").read_text().splitlines()
    ]
    assert list(dict.fromkeys(aside)) == [1, 2, 3, 4, 5, 6, 7]  # a step with a checkpoint has two rows
    assert (aside[0], aside[-1]) == (1, 2)


def test_a_run_goes_on_with_less_memory(finished: str, tmp_path: Path) -> None:
    run = saving_run()
    directory = stopped(run, tmp_path, 7)
    changes: Any = {"remat": "recompute_all", "moe_backend": "tiles", "attention_backend": "dense", "loss_piece": 8}
    other = dataclasses.replace(run, model=dataclasses.replace(run.model, **changes))
    outcome = train(other, TextBytes(), str(tmp_path))
    assert (outcome.directory, outcome.resumed_from) == (directory, 6)
    np.testing.assert_allclose(losses(directory), losses(finished), rtol=1e-4)
    manifest = json.loads(Path(directory, "manifest.json").read_text())
    assert manifest["details"]["operation"] == {**changes, "exchange": "auto"}
    assert not manifest["parameters"]["model"].keys() & changes.keys()


def test_an_unfinished_run_with_other_settings_is_named(tmp_path: Path, lines: list[str]) -> None:
    other = stopped(saving_run(), tmp_path, 4)
    changed = saving_run(seed=1)
    with pytest.raises(PowerCut):
        train(changed, Ending(1), str(tmp_path), say=lines.append)
    assert (
        f"{other} is an unfinished run with other settings; to continue it, set resume_from to this directory" in lines
    )


def test_a_finished_run_cannot_start_afresh(finished: str) -> None:
    run = saving_run(checkpoint=Checkpoints(load=False))
    with pytest.raises(UsageError, match=r"is finished, so checkpoint.load = false cannot start it afresh"):
        train(run, TextBytes(), str(Path(finished).parents[1]))
    assert checkpoints_of(finished)[0].marker.step == STEPS


def test_a_changed_mixture_is_checked_on_resume(tmp_path: Path, lines: list[str]) -> None:
    before = stopped(saving_run(), tmp_path, 4)
    changed = saving_run(resume_from=before)
    with pytest.raises(DatakitError, match="another text until step 3"):
        train(changed, TextBytes(seed=1), str(tmp_path))

    class Annealed(TextBytes):
        def record(self) -> dict[str, Any]:
            return {**super().record(), "fingerprint": "annealed"}

        def verify(self, saved: dict[str, Any], step: int) -> list[str]:
            return ["stages: a new one"]

    outcome = train(changed, Annealed(), str(tmp_path), say=lines.append)
    assert outcome.resumed_from == 3
    assert "the mixture changes from here on: stages: a new one" in lines
    assert outcome.directory != before


def test_resuming_beyond_the_end_is_refused(finished: str, tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(UsageError, match=r"is at step 12, but this run has only 11 steps; raise `steps`"):
        train(saving_run(steps=STEPS - 1, resume_from=finished), TextBytes(), str(tmp_path))
    at_the_end, tags = saving_run(resume_from=finished), {"t": lambda: TextBytes(seed=5).iterate(0, 1)}
    outcome = train(at_the_end, TextBytes(), str(tmp_path), evaluations=tags, say=lines.append)
    assert outcome.figures["eval/loss"] > 0
    assert_same_state(final_state(outcome.directory, at_the_end), final_state(finished, at_the_end))
    assert any("has no row for step 12, so its training loss is unknown" in line for line in lines)
    assert json.loads(Path(outcome.directory, "prediction.json").read_text())["tokens"] == STEPS * 8 * 32


def test_weights_alone_can_be_taken_over(finished: str, tmp_path: Path, lines: list[str]) -> None:
    directory = stopped(saving_run(initialize_from=finished), tmp_path, 1, lines.append)
    assert any(line.startswith("fresh start with the weights of step 12") for line in lines)
    assert losses(directory)[0] < losses(finished)[3]


def test_an_average_starts_as_the_weights_taken_over(tmp_path: Path, finished: str) -> None:
    still = dataclasses.replace(saving_run().optimizer, ema=0.999, learning_rate=1e-6, adam_learning_rate=1e-6)
    run = saving_run(steps=2, initialize_from=finished, optimizer=still, evaluation=Evaluation(batches=1))
    tags = {"held": lambda: TextBytes(seed=5).iterate(0, 1)}
    figures = train(run, TextBytes(), str(tmp_path), evaluations=tags, say=silent).figures
    assert figures["eval/ema/loss"] == pytest.approx(figures["eval/loss"], abs=0.01)


def test_weights_come_from_a_whole_checkpoint(tmp_path: Path, finished: str, lines: list[str]) -> None:
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    newest, before, *_ = checkpoints_of(str(other))
    flip(newest)
    run = saving_run(initialize_from=str(other))
    outcome = train(run, TextBytes(), str(tmp_path / "out"), say=lines.append)
    assert any(f"{newest.path} is damaged" in line and "does not match its checksum" in line for line in lines)
    assert f"fresh start with the weights of step 9 of {before.path}" in lines
    origin = json.loads(Path(outcome.directory, "manifest.json").read_text())["details"]["origin"]
    assert origin == {"by": "initialize_from", **before.named()}
    shorten(before)
    for one in checkpoints_of(str(other))[1:]:
        flip(one)
    with pytest.raises(CheckpointError, match=r"can be read .*; name another run in initialize_from"):
        train(run, TextBytes(), str(tmp_path / "again"))


def test_the_manifest_names_the_weights_first_taken(tmp_path: Path, finished: str) -> None:
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    shutil.rmtree(other / "checkpoints/step-000000012")
    run = saving_run(initialize_from=str(other))
    stopped(run, tmp_path / "out", 4)
    shutil.copytree(Path(finished, "checkpoints/step-000000012"), other / "checkpoints/step-000000012")
    outcome = train(run, TextBytes(), str(tmp_path / "out"))
    assert outcome.resumed_from == 3
    manifest = json.loads(Path(outcome.directory, "manifest.json").read_text())
    assert manifest["details"]["origin"]["step"] == 9


@pytest.mark.parametrize("setting", ["initialize_from", "resume_from"])
@pytest.mark.parametrize("change", [{"hidden": 64}, {"layers": 3}, {"experts": 0}, {"vocabulary": 384}], ids=str)
def test_another_model_s_checkpoint_is_refused(
    setting: str, change: dict[str, int], tmp_path: Path, finished: str
) -> None:
    run = saving_run(**{setting: finished})
    model = dense(run.model) if change == {"experts": 0} else dataclasses.replace(run.model, **change)
    other = dataclasses.replace(run, model=model)
    with pytest.raises(
        CheckpointError, match=r"does not fit this run: .* in the checkpoint and .* in this run .*\[model\]"
    ):
        train(other, TextBytes(), str(tmp_path))
