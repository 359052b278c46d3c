"""Defines the top-level, `[evaluation]` and `[log]` settings of a run file and their limits, decodes all tables except
`[data]`, and decides which settings enter the fingerprint. `docs/trainer.md` shows a run file.

Of the other tables, `[optimizer]` has the fields of `optimizer.Optimizer`, and `[checkpoint]` those of
`checkpoint.Checkpoints`. In `[model]`, `kind` names the model (such as "grug", or "mine" for mine.py beside the run
file), and the other keys are the fields of the model's `Config` class.

The fingerprint covers the settings that determine the result: model, optimizer, steps, seed, mixture, `initialize_from`
and `resume_from`. It does not cover how the run is executed (devices, checkpoints, evaluation, logging, and the
settings of a model that affect only memory and speed, such as `remat`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datakit.errors import UsageError
from datakit.recipe import NAME_RULE
from datakit.storage.fingerprint import fingerprint
from datakit.toml_config import check_idle, check_keys, convert, decoded, load_toml, names_of
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.models import grug, load_model
from datakit.trainer.models.protocol import operation_settings
from datakit.trainer.norms import check_watch
from datakit.trainer.optimizer import Optimizer

STAGE = "train"
VERSION = 2
RUNS = Path(__file__).with_name("runs")


@dataclass(frozen=True)
class Evaluation:
    """Settings of the evaluations, which run every `every` training steps and at the end of the run."""

    every: int | None = None  # training steps between evaluations; None: evaluate only at the end
    batches: int | None = None  # maximum number of batches to evaluate per tag; None: all

    def __post_init__(self) -> None:
        for name in ("every", "batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"evaluation.{name} is {value}; use at least 1, or remove this setting")


@dataclass(frozen=True)
class Log:
    """Settings for the metrics and traces that a run logs."""

    every: int = 1  # number of steps from one row of metrics to the next
    histograms_every: int = 100  # number of steps from one row of histograms to the next; the last step has a row too
    trackers: tuple[str, ...] = ()  # trackers to use in addition to the JSON lines
    project: str = "datakit"
    watch: tuple[str, ...] = ()  # kinds of norms to log, a subset of norms.WATCHABLE
    watch_every: int = 10
    profile: tuple[int, int] | None = None  # (first, end): trace the training steps first to end - 1, counted from 0
    progress_seconds: float = 5.0

    def __post_init__(self) -> None:
        check_watch(self.watch)
        for name in ("every", "histograms_every", "watch_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"log.{name} is {getattr(self, name)}; use at least 1 step")
        if not self.progress_seconds >= 0:
            raise UsageError(f"log.progress_seconds is {self.progress_seconds}; use at least 0")
        if not self.watch:
            check_idle("log", self, [{"watch_every": "without log.watch"}])
        if not {"trackio", "wandb"} & {*self.trackers}:
            check_idle("log", self, [{"project": "without the tracker trackio or wandb"}])
        if self.profile is not None and not 0 <= self.profile[0] < self.profile[1]:
            raise UsageError(
                f"log.profile is {list(self.profile)}; give [first, end] with 0 <= first < end, to trace the steps "
                "from first to end - 1"
            )


@dataclass(frozen=True)
class Run:
    """The settings of a training run, except its data. Raises UsageError for values out of range."""

    name: str
    steps: int
    model: Any = field(default_factory=grug.Config)  # an instance of the Config class of the model that `kind` names
    kind: str = "grug"
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0
    initialize_from: str | None = None  # directory of another run, from which only the weights are taken
    resume_from: str | None = None  # directory of another run to continue, e.g. with a changed mixture
    # metric -> expected value; overrides the scaling law's prediction
    expect: dict[str, float] = field(default_factory=dict)
    replicas: int = 1  # number of full copies of the weights; each is sharded over its share of the devices
    # Allowed range of the ratio of a group's norm to its norm at the start. AdamH's groups use `norms.FIXED_BAND`.
    norm_band: tuple[float, float] = (0.2, 5.0)
    peak_flops: float | None = None  # dense bf16 FLOP/s of one device; None: look it up in `trackers.PEAK_FLOPS`
    compilation_cache: str = "~/.cache/datakit/jax"  # folder for compiled functions, shared by all runs; "" disables it
    checkpoint: Checkpoints = field(default_factory=Checkpoints)
    evaluation: Evaluation = field(default_factory=Evaluation)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        if not NAME_RULE.fullmatch(self.name):
            raise UsageError(f"run {self.name!r}: use letters, digits and ._- only, and start with a letter or a digit")
        if self.steps < 1:
            raise UsageError(f"run {self.name!r}: steps is {self.steps}; use at least 1")
        if self.replicas < 1:
            raise UsageError(f"run {self.name!r}: replicas is {self.replicas}; use at least 1")
        if not 0 < self.norm_band[0] < 1 < self.norm_band[1]:
            raise UsageError(
                f"run {self.name!r}: norm_band is {list(self.norm_band)}; the first value must be between 0 and 1, "
                "and the second above 1"
            )
        if self.peak_flops is not None and not self.peak_flops > 0:
            raise UsageError(
                f"run {self.name!r}: peak_flops is {self.peak_flops}; give a positive number of FLOP/s, or remove this "
                "setting"
            )
        if self.log.profile is not None and self.log.profile[0] >= self.steps:
            raise UsageError(
                f"run {self.name!r}: log.profile starts at step {self.log.profile[0]}, but the run has only "
                f"{self.steps} steps; give earlier steps, or remove this setting"
            )
        if self.initialize_from is not None and self.resume_from is not None:
            raise UsageError(
                f"run {self.name!r}: initialize_from has no effect with resume_from, which restores the whole state "
                "of the run that it names; remove one of the two settings"
            )
        if not isinstance(self.model, load_model(self.kind).Config):
            raise UsageError(f"run {self.name!r}: `model` is not an instance of the Config class of {self.kind!r}")

    def content(self, mixture: dict[str, Any]) -> dict[str, Any]:
        """Return all settings that determine the result, including defaults; `mixture` is from `BatchSource.record`."""
        operation = operation_settings(self.model)
        model = {name: value for name, value in dataclasses.asdict(self.model).items() if name not in operation}
        return {
            "kind": self.kind,
            "model": model,
            "optimizer": dataclasses.asdict(self.optimizer),
            "steps": self.steps,
            "seed": self.seed,
            "initialize_from": self.initialize_from,
            "resume_from": self.resume_from,
            "mixture": mixture.get("fingerprint"),
        }

    def fingerprint(self, mixture: dict[str, Any]) -> str:
        """Return the hash of `content(mixture)`, as 32 hexadecimal digits."""
        return fingerprint(STAGE, VERSION, self.content(mixture), [])


@dataclass(frozen=True)
class RunFile:
    """A run file with its overrides applied."""

    path: Path
    run_tables: dict[str, Any]
    data_table: dict[str, Any]

    def run(self, vocabulary: int) -> Run:
        """Return the run; `vocabulary` is the default of `model.vocabulary`. Raises RecipeError or UsageError."""
        model = {"vocabulary": vocabulary, **self.run_tables.get("model", {})}
        return parse_run({**self.run_tables, "model": model}, str(self.path), self.path.resolve().parent)


def read_run_file(name_or_path: str | Path, overrides: Iterable[str] = ()) -> RunFile:
    """Read the run file at this path, or that of the built-in run with this name. Raises RecipeError or UsageError."""
    missing = "no training run {!r}: neither a TOML file nor a known name"
    path, document = load_toml(name_or_path, RUNS, missing, "give the TOML file of a training run", overrides)
    data = document.pop("data", {})
    return RunFile(path, document, data)


def parse_run(document: dict[str, Any], place: str, folder: Path | None = None) -> Run:
    """Decode all tables of a run file except `[data]`. Raises RecipeError for an unknown key at any level.

    folder: a directory from which the model can be imported, in addition to the import path.
    """
    check_keys(document, (name for name in names_of(Run) if name != "kind"), place)
    model = dict(document.get("model", {}))
    kind = model.pop("kind", "grug")
    tables = {**document, "model": model}
    types = {**TABLES, "model": load_model(kind, folder).Config}
    decoded_tables = {name: decoded(tables.get(name, {}), table, f"{place}, [{name}]") for name, table in types.items()}
    return convert({**document, **decoded_tables, "kind": kind}, Run, place)


TABLES: dict[str, type] = {"optimizer": Optimizer, "checkpoint": Checkpoints, "evaluation": Evaluation, "log": Log}
