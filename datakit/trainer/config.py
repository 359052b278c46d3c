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
    [data]                    # the mixture: see `data.py`

Content (model, optimizer, steps, seed, mixture) makes the run's fingerprint; how it is run (devices, checkpoints,
evaluation, logging) does not.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from datakit.errors import RecipeError, UsageError
from datakit.recipe import NAME_RULE
from datakit.storage.fingerprint import fingerprint
from datakit.toml_config import check_keys, convert, names_of, toml_value
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.models import grug, load_model
from datakit.trainer.norms import check_watch
from datakit.trainer.optimizer import Optimizer

STAGE = "train"
VERSION = 1


@dataclass(frozen=True)
class Evaluation:
    """When to evaluate; always at the end, too."""

    every: int | None = None  # steps
    batches: int | None = None  # of each tag, at most

    def __post_init__(self) -> None:
        for name in ("every", "batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"evaluation.{name} is {value}; it is at least 1, or left out")


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
        if self.profile is not None and not 0 <= self.profile[0] < self.profile[1]:
            raise UsageError(f"log.profile is {list(self.profile)}; give the first step and the one after the last")


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
    compilation_cache: str = "~/.cache/datakit/jax"  # compiled steps of all runs; "" keeps none
    checkpoint: Checkpoints = field(default_factory=Checkpoints)
    evaluation: Evaluation = field(default_factory=Evaluation)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        if not NAME_RULE.fullmatch(self.name):
            raise UsageError(f"run {self.name!r}: a name has letters, digits and ._- and begins with one of the former")
        if self.steps < 1:
            raise UsageError(f"run {self.name!r}: steps is {self.steps}; train for at least one")
        if self.replicas < 1:
            raise UsageError(f"run {self.name!r}: replicas is {self.replicas}; one copy of the weights is the least")
        if not 0 < self.norm_band[0] < 1 < self.norm_band[1]:
            raise UsageError(f"run {self.name!r}: norm_band is {list(self.norm_band)}; the band lies around 1")
        if self.peak_flops is not None and not self.peak_flops > 0:
            raise UsageError(f"run {self.name!r}: peak_flops is {self.peak_flops}; give FLOP/s, or leave it out")
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


def parse_run(document: dict[str, Any], place: str) -> Run:
    """A run from its TOML document, without `[data]`; unknown keys are errors wherever they stand."""
    check_keys(document, (name for name in names_of(Run) if name != "kind"), place)
    for name, kind in TABLES.items():
        _check_table(document.get(name, {}), kind, f"{place}, [{name}]")
    model = dict(document.get("model", {}))
    name = model.pop("kind", "grug")
    config, here = load_model(name).Config, f"{place}, [model]"
    _check_table(model, config, here)
    return convert(document | {"kind": name, "model": convert(model, config, here)}, Run, place)


TABLES: dict[str, type] = {"optimizer": Optimizer, "checkpoint": Checkpoints, "evaluation": Evaluation, "log": Log}


def _check_table(table: Any, kind: type, place: str) -> None:
    if not isinstance(table, dict):
        raise RecipeError(f"{place} is a table, not a value")
    check_keys(table, names_of(kind), place)


def with_overrides(document: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """The document with `steps=20`, `model.hidden=64`, ... applied; a word that is no TOML value is a string."""
    changed = copy.deepcopy(document)
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        *tables, key = [part.strip() for part in path.split(".")]
        if not equals or not key:
            raise UsageError(f"{assignment!r} is not of the form key=value, e.g. model.hidden=64")
        table = changed
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise UsageError(f"{assignment!r}: {name!r} is a value, not a table")
        table[key] = toml_value(value.strip())
    return changed
