"""Defines a training run as frozen dataclasses, and reads it from a run file (TOML).

    name = "demo"
    steps = 200

    [model]                   # kind = "grug", or "my_package.my_variant"; the other keys are its Config
    hidden = 64
    layers = 4

    [optimizer]               # optimizer.Optimizer
    learning_rate = 0.02

    [checkpoint]              # checkpoint.Checkpoints
    [evaluation]
    every = 100
    [log]
    trackers = ["tensorboard"]
    [data]                    # the mixture; see `data.py`

The fingerprint covers what is trained: model, optimizer, steps, seed and mixture. How it is trained (devices,
checkpoints, evaluation, logging) is not part of it.
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
from datakit.toml_config import check_keys, convert, decoded, load_toml, names_of
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.models import grug, load_model
from datakit.trainer.norms import check_watch
from datakit.trainer.optimizer import Optimizer

STAGE = "train"
VERSION = 1
RUNS = Path(__file__).with_name("runs")


@dataclass(frozen=True)
class Evaluation:
    """Evaluations during the run, in addition to the one at its end."""

    every: int | None = None  # training steps
    batches: int | None = None  # limit for each tag

    def __post_init__(self) -> None:
        for name in ("every", "batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"evaluation.{name} is {value}; use at least 1, or leave it out")


@dataclass(frozen=True)
class Log:
    """Metrics to log during the run."""

    every: int = 1  # steps between rows
    trackers: tuple[str, ...] = ()  # in addition to the JSON lines
    project: str = "datakit"
    watch: tuple[str, ...] = ()  # norms to log, from norms.WATCHABLE
    watch_every: int = 10
    profile: tuple[int, int] | None = None  # first training step, and the one after the last
    progress_seconds: float = 5.0

    def __post_init__(self) -> None:
        check_watch(self.watch)
        if min(self.every, self.watch_every) < 1:
            raise UsageError("log.every and log.watch_every must be at least 1 step")
        if self.profile is not None and not 0 <= self.profile[0] < self.profile[1]:
            raise UsageError(f"log.profile is {list(self.profile)}; give the first step and the one after the last")


@dataclass(frozen=True)
class Run:
    """A training run without its data. Raises UsageError for values out of range."""

    name: str
    steps: int
    model: Any = field(default_factory=grug.Config)  # the Config of `kind`
    kind: str = "grug"
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0
    initialize_from: str | None = None  # a checkpoint that supplies the weights at step 0, and nothing else
    resume_from: str | None = None  # a run to continue although its fingerprint differs (e.g. its mixture)
    expect: dict[str, float] = field(default_factory=dict)  # by metric; the scaling law adds its own
    replicas: int = 1  # full copies of the weights, each sharded over its devices
    norm_band: tuple[float, float] = (0.2, 5.0)  # allowed norm of a group, as multiples of its first norm
    peak_flops: float | None = None  # FLOP/s of a device that is not in `trackers.PEAK_FLOPS`
    compilation_cache: str = "~/.cache/datakit/jax"  # for compiled functions of all runs; "" disables it
    checkpoint: Checkpoints = field(default_factory=Checkpoints)
    evaluation: Evaluation = field(default_factory=Evaluation)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        if not NAME_RULE.fullmatch(self.name):
            raise UsageError(f"run {self.name!r}: use letters, digits and ._- and start with a letter or digit")
        if self.steps < 1:
            raise UsageError(f"run {self.name!r}: steps is {self.steps}; use at least 1")
        if self.replicas < 1:
            raise UsageError(f"run {self.name!r}: replicas is {self.replicas}; use at least 1")
        if not 0 < self.norm_band[0] < 1 < self.norm_band[1]:
            raise UsageError(f"run {self.name!r}: norm_band is {list(self.norm_band)}; the band must contain 1")
        if self.peak_flops is not None and not self.peak_flops > 0:
            raise UsageError(f"run {self.name!r}: peak_flops is {self.peak_flops}; give FLOP/s, or leave it out")
        if not isinstance(self.model, load_model(self.kind).Config):
            raise UsageError(f"run {self.name!r}: model config is not a Config of {self.kind!r}")

    def content(self, mixture: dict[str, Any]) -> dict[str, Any]:
        """Return everything that decides the result, defaults included; `mixture` is the loader's description."""
        return {
            "kind": self.kind,
            "model": dataclasses.asdict(self.model),
            "optimizer": dataclasses.asdict(self.optimizer),
            "steps": self.steps,
            "seed": self.seed,
            "initialize_from": self.initialize_from,
            "resume_from": self.resume_from,
            "mixture": mixture.get("fingerprint"),
        }

    def fingerprint(self, mixture: dict[str, Any]) -> str:
        """Hash of the content, 32 hex digits."""
        return fingerprint(STAGE, VERSION, self.content(mixture), [])


@dataclass(frozen=True)
class RunFile:
    """A run file with its overrides applied. The run itself also needs the vocabulary of the data."""

    path: Path
    run_tables: dict[str, Any]
    data_table: dict[str, Any]

    def run(self, vocabulary: int) -> Run:
        """Return the run; a model without a vocabulary gets this one. Raises RecipeError and UsageError."""
        model = {"vocabulary": vocabulary, **self.run_tables.get("model", {})}
        return parse_run({**self.run_tables, "model": model}, str(self.path))


def read_run_file(name_or_path: str | Path, overrides: Iterable[str] = ()) -> RunFile:
    """Read a run file, or the built-in run of that name. Raises RecipeError and UsageError."""
    missing = "no training run {!r}: neither a TOML file nor a known name"
    path, document = load_toml(name_or_path, RUNS, missing, "give the TOML file of a training run", overrides)
    data = document.pop("data", {})
    return RunFile(path, document, data)


def parse_run(document: dict[str, Any], place: str) -> Run:
    """Decode the tables of a run file other than `[data]`. Raises RecipeError for unknown keys at any level."""
    check_keys(document, (name for name in names_of(Run) if name != "kind"), place)
    model = dict(document.get("model", {}))
    kind = model.pop("kind", "grug")
    tables = {**document, "model": model}
    types = {**TABLES, "model": load_model(kind).Config}
    decoded_tables = {name: decoded(tables.get(name, {}), table, f"{place}, [{name}]") for name, table in types.items()}
    return convert({**document, **decoded_tables, "kind": kind}, Run, place)


TABLES: dict[str, type] = {"optimizer": Optimizer, "checkpoint": Checkpoints, "evaluation": Evaluation, "log": Log}
