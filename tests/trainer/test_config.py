"""A run file is read strictly, its content decides the fingerprint, and every option has an effect or is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import CheckpointError, RecipeError, UsageError
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.config import Evaluation, Log, Run
from datakit.trainer.metrics.json_lines import HISTOGRAMS, read_metrics
from datakit.trainer.models import grug, olmoe
from datakit.trainer.models.protocol import check_tensor
from datakit.trainer.run_file import parse_run
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import TextBytes, checkpoints_of, saving_run, small_run, tiny_run

pytestmark = pytest.mark.xdist_group("training-runs")  # as in test_train.py

TOML = """
name = "small"
steps = 20
expect = {"train/loss" = 3}
[model]
hidden = 64
layers = 2
[optimizer]
learning_rate = 0.02
ema = 0.99
[checkpoint]
load = true
[evaluation]
every = 10
[log]
watch = ["grad"]
"""


def test_a_run_from_toml() -> None:
    run = parse_run(tomllib.loads(TOML), "small.toml")
    assert isinstance(run, Run)
    assert isinstance(run.model, grug.Config)
    assert (run.model.hidden, run.optimizer.ema, run.checkpoint.load) == (64, 0.99, True)
    assert run.evaluation == Evaluation(every=10)
    assert (run.log.watch, run.expect) == (("grad",), {"train/loss": 3.0})
    family = parse_run({"name": "o", "steps": 1, "model": {"kind": "olmoe"}}, "o.toml")
    assert isinstance(family.model, olmoe.Config)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"stepz": 3}, "unknown key 'stepz'; did you mean 'steps'"),
        ({"model": {"hiden": 3}}, r"\[model\]: unknown key 'hiden'; did you mean 'hidden'"),
        ({"optimizer": {"learning_rate": "fast"}}, r"\[optimizer\]: learning_rate: Expected `float`"),
        ({"model": {"kind": "grugg"}}, "no model 'grugg'; did you mean 'grug'"),
        ({"steps": 0}, "steps is 0"),
        ({"name": "../x"}, "use letters, digits"),
        ({"cpu_devices": 0}, "cpu_devices is 0"),
        ({"replicas": 0}, "replicas is 0"),
        ({"expert_parallel": 0}, "expert_parallel is 0"),
        ({"expert_parallel": 3}, r"expert_parallel \(3\) must be a divisor of the number of experts \(64\)"),
        ({"expert_parallel": 16, "model": {"capacity_factor": 1.0}}, r"a divisor of model.capacity_groups \(8\)"),
        ({"tensor_parallel": 0}, "tensor_parallel is 0"),
        ({"tensor_parallel": 4}, r"tensor_parallel \(4\) must be a divisor of model.kv_heads \(2\)"),
        ({"tensor_parallel": 2, "model": {"vocabulary": 101}}, r"a divisor of model.vocabulary \(101\)"),
        ({"evaluation": {"capacity_factors": [1.0, 0.0]}}, r"evaluation.capacity_factors is \[1.0, 0.0\]"),
        ({"evaluation": {"capacity_factors": [1.0, 1.0000001]}}, "use numbers that differ in their first six digits"),
        ({"model": {"capacity_factor": -1.0}}, "model.capacity_factor is -1.0"),
        ({"model": {"capacity_rows": 0}}, "model.capacity_rows is 0"),
        ({"model": {"capacity_factor": 1.0, "capacity_groups": 7}}, r"capacity_groups \(7\) must be a divisor"),
        ({"microbatch": 0}, "microbatch is 0"),
        ({"norm_band": [5.0, 0.2]}, "the first value must be between 0 and 1, and the second above 1"),
        ({"peak_flops": -1.0}, "peak_flops is -1.0"),
        ({"model": {"hidden": -3}}, "model.hidden is -3"),
        ({"model": {"kind": "olmoe", "layers": 0}}, "model.layers is 0"),
        ({"optimizer": {"learning_rate": float("nan")}}, "learning_rate is nan"),
        ({"optimizer": {"router_learning_rate": -1.0}}, "router_learning_rate is -1.0"),
        ({"checkpoint": {"interval_minutes": -1.0}}, "interval_minutes is -1.0"),
        ({"checkpoint": {"keep_temporary": 0}}, "keep_temporary must be at least 1"),
        ({"checkpoint": {"keep_every": 0}}, "keep_every is 0"),
        ({"evaluation": {"every": 0}}, "evaluation.every is 0"),
        ({"log": {"spike": 0.0}}, "log.spike is 0.0"),
        ({"log": {"profile": [5, 2]}}, r"log.profile is \[5, 2\]"),
        ({"log": 3}, r"\[log\] must be a table"),
    ],
)
def test_mistakes_in_toml_are_named(broken: dict[str, Any], message: str) -> None:
    with pytest.raises((RecipeError, UsageError), match=message):
        parse_run({"name": "x", "steps": 1} | broken, "x.toml")


def test_blocks_of_evaluations_alone_do_not_change_the_fingerprint() -> None:
    mixture, factors = {"fingerprint": "a"}, Evaluation(capacity_factors=(1.0,))
    groups = {"capacity_groups": 2}

    def fingerprint(evaluation: Evaluation, **changes: Any) -> str:
        return small_run(model=dataclasses.replace(small_run().model, **changes), evaluation=evaluation).fingerprint(
            mixture
        )

    without, drops = Evaluation(), {"capacity_factor": 1.0}
    assert fingerprint(without) == fingerprint(factors, **groups) == fingerprint(factors, **groups, capacity_rows=2)
    assert len({fingerprint(without, **groups, **drops, capacity_rows=rows) for rows in (2, 4)}) == 2


def test_operation_does_not_change_the_fingerprint() -> None:
    run = parse_run(tomllib.loads(TOML), "small.toml")
    mixture = {"fingerprint": "a"}
    other = parse_run(tomllib.loads(TOML.replace("ema = 0.99", "ema = 0.98")), "small.toml")
    logged = parse_run(tomllib.loads(TOML.replace("every = 10", "every = 5")), "small.toml")
    parts = dataclasses.replace(run, microbatch=2)
    assert run.fingerprint(mixture) == logged.fingerprint(mixture) == parts.fingerprint(mixture)
    assert len({run.fingerprint(mixture), other.fingerprint(mixture), run.fingerprint({"fingerprint": "b"})}) == 3


def test_every_option_is_tested() -> None:
    tables = (Run, Log, Evaluation, Checkpoints)
    names = {table: {field.name for field in dataclasses.fields(table)} for table in tables}
    assert names[Run] == {name for name, _ in RUN} | {*RUN_ELSEWHERE}
    assert names[Log] == {name for name, *_ in LOG} | {"project", "spike"}  # metrics/test_spikes.py
    assert names[Evaluation] == {name for name, *_ in EVALUATION} | {"every_length"}  # test_evaluate.py
    assert names[Checkpoints] == {name for name, *_ in CHECKPOINT} | {"load"}


def outcome(run: Run, folder: Path, evaluates: bool = False) -> dict[str, Any]:
    """Everything that a run leaves, says and logs, apart from times."""
    lines: list[str] = []
    tags = {"held": lambda: TextBytes(seed=5).iterate(0, 2)} if evaluates else {}
    directory = train(run, TextBytes(), str(folder / "root"), evaluations=tags, say=lines.append).directory
    rows = {row["global_step"]: sorted(row) for row in read_metrics(directory)}
    losses = [row["eval/loss"] for row in read_metrics(directory) if "eval/loss" in row]
    return {
        "rows": rows,
        "losses": losses,
        "trained": [row["train/loss"] for row in read_metrics(directory)],
        "expected": json.loads(Path(directory, "prediction.json").read_text())["expected"],
        "shardings": {(Path(one.path) / "state/_sharding").read_text() for one in checkpoints_of(directory)},
        "histograms": [row["global_step"] for row in read_metrics(directory, HISTOGRAMS)],
        "checkpoints": [one.marker.step for one in checkpoints_of(directory)],
        "elsewhere": sorted(path.name for path in folder.iterdir()),
        "inside": sorted(path.name for path in Path(directory).iterdir()),
        "progress": sum(line.startswith("step ") for line in lines),
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Returns the outcome of a run with which others are compared; equal runs are trained once."""
    known: dict[str, dict[str, Any]] = {}

    def find(run: Run, evaluates: bool = False) -> dict[str, Any]:
        key = f"{run} {evaluates}"
        if key not in known:
            known[key] = outcome(run, tmp_path_factory.mktemp("base"), evaluates)
        return known[key]

    return find


QUIET = Log(progress_seconds=1e9)
RUN = [
    ("steps", 10),
    ("seed", 1),
    ("expect", {"train/loss": 3.0}),
    ("replicas", 2),
    ("expert_parallel", 2),
    ("norm_band", (0.99999, 1.00001)),
    ("peak_flops", 1e12),
]
RUN_ELSEWHERE = {
    "name": "the folder's name",
    "model": "models/test_options.py",
    "kind": "models/test_models.py",
    "optimizer": "optimizers/test_settings.py",
    "cpu_devices": "test_commands.py",
    "tensor_parallel": "test_parallel_runs.py",
    "microbatch": "test_accumulation.py",
    "check_memory": "sizes/test_memory.py",
    "initialize_from": "test_resume.py",
    "resume_from": "test_resume.py",
    "compilation_cache": "test_train.py",
    "checkpoint": "CHECKPOINT",
    "evaluation": "EVALUATION",
    "log": "LOG",
}
SAVING = Checkpoints(interval_minutes=0.0)
LOG = [
    ("every", 5, {}),
    ("histograms_every", 5, {}),
    ("trackers", ("tensorboard",), {}),
    ("watch", ("grad",), {}),
    ("watch_every", 5, {"watch": ("grad",)}),
    ("watch_histograms", True, {"watch": ("grad",)}),
    ("profile", (2, 4), {}),
    ("progress_seconds", 0.0, {}),
]
EVALUATION = [("every", 4), ("batches", 1), ("capacity_factors", (0.5, 1.0))]
CHECKPOINT = [
    ("interval_minutes", 1e9),
    ("keep_temporary", 3),
    ("keep_every", 5),
    ("temporary_root", "scratch"),
]


def test_equal_runs_have_equal_outcomes(base: Any, tmp_path: Path) -> None:
    assert outcome(small_run(log=QUIET), tmp_path) == base(small_run(log=QUIET))


@pytest.mark.parametrize(("name", "value"), RUN)
def test_each_option_of_a_run_shows(
    name: str, value: Any, base: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name == "replicas":
        request.getfixturevalue("no_compilation_cache")
    assert outcome(small_run(log=QUIET, **{name: value}), tmp_path) != base(small_run(log=QUIET))


TRACKER = """
from pathlib import Path
rows = []
def init(**settings):
    rows.append(settings["project"])
def log(row, step):
    rows.append(step)
def finish():
    Path({out!r}).write_text(repr(rows))
"""


def test_project_is_that_of_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with Trackio's interface, which needs no server."""
    (tmp_path / "trackio.py").write_text(TRACKER.format(out=str(tmp_path / "sent")))
    monkeypatch.syspath_prepend(str(tmp_path))
    for project in ("datakit", "other"):
        monkeypatch.delitem(sys.modules, "trackio", raising=False)
        log = dataclasses.replace(QUIET, trackers=("trackio",), project=project)
        train(small_run(log=log), TextBytes(), str(tmp_path / project))
        assert (tmp_path / "sent").read_text() == repr([project, *range(1, 12), 12, 12])


@pytest.mark.parametrize(("name", "value", "beside"), LOG)
def test_each_option_of_the_log_shows(name: str, value: Any, beside: dict[str, Any], base: Any, tmp_path: Path) -> None:
    if name == "trackers":
        pytest.importorskip("tensorboardX")
    usual = dataclasses.replace(QUIET, **beside)
    other = dataclasses.replace(usual, **{name: value})
    assert outcome(small_run(log=other), tmp_path / "1") != base(small_run(log=usual))


@pytest.mark.parametrize(("name", "value"), EVALUATION)
def test_each_option_of_the_evaluation_shows(name: str, value: Any, base: Any, tmp_path: Path) -> None:
    blocks = {"capacity_rows": 4, "capacity_groups": 2} if name == "capacity_factors" else {}
    model = dataclasses.replace(small_run().model, **blocks)
    usual, other = base(small_run(log=QUIET), evaluates=True), Evaluation(**{name: value})
    found = outcome(small_run(log=QUIET, model=model, evaluation=other), tmp_path / "1", True)
    assert found["trained"] == usual["trained"]
    assert found != usual
    with pytest.raises(
        UsageError, match=re.escape(f"evaluation.{name} = {value} has no effect without a validation set")
    ):
        train(small_run(model=model, evaluation=other), TextBytes(), str(tmp_path))


@pytest.mark.parametrize(("name", "value"), CHECKPOINT)
def test_each_option_of_the_checkpoints_shows(name: str, value: Any, base: Any, tmp_path: Path) -> None:
    value = str(tmp_path / "1" / value) if isinstance(value, str) else value
    other = dataclasses.replace(SAVING, **{name: value})
    usual = base(small_run(log=QUIET, checkpoint=SAVING))
    assert outcome(small_run(log=QUIET, checkpoint=other), tmp_path / "1") != usual


def test_a_run_that_starts_afresh_still_continues_the_run_it_names(finished: str, tmp_path: Path) -> None:
    run = saving_run(resume_from=f"{finished}/checkpoints", checkpoint=Checkpoints(load=False))
    assert train(run, TextBytes(), str(tmp_path)).resumed_from == 12
    with pytest.raises(CheckpointError, match=r"checkpoint.load is true, but there is no valid checkpoint"):
        train(saving_run(checkpoint=Checkpoints(load=True)), TextBytes(), str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: Log(watch_every=5), "log.watch_every = 5 has no effect without log.watch"),
        (lambda: Log(project="x"), "log.project = 'x' has no effect without the tracker trackio or wandb"),
        (lambda: Log(progress_seconds=math.nan), "log.progress_seconds is nan"),
        (lambda: Log(histograms_every=0), "log.histograms_every is 0"),
        (lambda: small_run(log=Log(profile=(12, 14))), "log.profile starts at step 12, but the run has only 12 steps"),
        (lambda: small_run(initialize_from="a", resume_from="b"), "initialize_from has no effect with resume_from"),
        (lambda: tiny_run(expert_parallel=2), "expert_parallel = 2 has no effect: the model has no routed experts"),
        (lambda: check_tensor(small_run().model, {}, 2), "tensor_parallel = 2 has no effect: no weight"),
        (lambda: changed(exchange="ring"), "model.exchange = 'ring' has no effect with expert_parallel = 1"),
        (lambda: changed(capacity_rows=2), "model.capacity_rows = 2 has no effect without model.capacity_factor"),
        (lambda: changed(capacity_groups=2), "model.capacity_groups = 2 has no effect without model.capacity_factor"),
        (
            lambda: tiny_run(evaluation=Evaluation(capacity_factors=(2.0,))),
            "in which capacity_factor would have no effect",
        ),
    ],
)
def test_options_without_effect_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings()


def changed(**settings: Any) -> Run:
    """The small run with other settings of its model."""
    return small_run(model=dataclasses.replace(small_run().model, **settings))
