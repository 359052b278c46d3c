"""The training loop: a run cannot tell that it was interrupted, and however it ends, nothing it computed is lost."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from datakit.errors import DivergedError, LoaderError, UsageError
from datakit.loader import ArraySource, Component, Loader, Mixture
from datakit.plots.training import plot_run
from datakit.trainer import train as loop
from datakit.trainer.checkpoints import checkpoint
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.config import Evaluation, Log, Run
from datakit.trainer.metrics.json_lines import HISTOGRAMS, read_metrics
from datakit.trainer.metrics.step_metrics import StepMetrics
from datakit.trainer.models import grug, load_model
from datakit.trainer.step import Trainer
from datakit.trainer.train import Outcome, train, trainer_of
from tests.support.paths import REPOSITORY
from tests.support.processes import fake_devices
from tests.support.trainer.trainer_runs import (
    EXPLODING,
    STEPS,
    Ending,
    PowerCut,
    Rows,
    TextBytes,
    assert_same_state,
    bytes_mixture,
    checkpoints_of,
    directory_in,
    final_state,
    growing_batches,
    losses,
    saving_run,
    silent,
    small_run,
    stopped,
)

pytestmark = pytest.mark.xdist_group("training-runs")  # one worker makes the finished run and compiles its step
HELD_OUT = TextBytes(seed=5)


def test_resuming_twice_changes_no_bit(tmp_path: Path, finished: str, lines: list[str]) -> None:
    run = saving_run()
    for end in (4, 8):
        stopped(run, tmp_path, end, lines.append)
    outcome = train(run, TextBytes(), str(tmp_path), say=lines.append)
    assert outcome.resumed_from == 6
    said = [line for line in lines if line.startswith(("fresh", "resumed"))]
    assert said[0] == "fresh start"
    assert [line.split(" of ")[0] for line in said[1:]] == ["resumed from step 3", "resumed from step 6"]
    assert_same_state(final_state(outcome.directory, run), final_state(finished, run))
    assert losses(outcome.directory) == losses(finished)


def test_a_resumed_run_compiles_its_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restored arrays have the layout of fresh ones, so nothing is compiled a second time and no step is slower."""
    trainers: list[Any] = []

    def collect(*arguments: Any) -> Any:
        trainers.append(trainer_of(*arguments))
        return trainers[-1]

    monkeypatch.setattr(loop, "trainer_of", collect)
    for end in (4, 8):
        stopped(saving_run(), tmp_path, end, devices=jax.devices()[:2])
    assert [len(trainer.programs) for trainer in trainers] == [1, 1]


KILLED = """
import os, signal, time
from pathlib import Path
from datakit.trainer.checkpoints import checkpoint
from datakit.trainer.config import Evaluation
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import TextBytes, saving_run, small_run

when, kill = {when!r}, lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if when == "while it is written":
    save = checkpoint.Writer.save
    def save_and_die(self, state, marker):
        save(self, state, marker)
        if marker.step == 6:
            kill()
    checkpoint.Writer.save = save_and_die
if when == "before it is committed":
    commit = checkpoint.commit
    checkpoint.commit = lambda path, marker: kill() if marker.step == 6 else commit(path, marker)
if when == "after an evaluation":
    def say(line):
        if line.startswith("step 8"):
            until = time.monotonic() + 60
            while not list(Path({out!r}).rglob("step-000000006/commit.json")) and time.monotonic() < until:
                time.sleep(0.01)
            kill()
    tags = {{"t": lambda: TextBytes(seed=5).iterate(0, 1)}}
    train(small_run(evaluation=Evaluation(every=6)), TextBytes(), {out!r}, evaluations=tags, say=say)
train(saving_run(), TextBytes(), {out!r})
"""


def killed(when: str, root: Path) -> None:
    code, environment = (
        KILLED.format(when=when, out=str(root)),
        {**os.environ, **fake_devices(2), "PYTHONPATH": str(REPOSITORY)},
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("when", ["while it is written", "before it is committed"])
def test_a_kill_during_a_checkpoint_loses_nothing(when: str, tmp_path: Path, finished: str, lines: list[str]) -> None:
    killed(when, tmp_path)
    run = saving_run()
    outcome = train(run, TextBytes(), str(tmp_path), say=lines.append)
    assert outcome.resumed_from in ((3,) if when == "before it is committed" else (3, 6))
    assert any("never finished" in line for line in lines) or outcome.resumed_from == 6
    assert_same_state(final_state(outcome.directory, run), final_state(finished, run))
    assert [one.marker.step for one in checkpoints_of(outcome.directory)] == [12, 9, 6, 3]


@pytest.mark.usefixtures("no_compilation_cache")
def test_fewer_devices_continue_what_more_started(tmp_path: Path) -> None:
    run, four_devices = saving_run(), jax.devices()[:4]
    replicated = dataclasses.replace(run, replicas=2)
    directory = stopped(replicated, tmp_path / "four", 6, devices=four_devices)
    assert_same_state(*(final_state(directory, run, jax.devices()[:count]) for count in (4, 2)))
    shutil.copytree(tmp_path / "four/plays", tmp_path / "two/plays")
    on_four = train(replicated, TextBytes(), str(tmp_path / "four"), devices=four_devices)
    on_two = train(run, TextBytes(), str(tmp_path / "two"))
    assert on_four.resumed_from == on_two.resumed_from == 6
    np.testing.assert_allclose(losses(on_four.directory)[6], losses(on_two.directory)[6], atol=1e-5)
    np.testing.assert_allclose(losses(on_four.directory), losses(on_two.directory), atol=1e-3)


def test_divergence_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    run = small_run(optimizer=EXPLODING, checkpoint=Checkpoints(interval_minutes=0.0))
    with pytest.raises(DivergedError, match=r"NaN or infinite.*last good checkpoint is .*step-0000") as caught:
        train(run, TextBytes(), str(tmp_path))
    assert caught.value.exit_code == 5
    directory = directory_in(tmp_path)
    rows = read_metrics(directory)
    assert checkpoints_of(directory)[0].marker.step < len(rows)
    assert all(np.isfinite(value).all() for value in final_state(directory, run).values())
    assert None in (rows[-1]["train/loss"], rows[-1]["optim/grad_norm/all"], rows[-1]["optim/params_norm/adam"])
    assert not Path(directory, "manifest.json").exists()


def test_divergence_is_reported_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "commit", full)
    run = small_run(optimizer=EXPLODING, checkpoint=Checkpoints(interval_minutes=1e9, keep_every=1))
    with pytest.raises(DivergedError, match="there is no checkpoint yet"):
        train(run, TextBytes(), str(tmp_path), say=lines.append)
    assert any("No space left on device" in line for line in lines)


def test_a_finished_run_is_left_alone(finished: str, lines: list[str]) -> None:
    root = str(Path(finished).parents[1])
    before = sorted((path, path.stat().st_mtime_ns) for path in Path(root).rglob("*"))
    again = train(saving_run(), Ending(0), root, say=lines.append)
    assert lines == ["the run is already finished; nothing is trained"]
    assert again.directory == finished
    assert again.figures["train/loss"] == losses(finished)[-1]
    assert sorted((path, path.stat().st_mtime_ns) for path in Path(root).rglob("*")) == before


def test_a_missing_manifest_is_written_again(finished: str, tmp_path: Path) -> None:
    shutil.copytree(Path(finished).parent, tmp_path / "plays")
    manifest = Path(directory_in(tmp_path), "manifest.json")
    before = manifest.read_bytes()
    manifest.unlink()
    assert train(saving_run(), Ending(STEPS), str(tmp_path)).resumed_from == STEPS
    assert manifest.read_bytes() == before


def test_norms_profile_and_evaluations_are_written(tmp_path: Path) -> None:
    log = Log(watch=("grad", "params", "updates", "opt_state"), watch_every=5, profile=(2, 4), histograms_every=5)
    run = small_run(log=log, evaluation=Evaluation(every=8))
    tags = {
        "plays/late": lambda: HELD_OUT.iterate(0, 2),
        "other": lambda: TextBytes(seed=6).iterate(0, 1),
    }
    outcome = train(run, TextBytes(), str(tmp_path), evaluations=tags, token_bytes=np.ones(256, np.int64))
    rows = read_metrics(outcome.directory)
    assert [row["global_step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["global_step"] for row in rows if "grad/norm/embed" in row] == [1, 6, 11]
    for name in ("params/norm/blocks/layer_1/query", "updates/norm/head", "opt_state/norm/mu/embed"):
        assert rows[0][name] >= 0
    assert [row["global_step"] for row in rows if "eval/loss" in row] == [8, STEPS]
    last = rows[-1]
    for name in ("eval/plays/late/bpb", "eval/plays/macro_loss", "eval/other/loss", "eval/ema/macro_bpb"):
        assert last[name] == outcome.figures[name]
    for name in ("train/router/routing_entropy_mean", "data/epochs/text"):
        assert name in last
    assert not [name for row in rows for name, value in row.items() if isinstance(value, list)]
    histograms = read_metrics(outcome.directory, HISTOGRAMS)
    assert [row["global_step"] for row in histograms] == [5, 10, STEPS]
    assert sum(histograms[0]["train/router/layer_1/routing_hist"]) == pytest.approx(1.0)
    timing = ("duration", "loading_time", "hook_time")
    for name in (*timing, "tokens_per_second", "total_tokens", "flops_per_token_analytic"):
        assert last[f"throughput/{name}"] >= 0
    assert rows[0]["mixture/stage"] == 0
    assert "mixture/stage" not in last
    assert list((Path(outcome.directory) / "profile").rglob("*.xplane.pb"))
    pytest.importorskip("matplotlib")
    assert Path(plot_run(outcome.directory)).stat().st_size > 10_000


def test_impossible_runs_say_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a batch of 7 sequences cannot be split evenly over 2 devices"):
        train(saving_run(), TextBytes(rows=7), str(tmp_path))
    with pytest.raises(UsageError, match="the data ends before step 2 of 12"):
        train(saving_run(), Ending(1, quiet=True), str(tmp_path))
    with pytest.raises(UsageError, match=r"log.watch: 'grads' is not a kind of norm; did you mean 'grad'"):
        Log(watch=("grads",))
    with pytest.raises(UsageError, match="trackers: there is no tracker 'wandbb'; did you mean 'wandb'"):
        train(saving_run(log=Log(trackers=("wandbb",))), TextBytes(), str(tmp_path))


def test_unknown_token_ids_end_the_run(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 1000, 6400).astype(np.uint16)
    mixture = Mixture({"a": Component(ArraySource(tokens))}, {"a": 1.0}, sequence_length=32, batch_size=8)
    with Loader(mixture) as loader, pytest.raises(UsageError, match=r"holds the id 9\d\d, but the model's vocabulary"):
        train(small_run(), loader, str(tmp_path))


EVALUATED = small_run(evaluation=Evaluation(every=6), log=Log(progress_seconds=1e9))
SAVED = dataclasses.replace(EVALUATED, checkpoint=saving_run().checkpoint)


def tag() -> Iterator[Rows]:
    return HELD_OUT.iterate(0, 1)


def start(run: Run, root: Path, source: Any = None, evaluate: Callable[[], Any] = tag, **options: Any) -> Outcome:
    options = {"say": silent, **options}
    return train(run, source or TextBytes(), str(root), evaluations={"t": evaluate}, **options)


def saved(root: Path) -> list[int]:
    return [one.marker.step for one in checkpoints_of(directory_in(root))]


def untimed_rows(root: Path) -> list[dict[str, Any]]:
    """The rows without durations and rates."""
    timed = ("throughput/", *(f"eval/{kind}{name}_time" for kind in ("", "ema/") for name in ("total", "loading")))
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


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of an uninterrupted run with evaluations."""
    root = tmp_path_factory.mktemp("undisturbed")
    start(EVALUATED, root)
    return untimed_rows(root)


# The validation set is opened before the first step (1); with weights and averages at step 6 (2, 3) and the end (4, 5).
@pytest.mark.parametrize(("number", "step"), [(2, 6), (4, 12)])
def test_dying_in_an_evaluation_loses_nothing(number: int, step: int, undisturbed: list[Any], tmp_path: Path) -> None:
    with pytest.raises(PowerCut):
        start(EVALUATED, tmp_path, evaluate=dying_at(number, cut))
    assert saved(tmp_path)[0] == step
    assert untimed_rows(tmp_path)[-1]["global_step"] == step
    outcome = start(EVALUATED, tmp_path)
    assert outcome.resumed_from == step
    assert untimed_rows(tmp_path) == undisturbed
    assert outcome.figures["train/loss"] == undisturbed[-1]["train/loss"]


def test_a_killed_run_goes_on_at_its_last_evaluation(undisturbed: list[Any], tmp_path: Path, finished: str) -> None:
    killed("after an evaluation", tmp_path)
    assert saved(tmp_path) == [6]
    assert start(EVALUATED, tmp_path).resumed_from == 6
    assert untimed_rows(tmp_path) == undisturbed
    assert_same_state(final_state(directory_in(tmp_path), EVALUATED), final_state(finished, EVALUATED))


def test_an_evaluation_does_not_wait_for_an_earlier_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, evaluated = checkpoint.commit, threading.Event()

    def slow(path: Any, marker: Any) -> None:
        assert marker.step == STEPS or evaluated.wait(60)
        commit(path, marker)

    def say(line: str) -> None:
        said.append(line)
        if sum(line.startswith("evaluation") for line in said) == 2:
            evaluated.set()

    said: list[str] = []
    monkeypatch.setattr(checkpoint, "commit", slow)
    start(dataclasses.replace(EVALUATED, evaluation=Evaluation(every=4)), tmp_path, say=say)
    assert saved(tmp_path) == [12, 4]


@pytest.mark.parametrize("step", [2, 6, 12])
def test_sigterm_saves_and_postpones_the_evaluation(
    step: int,
    undisturbed: list[Any],
    finished: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = StepMetrics.row

    def signalled(self: StepMetrics, at: int, *arguments: Any) -> dict[str, Any]:
        if at == step:
            terminate()
        return row(self, at, *arguments)

    rolling = dataclasses.replace(EVALUATED, checkpoint=Checkpoints())
    with monkeypatch.context() as patch:
        patch.setattr(StepMetrics, "row", signalled)
        with pytest.raises(SystemExit, match="143"):
            start(rolling, tmp_path, evaluate=dying_at(4 if step == STEPS else 2, cut))
    last = step if step in (6, STEPS) else step + 1  # the next step has already been started, except at an evaluation
    assert saved(tmp_path) == ([12, 6] if step == 12 else [last])
    assert start(rolling, tmp_path).resumed_from == last
    assert untimed_rows(tmp_path) == undisturbed
    assert_same_state(final_state(directory_in(tmp_path), rolling), final_state(finished, rolling))


@pytest.mark.parametrize(("compilation", "last"), [(1, None), (2, 3)])
def test_a_signal_while_compiling_ends_the_run_before_the_step(
    compilation: int, last: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_step, calls = Trainer.compile, []

    def signalled(self: Trainer, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == compilation:
            os.kill(os.getpid(), signal.SIGTERM)
        return compile_step(self, *arguments)

    monkeypatch.setattr(Trainer, "compile", signalled)
    own = dataclasses.replace(small_run().optimizer, beta2=0.9 + compilation / 100)  # so that nothing is compiled yet
    run = small_run(optimizer=own)
    with Loader(growing_batches()) as loader, pytest.raises(SystemExit, match="143"):
        train(run, loader, str(tmp_path))
    directory = directory_in(tmp_path)
    assert [one.marker.step for one in checkpoints_of(directory)] == ([] if last is None else [last])
    assert [row["global_step"] for row in read_metrics(directory)] == list(range(1, (last or 0) + 1))


def test_a_signal_in_the_final_evaluation_is_ignored(tmp_path: Path) -> None:
    outcome = start(EVALUATED, tmp_path, evaluate=dying_at(4, terminate))
    assert "eval/loss" in outcome.figures


def test_an_unusable_validation_set_is_found_first(tmp_path: Path) -> None:
    row = HELD_OUT.batch(0)
    single = Rows(row.tokens, np.arange(row.tokens.size).reshape(row.tokens.shape) + 1, row.loss_mask)
    with pytest.raises(UsageError, match=r"evaluation 't' has no token to predict; give it more documents"):
        start(EVALUATED, tmp_path, evaluate=lambda: [single])
    assert not Path(directory_in(tmp_path), "metrics.jsonl").exists()


def test_too_little_data_is_found_first(tmp_path: Path) -> None:
    tokens = np.arange(1024) % 256
    once = Component(ArraySource(tokens.astype(np.uint16), np.full(16, 64)), max_epochs=1)
    mixture = Mixture({"a": once}, {"a": 1.0}, sequence_length=32, batch_size=8)
    with Loader(mixture) as loader, pytest.raises(LoaderError, match="ends after 4 of 12 batches: component 'a' has"):
        start(EVALUATED, tmp_path, loader)
    assert not list(tmp_path.rglob("*"))


def test_data_that_end_early_leave_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the data ends before step 6 of 12"):
        start(SAVED, tmp_path, Ending(5, quiet=True))
    assert saved(tmp_path)[0] == 5


def test_later_rows_are_set_aside_on_resume(tmp_path: Path) -> None:
    for end in (5, 3):
        with pytest.raises(PowerCut):
            start(SAVED, tmp_path, Ending(end))
    assert [row["global_step"] for row in untimed_rows(tmp_path)] == [1, 2, 3]
    aside = Path(directory_in(tmp_path), "metrics.set-aside.jsonl").read_text().splitlines()
    assert [json.loads(line)["global_step"] for line in aside] == [4, 5]
    afresh = dataclasses.replace(SAVED, checkpoint=dataclasses.replace(SAVED.checkpoint, load=False))
    with pytest.raises(PowerCut):
        start(afresh, tmp_path, Ending(2))
    assert [row["global_step"] for row in untimed_rows(tmp_path)] == [1, 2]
    start(SAVED, tmp_path)
    assert [row["global_step"] for row in untimed_rows(tmp_path) if "mixture/stage" in row] == [1]


class Cut(Loader):
    """A loader that ends before step 4."""

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Any, None, None]:
        yield from super().iterate(start, 4)
        raise PowerCut


def test_the_loader_refuses_a_changed_past(tmp_path: Path) -> None:
    with Cut(bytes_mixture(1)) as first, pytest.raises(PowerCut):
        train(saving_run(), first, str(tmp_path))
    later = saving_run(resume_from=directory_in(tmp_path))
    with Loader(bytes_mixture(2)) as other, pytest.raises(LoaderError, match="seed: 1 -> 2"):
        train(later, other, str(tmp_path))
    with Loader(bytes_mixture(1)) as same:
        assert train(later, same, str(tmp_path)).resumed_from == 3


def test_a_model_of_your_own_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of grug.py outside of datakit, named by its import path."""
    (tmp_path / "my_models").mkdir()
    (tmp_path / "my_models/variant.py").write_text(Path(grug.__file__).read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load_model("my_models.variant").Config
    run = small_run(kind="my_models.variant", model=config(**dataclasses.asdict(small_run().model)))
    with pytest.raises(PowerCut):
        train(run, Ending(1), str(tmp_path))
    with pytest.raises(UsageError, match=r"`model` is not an instance of the Config class of 'my_models.variant'"):
        small_run(kind="my_models.variant")
