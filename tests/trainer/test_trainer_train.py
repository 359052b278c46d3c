"""A run cannot tell that it was interrupted: resumed, killed or moved, it computes the same; a NaN destroys nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from datakit.errors import CheckpointError, DatakitError, DivergedError, UsageError
from datakit.plots.training import plot_run
from datakit.trainer import train as loop
from datakit.trainer.checkpoints.checkpoint import Candidate, Checkpoints, candidates, restore
from datakit.trainer.config import Evaluation, Log
from datakit.trainer.metrics.trackers import read_metrics
from datakit.trainer.optimizer import Optimizer
from datakit.trainer.run_lock import alone_in
from datakit.trainer.run_manifest import run_directory
from datakit.trainer.train import train, trainer_of
from tests.support.paths import REPOSITORY
from tests.support.trainer_runs import Rows, TextBytes, shakespeare, small_run

STEPS = 12


class PowerCut(Exception):
    """What ends a run in these tests."""


class Ending(TextBytes):
    """The text, until the power is cut before batch `end`."""

    def __init__(self, text: bytes, end: int, **options: Any) -> None:
        super().__init__(text, **options)
        self.end = end

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Rows, None, None]:
        yield from super().iterate(start, min(self.end, stop or self.end))
        raise PowerCut


@pytest.fixture(scope="module")
def text() -> bytes:
    return shakespeare()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture
def lines() -> list[str]:
    return []


def a_run(cache: str, **changes: Any) -> Any:
    """The small run, saving every 3 steps for good."""
    checkpoint = changes.pop("checkpoint", Checkpoints(interval_minutes=1e9, keep_every=3))
    return small_run(compilation_cache=cache, checkpoint=checkpoint, **changes)


def final_state(directory: str, run: Any, devices: Any = None) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint."""
    newest = checkpoints_of(directory)[0]
    restored = restore(newest, trainer_of(run, devices).like())
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(restored)}


def checkpoints_of(directory: str) -> list[Candidate]:
    return candidates([f"{directory}/checkpoints"], lambda _: None)


def largest_file(candidate: Candidate) -> Path:
    """The file of a checkpoint that holds most of its arrays."""
    files = [path for path in (Path(candidate.path) / "state").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def assert_same_state(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        np.testing.assert_array_equal(value, theirs[path], err_msg=path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: str, text: bytes) -> tuple[str, dict[str, np.ndarray]]:
    """A run without interruption: its directory and final state. It keeps an average, too."""
    run = with_average(a_run(cache))
    directory = train(run, TextBytes(text), str(tmp_path_factory.mktemp("calm"))).directory
    return directory, final_state(directory, run)


def with_average(run: Any) -> Any:
    return dataclasses.replace(run, optimizer=dataclasses.replace(run.optimizer, ema=0.9))


def losses(directory: str) -> list[float]:
    return [row["train/loss"] for row in read_metrics(directory)]


def test_resuming_twice_changes_no_bit(
    tmp_path: Path, cache: str, text: bytes, undisturbed: tuple[str, Any], lines: list[str]
) -> None:
    run = with_average(a_run(cache))
    for end in (4, 8):
        with pytest.raises(PowerCut):
            train(run, Ending(text, end), str(tmp_path), say=lines.append)
    outcome = train(run, TextBytes(text), str(tmp_path), say=lines.append)
    assert outcome.resumed_from == 6
    said = [line for line in lines if line.startswith(("fresh", "resumed"))]
    assert said[0] == "fresh start"
    assert [line.split(" of ")[0] for line in said[1:]] == ["resumed from step 3", "resumed from step 6"]
    assert_same_state(final_state(outcome.directory, run), undisturbed[1])
    assert losses(outcome.directory) == losses(undisturbed[0])


def test_a_resumed_run_compiles_its_step_once_as_a_fresh_one_does(
    tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restored arrays lie as fresh ones do, so nothing is compiled a second time and no step is slower."""
    trainers: list[Any] = []

    def kept(*arguments: Any) -> Any:
        trainers.append(trainer_of(*arguments))
        return trainers[-1]

    monkeypatch.setattr(loop, "trainer_of", kept)
    for end in (4, 8):
        with pytest.raises(PowerCut):
            train(a_run(""), Ending(text, end), str(tmp_path))
    assert [trainer.advance._cache_size() for trainer in trainers] == [1, 1]


def test_a_second_process_in_the_same_run_is_refused(tmp_path: Path, cache: str, text: bytes) -> None:
    run = a_run(cache)
    directory = run_directory(str(tmp_path), run, TextBytes(text).record())
    with alone_in(directory), pytest.raises(UsageError, match=r"is being trained by process \d+ on .*; wait for it"):
        train(run, TextBytes(text), str(tmp_path))
    with pytest.raises(PowerCut):
        train(run, Ending(text, 1), str(tmp_path))


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
import tests.conftest
from datakit.trainer import checkpoint
from tests.trainer.test_trainer_train import a_run, with_average
from tests.support.trainer_runs import TextBytes, shakespeare
from datakit.trainer.train import train

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
train(with_average(a_run({cache!r})), TextBytes(shakespeare()), {out!r})
"""


def start(when: str, cache: str, out: Path) -> subprocess.Popen[str]:
    root = str(REPOSITORY)
    code = KILLED.format(root=root, when=when, cache=cache, out=str(out))
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("when", ["while it is written", "before it is committed"])
def test_kill_nine_during_a_checkpoint(
    when: str, tmp_path: Path, cache: str, text: bytes, undisturbed: tuple[str, Any]
) -> None:
    lines: list[str] = []
    process = start(when, cache, tmp_path)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    run = with_average(a_run(cache))
    outcome = train(run, TextBytes(text), str(tmp_path), say=lines.append)
    assert outcome.resumed_from in ((3,) if when == "before it is committed" else (3, 6))
    assert any("never finished" in line for line in lines) or outcome.resumed_from == 6
    assert_same_state(final_state(outcome.directory, run), undisturbed[1])
    assert [one.marker.step for one in checkpoints_of(outcome.directory)] == [12, 9, 6, 3]


def test_a_polite_end_saves_first(
    tmp_path: Path, cache: str, text: bytes, undisturbed: tuple[str, Any], lines: list[str]
) -> None:
    process = start("never", cache, tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 1/"):
            process.send_signal(signal.SIGTERM)
            break
    process.stderr.read()
    process.wait(timeout=60)
    run = with_average(a_run(cache))
    if process.returncode == 0:
        pytest.skip("the run was over before the signal came")
    outcome = train(run, TextBytes(text), str(tmp_path), say=lines.append)
    assert outcome.resumed_from
    assert_same_state(final_state(outcome.directory, run), undisturbed[1])


def test_fewer_devices_go_on_where_more_stopped(tmp_path: Path, cache: str, text: bytes) -> None:
    run = a_run(cache)
    with pytest.raises(PowerCut):
        train(run, Ending(text, 6), str(tmp_path / "eight"))
    stopped = next((tmp_path / "eight/plays").iterdir())
    eight, four = (final_state(str(stopped), run, jax.devices()[:count]) for count in (8, 4))
    assert_same_state(eight, four)
    shutil.copytree(tmp_path / "eight/plays", tmp_path / "four/plays")
    on_eight = train(run, TextBytes(text), str(tmp_path / "eight"))
    on_four = train(
        dataclasses.replace(run, replicas=2), TextBytes(text), str(tmp_path / "four"), devices=jax.devices()[:4]
    )
    assert on_eight.resumed_from == on_four.resumed_from == 6
    np.testing.assert_allclose(losses(on_eight.directory)[6], losses(on_four.directory)[6], atol=1e-5)
    np.testing.assert_allclose(losses(on_eight.directory), losses(on_four.directory), atol=1e-3)


def test_a_nan_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path, cache: str, text: bytes) -> None:
    exploding = Optimizer(kind="adamw", learning_rate=1e12, schedule="constant", warmup=0.0)
    run = a_run(cache, optimizer=exploding, checkpoint=Checkpoints(interval_minutes=0.0))
    with pytest.raises(DivergedError, match=r"no number.*last good checkpoint is .*step-0000") as caught:
        train(run, TextBytes(text), str(tmp_path))
    assert caught.value.exit_code == 4
    directory = next((tmp_path / "plays").iterdir())
    rows = read_metrics(str(directory))
    newest = checkpoints_of(str(directory))[0]
    assert newest.marker.step < len(rows)
    assert all(np.isfinite(value).all() for value in final_state(str(directory), run).values())
    assert None in (rows[-1]["train/loss"], rows[-1]["optim/grad_norm/all"], rows[-1]["optim/params_norm/adam"])
    assert not (directory / "manifest.json").exists()


def test_loading_can_be_demanded_or_refused(tmp_path: Path, cache: str, text: bytes, lines: list[str]) -> None:
    saving = Checkpoints(interval_minutes=1e9, keep_every=3)
    demanding, refusing = (dataclasses.replace(saving, load=load) for load in (True, False))
    with pytest.raises(CheckpointError, match="load is true, but there is no valid checkpoint"):
        train(a_run(cache, checkpoint=demanding), TextBytes(text), str(tmp_path))
    with pytest.raises(PowerCut):
        train(a_run(cache), Ending(text, 4), str(tmp_path))
    with pytest.raises(PowerCut):
        train(a_run(cache, checkpoint=refusing), Ending(text, 2), str(tmp_path), say=lines.append)
    assert "fresh start" in lines
    assert any("step-000000003 is set aside: the run begins afresh" in line for line in lines)
    with pytest.raises(PowerCut):
        train(a_run(cache), Ending(text, 4), str(tmp_path), say=lines.append)
    assert lines.count("fresh start") == 2
    assert train(a_run(cache, checkpoint=demanding), TextBytes(text), str(tmp_path)).resumed_from == 3


def test_the_newest_whole_checkpoint_wins(tmp_path: Path, cache: str, text: bytes, lines: list[str]) -> None:
    run = a_run(cache)
    with pytest.raises(PowerCut):
        train(run, Ending(text, 10), str(tmp_path))
    directory = str(next((tmp_path / "plays").iterdir()))
    nine, six, three = checkpoints_of(directory)
    truncated = max(
        (Path(nine.path) / "state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0
    )
    truncated.write_bytes(truncated.read_bytes()[:-1])
    flipped = max((Path(six.path) / "state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    with pytest.raises(PowerCut):
        train(run, Ending(text, 4), str(tmp_path), say=lines.append)
    assert any("bytes instead of" in line for line in lines)
    assert any("does not match its checksum" in line for line in lines)
    assert f"resumed from step 3 of {three.path}" in lines
    assert f"warning: {six.path} is set aside: the run begins at step 3" in lines
    flipped = max(
        (Path(three.path) / "state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0
    )
    flipped.write_bytes(bytes(flipped.stat().st_size))
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints .* can be read"):
        train(run, TextBytes(text), str(tmp_path))


def test_rolling_checkpoints_are_few_and_elsewhere(tmp_path: Path, cache: str, text: bytes) -> None:
    rolling = Checkpoints(interval_minutes=0.0, temporary_root=str(tmp_path / "short-lived"), keep_every=5)
    run = a_run(cache, checkpoint=rolling)
    with pytest.raises(PowerCut):
        train(run, Ending(text, 9), str(tmp_path / "kept"))
    temporary = candidates([str(next((tmp_path / "short-lived/plays").iterdir()) / "checkpoints")], lambda _: None)
    permanent = checkpoints_of(str(next((tmp_path / "kept/plays").iterdir())))
    assert [one.marker.step for one in temporary] == [9, 8]
    assert [one.marker.step for one in permanent] == [5]
    outcome = train(run, TextBytes(text), str(tmp_path / "kept"))
    assert outcome.resumed_from == 9
    assert [one.marker.step for one in checkpoints_of(outcome.directory)] == [12, 10, 5]


def test_a_finished_run_is_found_done(undisturbed: tuple[str, Any], cache: str, text: bytes, lines: list[str]) -> None:
    root = str(Path(undisturbed[0]).parents[1])
    before = sorted((path, path.stat().st_mtime_ns) for path in Path(root).rglob("*"))
    again = train(with_average(a_run(cache)), Ending(text, 0), root, say=lines.append)
    assert lines == [f"{undisturbed[0]} is finished"]
    assert again.figures["train/loss"] == losses(undisturbed[0])[-1]
    assert sorted((path, path.stat().st_mtime_ns) for path in Path(root).rglob("*")) == before


def test_an_end_without_a_manifest_is_only_finished(
    undisturbed: tuple[str, Any], tmp_path: Path, cache: str, text: bytes
) -> None:
    shutil.copytree(Path(undisturbed[0]).parent, tmp_path / "plays")
    directory = next((tmp_path / "plays").iterdir())
    before = (directory / "manifest.json").read_bytes()
    (directory / "manifest.json").unlink()
    outcome = train(with_average(a_run(cache)), Ending(text, STEPS), str(tmp_path))
    assert outcome.resumed_from == STEPS
    assert (directory / "manifest.json").read_bytes() == before


def test_the_manifest_tells_what_ran(undisturbed: tuple[str, Any]) -> None:
    directory = Path(undisturbed[0])
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["stage"] == "train"
    assert manifest["parameters"]["model"]["hidden"] == 32
    assert manifest["details"]["mixture"]["stages"] == [[0, {"text": 1.0}]]
    assert set(manifest["details"]["code"]) == {"version", "sources"}
    assert manifest["totals"]["tokens"] == STEPS * 8 * 32
    assert manifest["counters"] == {"train/sequences": STEPS * 8, "train/tokens": STEPS * 8 * 32}
    sizes = {entry["path"]: entry["bytes"] for entry in manifest["partitions"]}
    assert all((directory / "checkpoints" / path).stat().st_size == size for path, size in sizes.items())


def test_the_prediction_stands_before_the_run_and_stays(tmp_path: Path, cache: str, text: bytes) -> None:
    run = a_run(cache, expect={"train/loss": 5.0})
    with pytest.raises(PowerCut):
        train(run, Ending(text, 1), str(tmp_path))
    path = next((tmp_path / "plays").iterdir()) / "prediction.json"
    before = path.read_bytes()
    prediction = json.loads(before)
    assert prediction["law"]["extrapolated"]
    assert prediction["tokens"] == STEPS * 8 * 32
    later = dataclasses.replace(run, expect={"train/loss": 1.0})
    outcome = train(later, TextBytes(text), str(tmp_path))
    assert path.read_bytes() == before
    compared = outcome.comparison["train/loss"]
    assert compared["expected"] == 5.0
    assert compared["ratio"] == pytest.approx(outcome.figures["train/loss"] / 5.0)
    assert not compared["extrapolated"]
    assert outcome.comparison["eval/macro_loss"]["measured"] is None


def test_another_mixture_is_another_run_and_going_on_with_it_is_checked(
    tmp_path: Path, cache: str, text: bytes, lines: list[str]
) -> None:
    with pytest.raises(PowerCut):
        train(a_run(cache), Ending(text, 4), str(tmp_path))
    before = next((tmp_path / "plays").iterdir())
    changed = a_run(cache, resume_from=str(before))
    with pytest.raises(DatakitError, match="another text until step 3"):
        train(changed, TextBytes(text, seed=1), str(tmp_path))

    class Annealed(TextBytes):
        def record(self) -> dict[str, Any]:
            return {**super().record(), "fingerprint": "annealed"}

        def verify(self, saved: dict[str, Any], step: int) -> list[str]:
            return ["stages: a new one"]

    outcome = train(changed, Annealed(text), str(tmp_path), say=lines.append)
    assert outcome.resumed_from == 3
    assert "the mixture changes from here on: stages: a new one" in lines
    assert Path(outcome.directory) != before


def test_weights_alone_can_be_taken_over(undisturbed: tuple[str, Any], tmp_path: Path, cache: str, text: bytes) -> None:
    run = a_run(cache, initialize_from=undisturbed[0])
    lines: list[str] = []
    with pytest.raises(PowerCut):
        train(run, Ending(text, 1), str(tmp_path), say=lines.append)
    assert any(line.startswith("fresh start with the weights of step 12") for line in lines)
    first = losses(str(next((tmp_path / "plays").iterdir())))[0]
    assert first < losses(undisturbed[0])[3]


def test_what_is_watched_profiled_and_evaluated_is_written(tmp_path: Path, cache: str, text: bytes) -> None:
    log = Log(watch=("grad", "params", "updates", "opt_state"), watch_every=5, profile=(2, 4), progress_seconds=1e9)
    run = with_average(a_run(cache, log=log, evaluation=Evaluation(every=6), steps=7))
    tags = {
        "plays/late": lambda: TextBytes(text, seed=5).iterate(0, 2),
        "other": lambda: TextBytes(text, seed=6).iterate(0, 1),
    }
    outcome = train(run, TextBytes(text), str(tmp_path), evaluations=tags, token_bytes=np.ones(256, np.int64))
    rows = read_metrics(outcome.directory)
    assert [row["global_step"] for row in rows] == list(range(1, 8))
    watching = [row["global_step"] for row in rows if "grad/norm/embed" in row]
    assert watching == [1, 6]
    for name in ("params/norm/blocks/layer_1/query", "updates/norm/head", "opt_state/norm/mu/embed"):
        assert rows[0][name] >= 0
    assert [row["global_step"] for row in rows if "eval/loss" in row] == [6, 7]
    last = rows[-1]
    for name in ("eval/plays/late/bpb", "eval/plays/macro_loss", "eval/other/loss", "eval/ema/macro_bpb"):
        assert last[name] == outcome.figures[name]
    for name in ("train/router/layer_1/routing_hist", "train/router/routing_entropy_mean", "data/epochs/text"):
        assert name in last
    for name in (
        "duration",
        "loading_time",
        "hook_time",
        "tokens_per_second",
        "total_tokens",
        "flops_per_token_analytic",
    ):
        assert last[f"throughput/{name}"] >= 0
    assert rows[0]["mixture/stage"] == 0
    assert "mixture/stage" not in last
    assert list((Path(outcome.directory) / "profile").rglob("*.xplane.pb"))
    pytest.importorskip("matplotlib")
    assert Path(plot_run(outcome.directory)).stat().st_size > 10_000


def test_what_cannot_run_says_why(tmp_path: Path, cache: str, text: bytes) -> None:
    with pytest.raises(UsageError, match="a batch of 6 sequences does not split over 8 devices"):
        train(a_run(cache), TextBytes(text, rows=6), str(tmp_path))

    class Short(TextBytes):
        def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Rows, None, None]:
            yield self.batch(0)

    with pytest.raises(UsageError, match="the data end before step 2 of 12"):
        train(a_run(cache), Short(text), str(tmp_path))
    with pytest.raises(UsageError, match=r"log.watch: nothing is called 'grads'; did you mean 'grad'"):
        Log(watch=("grads",))
    with pytest.raises(UsageError, match="trackers: no tracker 'wandbb'; did you mean 'wandb'"):
        train(a_run(cache, log=Log(trackers=("wandbb",))), TextBytes(text), str(tmp_path))
