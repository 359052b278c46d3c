"""Determines how much memory a training step needs, before the first step, and finds settings with which it fits.

    found = need(compiled)          # from XLA's own analysis of the compiled step
    check(run, trainer, compiled, shape, watch, say)

XLA assigns every buffer of a program when it compiles it, so the figures are exact for the step itself. Not included
are a few batches that are ready in advance, and an evaluation, which needs less than a step. The step has to be
compiled anyway, so the check costs nothing unless the step does not fit. In that case, other settings are compiled and
compared with the device's memory: recomputing all activations (`remat`), and smaller microbatches, of which the largest
that fits is found by bisection. Each trial takes as long as compiling the step.

The memory of a GPU is the pool that JAX reserved (`bytes_limit`, three quarters of the GPU's memory by default); that
of a CPU is what is available on the machine or in the container, shared by all CPU devices of the process.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import BATCH, batch_parts
from datakit.trainer.multihost import least
from datakit.trainer.step import Trainer

MEMINFO, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
STRONGEST_REMAT = "recompute_all"  # the value of a model's setting `remat` that needs the least memory
INSIST = "To start anyway, set check_memory = false"

Say = Callable[[str], None]
Shape = tuple[int, int]  # (rows, length) of a batch


@dataclass(frozen=True)
class Need:
    """The memory, in bytes, that a compiled step needs on each device."""

    state: int  # the arguments: parameters, moments, averages, and a batch
    work: int  # temporary buffers: activations, gradients and logits
    results: int  # results that do not reuse the buffers of the arguments

    @property
    def total(self) -> int:
        """All of it."""
        return self.state + self.work + self.results

    def line(self, room: int | None) -> str:
        """Return the figures as one line; `room` is the memory of a device (None: unknown)."""
        of = "" if room is None else f" of {shown(room)}"
        parts = f"state {shown(self.state)}, work {shown(self.work)}, results {shown(self.results)}"
        return f"a step needs {shown(self.total)}{of} per device: {parts}"


@dataclass(frozen=True)
class Trial:
    """Settings that were compiled, and the memory that a step needs with them."""

    microbatch: int | None
    remat: str | None  # None: as in the run
    need: Need

    def settings(self) -> str:
        """Return the settings as options of a command."""
        remat = None if self.remat is None else f"--set model.remat={self.remat}"
        microbatch = None if self.microbatch is None else f"--set microbatch={self.microbatch}"
        return " ".join(option for option in (microbatch, remat) if option)


def shown(size: int) -> str:
    """Return a number of bytes for people.
    >>> shown(3_100_000_000), shown(12_400_000)
    ('3.1 GB', '12.4 MB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def need(compiled: Any) -> Need:
    """Return what a compiled step needs on each device."""
    found = compiled.memory_analysis()
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return Need(found.argument_size_in_bytes, found.temp_size_in_bytes, results)


def room(trainer: Trainer, held: int = 0) -> int | None:
    """Return the memory of one of the trainer's devices in bytes, the same in all processes, or None if it is unknown.
    `held` is what this process has already allocated per device for the step.
    """
    own = [device for device in trainer.mesh.devices.flat if device.process_index == jax.process_index()]
    statistics = own[0].memory_stats()
    if statistics is not None and "bytes_limit" in statistics:
        found = int(statistics["bytes_limit"])
    else:
        free = available() if own[0].platform == "cpu" else None
        found = -1 if free is None else free // len(own) + held
    agreed = least(found)
    return None if agreed < 0 else agreed


def available() -> int | None:
    """Return the bytes of memory that this process can still allocate on the machine and in its container, or None if
    the system does not say.
    """
    try:
        fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        found = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
    try:
        limit, used = ((GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return found
    return min(found, int(limit) - int(used)) if limit.isdigit() else found


def check(run: Any, trainer: Trainer, compiled: Any, shape: Shape, watch: bool, say: Say) -> None:
    """Say what a compiled step for batches of this shape needs. Raises UsageError if that is more than a device has,
    unless the run sets `check_memory` to false. The state must already be in the devices' memory.
    """
    found = need(compiled)
    limit = room(trainer, found.state)
    say(found.line(limit))
    if limit is None or found.total <= limit:
        return
    if not run.check_memory:
        say("warning: this does not fit; the run goes on, because check_memory is false")
        return
    trainer.programs.pop((shape, watch), None)  # so that another run in this process is checked, too
    say("this does not fit; looking for settings that do")
    trials = proposals(trainer, found, limit, shape, watch, say, microbatches=takes_microbatches(run))
    raise UsageError(f"{found.line(limit)}. {advice(trials)}. {INSIST}")


def takes_microbatches(run: Any) -> bool:
    """Return True if the run may set `microbatch`: its model can be trained in several passes, and drops nothing."""
    try:
        dataclasses.replace(run, microbatch=1)
    except UsageError:
        return False
    return True


def check_state(run: Any, trainer: Trainer) -> None:
    """Raise UsageError if not even the state fits into the devices' memory, before it is created."""
    limit, size = room(trainer), state_size(trainer)
    if run.check_memory and limit is not None and size > limit:
        raise UsageError(
            f"the parameters, moments and averages need {shown(size)} per device, but a device has only "
            f"{shown(limit)}; use more devices, fewer replicas or a smaller model. {INSIST}"
        )


def state_size(trainer: Trainer) -> int:
    """Return the bytes of the training state on each device."""
    return sum(
        int(np.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize
        for array in jax.tree.leaves(trainer.like())
    )


def advice(found: list[Trial]) -> str:
    """Return a sentence with the settings that fit."""
    if not found:
        return "No microbatch and no remat that the run may set makes it fit; use more devices or a smaller model"
    return f"Use {' or '.join(f'{trial.settings()} ({shown(trial.need.total)})' for trial in found)}"


def proposals(
    trainer: Trainer, found: Need, limit: int, shape: Shape, watch: bool, say: Say, microbatches: bool = True
) -> list[Trial]:
    """Return settings with which a step fits into `limit` bytes: at most one with the run's own `remat`, and one with
    the strongest. `found` is the need with the run's settings. microbatches: also try smaller microbatches. Each trial
    is reported to `say`.
    """
    own = shape[0] // batch_parts(trainer.mesh)
    now = own // trainer.passes(shape)
    stronger = _has_stronger_remat(trainer.config)

    def attempt(microbatch: int, remat: str | None) -> Trial:
        changed = None if microbatch == now else microbatch
        trial = Trial(changed, remat, need(compiled_with(trainer, shape, watch, microbatch, remat)))
        say(f"  with {trial.settings()}: {shown(trial.need.total)}")
        return trial

    results = []
    if stronger and (whole := attempt(now, STRONGEST_REMAT)).need.total <= limit:
        results.append(whole)
    if not microbatches:
        return results
    for remat in (None, *([STRONGEST_REMAT] if stronger and not results else [])):
        results += _largest(lambda microbatch, remat=remat: attempt(microbatch, remat), now, own, limit)
        if results:
            break
    return results


def _largest(attempt: Callable[[int], Trial], now: int, own: int, limit: int) -> list[Trial]:
    """Return the trial with the largest microbatch below `now` that fits, or nothing. `own` is the number of rows of a
    device, which a microbatch divides.
    """
    sizes = [size for size in range(1, now) if own % size == 0]
    if not sizes or (best := attempt(sizes[0])).need.total > limit:
        return []
    low, high = 0, len(sizes)  # sizes[low] fits; sizes[high] does not, or is the present one
    while high - low > 1:
        middle = (low + high) // 2
        trial = attempt(sizes[middle])
        if trial.need.total <= limit:
            best, low = trial, middle
        else:
            high = middle
    return [best]


def _has_stronger_remat(config: Any) -> bool:
    allowed = typing.get_args(typing.get_type_hints(type(config)).get("remat"))
    return STRONGEST_REMAT in allowed and config.remat != STRONGEST_REMAT


def compiled_with(
    trainer: Trainer, shape: Shape, watch: bool = False, microbatch: int | None = None, remat: str | None = None
) -> Any:
    """Compile a step for batches of this shape without allocating anything; None keeps the trainer's own setting."""
    config = trainer.config if remat is None else dataclasses.replace(trainer.config, remat=remat)
    size = trainer.microbatch if microbatch is None else microbatch
    other = dataclasses.replace(trainer, config=config, microbatch=size)
    return other.advance.lower(other.like(), abstract_batch(trainer, shape), other.rates_like(), watch=watch).compile()


def abstract_batch(trainer: Trainer, shape: Shape) -> Tokens:
    """Return the shapes, dtypes and shardings of a batch."""
    rows = NamedSharding(trainer.mesh, P(BATCH))
    arrays: Any = (jax.ShapeDtypeStruct(shape, kind, sharding=rows) for kind in (jnp.int32, jnp.int32, jnp.bool_))
    return Tokens(*arrays)
