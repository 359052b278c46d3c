"""Implements `datakit train --dry-run`: reports the kernels and the memory of a run's steps without training. It opens
the data and compiles each step that the run will need, which takes as long as it takes a run to start; a later start
finds the compiled steps in the compilation cache. Nothing is allocated on the devices and no directory is created.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jax

from datakit.trainer.config import Run
from datakit.trainer.load_run import caches_of, load_begun
from datakit.trainer.loop.compilation_cache import use_compilation_cache
from datakit.trainer.models import kernels
from datakit.trainer.models.weights import parameter_count
from datakit.trainer.run_directory.run_record import root_of
from datakit.trainer.run_file import read_run_file
from datakit.trainer.sizes import memory
from datakit.trainer.train import say_on_stderr, trainer_of


@dataclass(frozen=True)
class StepReport:
    """A step's batch, and its memory per device in bytes."""

    rows: int
    length: int
    passes: int  # number of microbatches
    need: memory.Need
    total: int
    room: int | None  # None: unknown
    fits: bool | None
    proposals: list[str]  # options with which the step fits, if it does not


@dataclass(frozen=True)
class DryRun:
    """A run's number of parameters, its kernels by part, and a report for each shape of its batches."""

    parameters: int
    kernels: dict[str, str]
    steps: list[StepReport]


def dry_run(
    path: str | Path, root: str = "./data", overrides: Iterable[str] = (), say: memory.Say = say_on_stderr
) -> DryRun:
    """Compile the steps of the run that a run file defines, and say what they need.

    Raises the errors of `load_run`, and LoaderError if there is not enough data.
    """
    run, data = load_begun(
        read_run_file(path, overrides), root_of(path, root), say, finished=False, pinned=caches_of(path)
    )
    with data.loader() as loader:
        outline = loader.outline(run.steps)
    use_compilation_cache(run.compilation_cache, say)
    trainer = trainer_of(run)
    for line in (*kernels.lines(run.model), *trainer.idle_lines(outline)):
        say(line)
    shapes = dict.fromkeys((rows, length) for _, rows, length in outline)
    with jax.set_mesh(trainer.mesh):
        steps = [_report(run, trainer, shape, say) for shape in shapes]
    return DryRun(parameter_count(trainer.table), kernels.kernels(run.model), steps)


def _report(run: Run, trainer: memory.Trainer, shape: memory.Shape, say: memory.Say) -> StepReport:
    (rows, length), watch = shape, bool(run.log.watch)
    say(f"compiling the training step for {rows:,} sequences of {length:,} tokens")
    found = memory.need(memory.compiled_with(trainer, shape, watch))
    room, options = memory.room(trainer), list[str]()
    say(found.line(room))
    fits = None if room is None else found.total <= room
    if room is not None and not fits:
        say("this does not fit; looking for settings that do")
        trials = memory.proposals(trainer, found, room, shape, watch, say, memory.takes_microbatches(run))
        options = [trial.settings() for trial in trials]
        say(memory.advice(trials))
    return StepReport(rows, length, trainer.passes(shape), found, found.total, room, fits, options)
