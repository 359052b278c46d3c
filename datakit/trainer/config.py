"""Defines the top-level, `[evaluation]` and `[log]` settings of a run file and their limits, and decides which settings
enter the fingerprint. `docs/trainer.md` shows a run file, and `run_file.py` reads it.

Of the other tables, `[checkpoint]` has the fields of `checkpoint.Checkpoints`. In `[model]` and `[optimizer]`, `kind`
names the model (such as "grug") or the optimizer (such as "adamh"), or a file beside the run file (such as "mine.py").
The other keys are the fields of its `Config` class.

The fingerprint covers the settings that determine the result: model, optimizer, steps, seed, mixture, and the runs that
`initialize_from` and `resume_from` name. For a model outside of this package, it also covers the model's source. It
does not cover how the run is executed (devices, `microbatch`, `check_memory`, checkpoints, evaluation, logging, and the
settings of a model that affect only memory and speed, such as `remat`).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from datakit.errors import UsageError
from datakit.recipe import NAME_RULE
from datakit.storage.fingerprint import fingerprint
from datakit.toml_config import check_idle
from datakit.trainer import STAGE
from datakit.trainer.accumulation import check_model
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.huggingface import initialize
from datakit.trainer.models import grug, identity, load_model
from datakit.trainer.models.experts.capacity import capacity_name, check_parallel, idle_settings
from datakit.trainer.models.protocol import check_tensor, operation_settings
from datakit.trainer.norms import check_watch
from datakit.trainer.optimizers import adamh, record
from datakit.trainer.optimizers.protocol import Optimizer
from datakit.trainer.run_directory.other_run import identity_of

DEFAULT_CACHE = "~/.cache/datakit/jax"
VERSION = 2


@dataclass(frozen=True)
class Evaluation:
    """Settings of the evaluations, which run every `every` training steps and at the end of the run."""

    every: int | None = None  # training steps between evaluations; None: evaluate only at the end
    batches: int | None = None  # maximum number of batches to evaluate per tag; None: all
    every_length: bool = False  # also evaluate with the sequence length of each other stage, as eval/length_<L>/
    # Also evaluate with these values of model.capacity_factor, as eval/capacity_<factor>/; otherwise nothing is dropped
    capacity_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(0 < factor < math.inf for factor in self.capacity_factors):
            raise UsageError(f"evaluation.capacity_factors is {list(self.capacity_factors)}; use positive numbers")
        if len({capacity_name(factor) for factor in self.capacity_factors}) < len(self.capacity_factors):
            raise UsageError(
                f"evaluation.capacity_factors is {list(self.capacity_factors)}; use numbers that differ in their first "
                "six digits, because these give the metrics their names"
            )
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
    watch_histograms: bool = False  # also log a histogram of the values of each watched weight
    # Alarm if the loss exceeds the median of the last 100 logged losses by this many standard deviations
    spike: float = 8.0
    profile: tuple[int, int] | None = None  # (first, end): trace the training steps first to end - 1, counted from 0
    progress_seconds: float = 5.0

    def __post_init__(self) -> None:
        check_watch(self.watch)
        for name in ("every", "histograms_every", "watch_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"log.{name} is {getattr(self, name)}; use at least 1 step")
        if not self.spike > 0:
            raise UsageError(f"log.spike is {self.spike}; use a positive number of standard deviations")
        if not self.progress_seconds >= 0:
            raise UsageError(f"log.progress_seconds is {self.progress_seconds}; use at least 0")
        if not self.watch:
            check_idle("log", self, [dict.fromkeys(("watch_every", "watch_histograms"), "without log.watch")])
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
    kind: str = "grug"  # a built-in name, an import path, or the path of a model file
    optimizer: Any = field(default_factory=adamh.Config)  # an instance of the Config class of an optimizer
    seed: int = 0
    # Directory of another run or of its checkpoint, from which only the weights are taken, or hf:<folder> with a model
    # of the hub
    initialize_from: str | None = None
    # Directory of another run or of its checkpoint, to continue it, e.g. with a changed mixture
    resume_from: str | None = None
    # metric -> expected value; overrides the scaling law's prediction
    expect: dict[str, float] = field(default_factory=dict)
    # Number of devices that the cores of a CPU form; None: one, unless XLA_FLAGS says more
    cpu_devices: int | None = None
    replicas: int = 1  # number of full copies of the weights; each is sharded over its share of the devices
    expert_parallel: int = 1  # number of devices that share the routed experts: each holds its part of them
    tensor_parallel: int = 1  # number of devices that share attention heads and the vocabulary
    # Allowed range of the ratio of a group's norm to its norm at the start. AdamH's groups use `norms.FIXED_BAND`.
    norm_band: tuple[float, float] = (0.2, 5.0)
    # Maximum number of rows that a device processes at once. The gradients of a batch with more rows are accumulated.
    microbatch: int | None = None
    check_memory: bool = True  # refuse to start if XLA's analysis says that a step does not fit into the memory
    peak_flops: float | None = None  # dense bf16 FLOP/s of one device; None: look it up in `trackers.PEAK_FLOPS`
    # Directory or URL for compiled functions, shared by all runs; "" disables it
    compilation_cache: str = DEFAULT_CACHE
    checkpoint: Checkpoints = field(default_factory=Checkpoints)
    evaluation: Evaluation = field(default_factory=Evaluation)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        if not NAME_RULE.fullmatch(self.name):
            raise UsageError(f"run {self.name!r}: use letters, digits and ._- only, and start with a letter or a digit")
        if self.steps < 1:
            raise UsageError(f"run {self.name!r}: steps is {self.steps}; use at least 1")
        if self.cpu_devices is not None and self.cpu_devices < 1:
            raise UsageError(
                f"run {self.name!r}: cpu_devices is {self.cpu_devices}; use at least 1, or remove this setting"
            )
        if self.replicas < 1:
            raise UsageError(f"run {self.name!r}: replicas is {self.replicas}; use at least 1")
        if self.microbatch is not None and self.microbatch < 1:
            raise UsageError(
                f"run {self.name!r}: microbatch is {self.microbatch}; use at least 1 row, or remove this setting"
            )
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
        model = load_model(self.kind)
        if not isinstance(self.model, model.Config):
            raise UsageError(f"run {self.name!r}: `model` is not an instance of the Config class of {self.kind!r}")
        if self.microbatch is not None:
            check_model(load_model(self.kind), self.kind)
            if getattr(self.model, "capacity_factor", None) is not None or self.evaluation.capacity_factors:
                raise UsageError(
                    f"run {self.name!r}: with a capacity, what is dropped would depend on microbatch = "
                    f"{self.microbatch}; remove microbatch or the capacity"
                )
        if not isinstance(self.optimizer, Optimizer):
            raise UsageError(f"run {self.name!r}: `optimizer` is not an instance of the Config class of an optimizer")
        table = model.weights(self.model)
        check_parallel(self.model, table, self.expert_parallel, self.evaluation.capacity_factors)
        check_tensor(self.model, table, self.tensor_parallel)

    def content(self, mixture: dict[str, Any]) -> dict[str, Any]:
        """Return all settings that determine the result, including defaults; `mixture` is from `BatchSource.record`."""
        left_out = {*operation_settings(self.model), *idle_settings(self.model)}
        model = {name: value for name, value in dataclasses.asdict(self.model).items() if name not in left_out}
        return {
            **identity(self.kind),
            "model": model,
            "optimizer": record(self.optimizer),
            "steps": self.steps,
            "seed": self.seed,
            "initialize_from": initialize.content_of(self.initialize_from)
            or identity_of("initialize_from", self.initialize_from),
            "resume_from": identity_of("resume_from", self.resume_from),
            "mixture": mixture.get("fingerprint"),
        }

    def fingerprint(self, mixture: dict[str, Any]) -> str:
        """Return the hash of `content(mixture)`, as 32 hexadecimal digits."""
        return fingerprint(STAGE, VERSION, self.content(mixture), [])
