"""What a training run is, as frozen dataclasses; a TOML file says the same.

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
    [data]                    # the mixture; read by whoever opens the caches

Content (model, optimizer, steps, seed, mixture) makes the run's fingerprint; how it is run (devices, checkpoints,
evaluation, logging) does not.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datakit.errors import RecipeError, UsageError
from datakit.recipe import check_keys, convert
from datakit.storage.fingerprint import fingerprint
from datakit.trainer.checkpoint import Checkpoints
from datakit.trainer.interface import load_model
from datakit.trainer.models import grug
from datakit.trainer.optimizer import Optimizer
from datakit.trainer.watch import check_watch

STAGE = "train"
VERSION = 1


@dataclass(frozen=True)
class Evaluation:
    """When to evaluate; always at the end, too."""

    every: int | None = None  # steps
    batches: int | None = None  # of each tag, at most


@dataclass(frozen=True)
class Log:
    """What to write while it runs."""

    every: int = 1  # steps between rows
    trackers: tuple[str, ...] = ()  # beside the JSON lines
    project: str = "datakit"
    watch: tuple[str, ...] = ()  # of watch.WATCHABLE
    watch_every: int = 10
    profile: tuple[int, int] | None = None  # first step, and the step after the last
    progress_seconds: float = 5.0

    def __post_init__(self) -> None:
        check_watch(self.watch)
        if min(self.every, self.watch_every) < 1:
            raise UsageError("log.every and log.watch_every are at least 1 step")


@dataclass(frozen=True)
class Run:
    """A training run, without its data."""

    name: str
    steps: int
    model: Any = field(default_factory=grug.Config)  # the Config of `kind`
    kind: str = "grug"
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0
    initialize_from: str | None = None  # a checkpoint whose weights alone are taken, at step 0
    resume_from: str | None = None  # a run of another fingerprint to go on from, e.g. with a changed mixture
    expect: dict[str, float] = field(default_factory=dict)  # metric: what it should reach; the record adds a law's own
    replicas: int = 1  # whole copies of the weights; the devices of a copy share them
    norm_band: tuple[float, float] = (0.2, 5.0)  # multiples of its first norm within which a group is calm
    peak_flops: float | None = None  # of a device, where `metrics.PEAK_FLOPS` does not know it
    compilation_cache: str | None = "~/.cache/datakit/jax"
    checkpoint: Checkpoints = field(default_factory=Checkpoints)
    evaluation: Evaluation = field(default_factory=Evaluation)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"run {self.name!r}: steps is {self.steps}; train for at least one")
        if not isinstance(self.model, load_model(self.kind).Config):
            raise UsageError(f"run {self.name!r}: the model's config is no Config of {self.kind!r}")

    def content(self, mixture: dict[str, Any]) -> dict[str, Any]:
        """All that decides the result, with every default made explicit; `mixture` is the loader's record."""
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
        """32 hex digits over the content."""
        return fingerprint(STAGE, VERSION, self.content(mixture), [])


def load_run(path: str | Path) -> tuple[Run, dict[str, Any]]:
    """(the run, its raw `[data]` table) of a TOML file. Raises RecipeError, UsageError."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(f"{path} is not there; give the TOML file of a training run") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path} is not valid TOML: {error}") from error
    return parse_run(document, str(path))


def parse_run(document: dict[str, Any], place: str) -> tuple[Run, dict[str, Any]]:
    """See `load_run`; unknown keys are errors wherever they stand."""
    known = [entry.name for entry in dataclasses.fields(Run) if entry.name != "kind"]
    check_keys(document, [*known, "data"], place)
    for name, kind in TABLES.items():
        _check_table(document.get(name, {}), kind, f"{place}, [{name}]")
    model = dict(document.get("model", {}))
    name = model.pop("kind", "grug")
    config, here = load_model(name).Config, f"{place}, [model]"
    _check_table(model, config, here)
    values = {key: value for key, value in document.items() if key != "data"}
    return convert(values | {"kind": name, "model": convert(model, config, here)}, Run, place), document.get("data", {})


TABLES: dict[str, type] = {"optimizer": Optimizer, "checkpoint": Checkpoints, "evaluation": Evaluation, "log": Log}


def _check_table(table: Any, kind: type, place: str) -> None:
    if not isinstance(table, dict):
        raise RecipeError(f"{place} is a table, not a value")
    check_keys(table, [entry.name for entry in dataclasses.fields(kind)], place)
