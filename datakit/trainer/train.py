"""Trains a run: checks what it needs, resumes it from its newest valid checkpoint, runs the loop, and writes the
manifest.

    outcome = train(run, loader, "data", evaluations={"web": batches}, token_bytes=lengths)

A resumed run computes bit for bit what an uninterrupted run would have computed, because a batch is a function of the
step, and the state is all that a run carries from step to step. A NaN or infinite loss stops the run before a bad state
is saved: DivergedError is raised, the exit code is 5, and the last good checkpoint remains untouched. On SIGTERM or
Ctrl-C, the loop finishes the steps that it has started, saves, and raises SystemExit (exit code 143) or
KeyboardInterrupt (130). `loop/loop.py` describes the order in which things happen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import jax

from datakit.errors import UsageError, counted
from datakit.messages import show
from datakit.storage import urls
from datakit.storage.manifest import InputReference, find_manifest
from datakit.toml_config import check_idle
from datakit.trainer import run_manifest
from datakit.trainer.checkpoints.candidates import Say
from datakit.trainer.config import Run
from datakit.trainer.device_feed import BatchSource
from datakit.trainer.evaluation.evaluate import (
    NO_LENGTHS,
    BatchesOf,
    EvaluationsAt,
    OtherLengthsAt,
    check_capacities,
    check_evaluations,
)
from datakit.trainer.evaluation.totals import check_tags
from datakit.trainer.loop.compilation_cache import use_compilation_cache
from datakit.trainer.loop.loop import Loop
from datakit.trainer.loop.outcome import Outcome, finish
from datakit.trainer.metrics.trackers import check_trackers
from datakit.trainer.models import kernels, load_model
from datakit.trainer.models.weights import make_mesh
from datakit.trainer.multihost import is_first
from datakit.trainer.resume import begin, refuse_afresh
from datakit.trainer.run_directory.run_lock import exclusive
from datakit.trainer.sizes import memory
from datakit.trainer.step import Trainer


def say_on_stderr(line: str) -> None:
    """Print a line for the user on standard error, without secrets."""
    show(line)


def train(
    run: Run,
    source: BatchSource,
    root: str,
    *,
    evaluations: Mapping[str, BatchesOf] | EvaluationsAt | None = None,
    other_lengths: OtherLengthsAt = lambda _: NO_LENGTHS,
    token_bytes: Any = None,
    inputs: Callable[[str], list[InputReference]] = lambda _: [],
    record: Callable[[str], None] = lambda _: None,
    devices: Sequence[Any] | None = None,
    say: Say = say_on_stderr,
) -> Outcome:
    """Train a run's model to the last step. If the run is already finished, return its outcome without training.
    `inputs` is called with the run's directory, and returns the input references for the run's manifest. `record` is
    called with the directory when it is locked, in the first process only, to write records of the run.
    `evaluations` may be a function of the number of steps done, e.g. to evaluate with longer sequences as training
    proceeds. `other_lengths` returns the validation sets for `evaluation.every_length`. `token_bytes` holds the length
    of each token in bytes; if it is None, bits per byte are not computed.
    Raises DivergedError, CheckpointError, UsageError, and any error that `source` raises.
    """
    place = run_manifest.run_place(root, run, source.record())
    directory, references = place.directory, inputs(place.directory)
    if not urls.is_local(directory):
        raise UsageError(
            f"--root {root}: a training run needs a local or shared file system; give a directory, not a URL"
        )
    done = find_manifest(directory)
    if done is not None:
        refuse_afresh(run, directory)
        say("the run is already finished; nothing is trained")
        return Outcome(directory, run.steps, done.details["figures"], done.details["comparison"])
    check_trackers(run.log.trackers)
    outline = source.outline(run.steps)
    tags = evaluations if callable(evaluations) else lambda _: evaluations or {}
    check_tags(tags(0))
    if not tags(0):
        names = ("every", "batches", "every_length", "capacity_factors")
        check_idle("evaluation", run.evaluation, [dict.fromkeys(names, "without a validation set")])
    if not other_lengths(0):
        check_idle("evaluation", run.evaluation, [{"every_length": "if all sequences have the same length"}])
    use_compilation_cache(run.compilation_cache, say)
    trainer, say = trainer_of(run, devices), say if is_first() else lambda _: None
    with exclusive(directory) if is_first() else nullcontext(), jax.set_mesh(trainer.mesh):
        if is_first():
            record(directory)
        check_evaluations(tags(0), run.evaluation.batches)
        for step in (min(run.evaluation.every or run.steps, run.steps), run.steps):  # the first evaluation and the last
            check_capacities(trainer, tags(step), run.evaluation.capacity_factors)
        for line in (*kernels.lines(run.model), *trainer.idle_lines(outline)):
            say(line)
        memory.check_state(run, trainer)
        start = begin(run, place, trainer, source, say)
        prediction = run_manifest.prediction_of(directory, run, outline, say, write=is_first())
        row = Loop(run, place, trainer, source, start, tags, other_lengths, token_bytes, say).run_steps()
        outcome = finish(run, place, start, source.record(), prediction, row, references, say)
        say(f"finished {counted(run.steps, 'step')}")
        return outcome


def trainer_of(run: Run, devices: Sequence[Any] | None = None) -> Trainer:
    """Return the `Trainer` of a run on these devices (None: all devices)."""
    mesh, log = make_mesh(run.replicas, devices, run.expert_parallel, run.tensor_parallel), run.log
    model, constants = load_model(run.kind), run.optimizer.constants()
    parts = (model, run.model, constants, mesh, log.watch, log.watch_histograms, run.microbatch)
    try:
        return _shared_trainer(*parts)
    except TypeError:  # a field of someone's own Config cannot be hashed, e.g. a list
        return Trainer(*parts)


# Runs that differ only in inputs of the step get the same `Trainer`. So a process compiles once for a sweep over
# learning rates and numbers of steps.
_shared_trainer = lru_cache(maxsize=4)(Trainer)
