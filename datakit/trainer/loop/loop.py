"""Executes a run's remaining steps: starts them, has their rows logged, and saves, evaluates and stops when due.

    row = Loop(...).run_steps()

One step is in flight while the loop handles the results of the previous one (`in_flight.py`). So a NaN or infinite loss
is seen when the next step has already been started. It is never saved, because a state is saved only after the results
of its step have been checked. If something is due after a step (a save, an evaluation, the end of the run), the loop
waits for that step, logs its row, saves, evaluates, and logs the row again with the additional metrics. Each evaluation
is preceded by a save, unless the previous save is still being written. If the run ends between the save and the
evaluation, nothing is lost, because a run that resumes at a step whose evaluation is missing starts with that
evaluation, even at the last step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from datakit.errors import CheckpointError, DivergedError, UsageError
from datakit.trainer import run_manifest
from datakit.trainer.checkpoints.candidates import Marker, Say, candidates
from datakit.trainer.checkpoints.checkpoint import Writer
from datakit.trainer.config import Run
from datakit.trainer.device_feed import BatchSource, Feed, Placed
from datakit.trainer.evaluation.evaluate import NO_LENGTHS, EvaluationsAt, OtherLengthsAt, evaluate_all
from datakit.trainer.loop.in_flight import Advance, Completed, InFlight
from datakit.trainer.loop.signals import ending, stop_requests
from datakit.trainer.loop.step_rows import StepRows
from datakit.trainer.loop.tracing import Tracing
from datakit.trainer.metrics.json_lines import last_row
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import Tree
from datakit.trainer.multihost import Votes, any_says, is_first, meet
from datakit.trainer.optimizers.schedules import learning_rates
from datakit.trainer.optimizers.update import groups_of
from datakit.trainer.resume import Start
from datakit.trainer.sizes import memory
from datakit.trainer.step import Trainer


@dataclass
class Loop:
    """The part of a run that one process executes."""

    run: Run
    place: run_manifest.RunPlace
    trainer: Trainer
    source: BatchSource
    start: Start
    evaluations: EvaluationsAt
    other_lengths: OtherLengthsAt
    token_bytes: Any
    say: Say

    def __post_init__(self) -> None:
        run, start = self.run, self.start
        self.directory, self.mixture = self.place.directory, self.source.record()
        self.rows = StepRows(run, self.directory, self.trainer, self.source, start, self._evaluates_at, self.say)
        self.writer = Writer(run.checkpoint, *start.folders, self.place.fingerprint, self.say)
        self.in_flight, self.tracing = InFlight(), Tracing(self.directory, run.log.profile)

    def run_steps(self) -> dict[str, Any]:
        """Run all remaining steps; return the row of metrics of the last one. Raises DivergedError and UsageError."""
        span = (self.run.model.vocabulary, self.start.step, self.run.steps)
        with closing(self.rows), closing(self.writer), closing(self.in_flight):
            feed = Feed(self.source, self.trainer.mesh, *span)
            try:
                with feed, stop_requests() as stop:
                    row = self._steps(feed, stop)
            finally:
                self.tracing.stop()
        meet("the last checkpoint is committed")
        return row

    def _steps(self, feed: Feed, stop: Mapping[int, bool]) -> dict[str, Any]:
        state, row, groups = self.start.state, self._catch_up(), groups_of(self.trainer.table)
        votes = Votes(lambda step, before: (self.writer.due(step, self._evaluates_at(step), before), *stop.values()))
        for step in range(self.start.step + 1, self.run.steps + 1):
            placed = self._next(feed, step, state)
            advance = self._compiled(step, state, placed.batch, stop)
            self.tracing.at(step - 1)
            rates = learning_rates(self.run.optimizer, groups, step - 1, self.run.steps)
            state = self.in_flight.start(step, advance, state, placed, rates, feed.waited)
            self._handle(self.in_flight.complete(leave=1))
            due, terminated, interrupted = votes.at(step)
            if due or terminated or interrupted or step == self.run.steps or self._evaluates_at(step):
                row = self._handle(self.in_flight.complete())
                terminated, interrupted = any_says(*stop.values())  # a signal may have arrived meanwhile
                row |= self._hooks(step, state, row, due, terminated or interrupted)
            if terminated or interrupted:
                raise ending(terminated)
        return row

    def _next(self, feed: Feed, step: int, state: Tree) -> Placed:
        """Return the batch of a step. If there is none, finish what is in flight, and raise the reason."""
        try:
            placed = feed.next()
        except Exception:
            self._handle(self.in_flight.complete())
            raise
        if placed is None:
            self._save_before(step, state)
            raise UsageError(
                f"the data ends before step {step:,} of {self.run.steps:,}; train for fewer steps, or let the data "
                "repeat"
            )
        return placed

    def _compiled(self, step: int, state: Tree, batch: Tokens, stop: Mapping[int, bool]) -> Advance:
        """Return the compiled step. If it has to be compiled, which may take minutes, finish what is in flight before;
        if a signal arrives meanwhile, or if the step cannot be compiled or does not fit into the memory, save the state
        and end the run.
        """
        watch = bool(self.run.log.watch) and (step - 1) % self.run.log.watch_every == 0
        known = self.trainer.programs.get((batch.tokens.shape, watch))
        if self.tracing.boundary(step - 1):
            self._handle(self.in_flight.complete())
        if known is not None:
            return known
        self._handle(self.in_flight.complete())
        try:
            advance = self._compile(state, batch, watch)
        except Exception:
            self._save_before(step, state)
            raise
        terminated, interrupted = any_says(*stop.values())
        if terminated or interrupted:
            self._save_before(step, state)
            raise ending(terminated)
        self.rows.restart_clock()
        return advance

    def _compile(self, state: Tree, batch: Tokens, watch: bool) -> Advance:
        rows, length = batch.tokens.shape
        passes = self.trainer.passes(batch.tokens.shape)
        share = f", in {passes:,} microbatches of {rows // passes:,} sequences" if passes > 1 else ""
        self.say(f"compiling the training step for {rows:,} sequences of {length:,} tokens{share}")
        started = time.perf_counter()
        advance = self.trainer.compile(state, batch, watch)
        self.say(f"compiled in {time.perf_counter() - started:.0f} s")
        memory.check(self.run, self.trainer, advance, (rows, length), watch, self.say)
        return advance

    def _handle(self, completed: list[Completed]) -> dict[str, Any]:
        """Log the rows of completed steps; return the last row. Raises DivergedError if a step's results are NaN."""
        row: dict[str, Any] = {}
        for one in completed:
            row = self.rows.complete(one)
            if not one.finite:
                raise self._diverged(one.step, float(one.results["loss"]))
        return row

    def _hooks(self, step: int, state: Tree, row: dict[str, Any], due: bool, stopping: bool) -> dict[str, Any]:
        """Save the state and evaluate the model, each only if it is due; then log the row again. Return the metrics of
        the evaluation and the total time taken. The row has been logged before, so that it is not lost if the run ends
        during a save or an evaluation.
        """
        started, last, more = time.perf_counter(), step == self.run.steps, dict[str, Any]()
        if due or stopping or last:
            self.writer.save(state, self._marker(state, permanent=last))
        if self._evaluates_at(step) and not stopping:  # if the run is stopping, the next start evaluates
            more = self._evaluate(step, state)
        more["throughput/hook_time"] = time.perf_counter() - started
        self.rows.log(step, row | more)
        return more

    def _catch_up(self) -> dict[str, Any]:
        """Perform the save and the evaluation that an earlier start of the run may have left undone. Return the row of
        metrics of the last completed step; it may be empty.
        """
        step, state = self.start.step, self.start.state
        row = last_row(self.directory, step) if is_first() else {}
        if step == self.run.steps:
            self.writer.save(state, self._marker(state, permanent=True))
        trained_here = bool(row) or step == self.run.steps
        evaluated = any(name.startswith("eval/") for name in row)
        if any_says(is_first() and self._evaluates_at(step) and trained_here and not evaluated)[0]:
            row |= self._evaluate(step, state)
            self.rows.log(step, row)
        return row

    def _evaluates_at(self, step: int) -> bool:
        every = self.run.evaluation.every
        due = step == self.run.steps or (every is not None and step % every == 0)
        return due and bool(self.evaluations(step))

    def _save_before(self, step: int, state: Tree) -> None:
        """Save the state that precedes `step`, unless the run started with it."""
        self._handle(self.in_flight.complete())
        if step > self.start.step + 1:
            self.writer.save(state, self._marker(state, permanent=False))

    def _evaluate(self, step: int, state: Tree) -> dict[str, Any]:
        settings = self.run.evaluation
        others = self.other_lengths(step) if settings.every_length else NO_LENGTHS
        tags, limit = self.evaluations(step), settings.batches
        found = evaluate_all(self.trainer, state, tags, self.token_bytes, limit, others, settings.capacity_factors)
        bits = f", {found['eval/bpb']:.4f} bits per byte" if "eval/bpb" in found else ""
        self.say(f"evaluation: loss {found['eval/loss']:.4f}{bits}")
        return found

    def _marker(self, state: Tree, permanent: bool) -> Marker:
        counts, start = self.rows.counts, self.start
        step = int(state["step"])
        return Marker(step, self.writer.run, self.mixture, counts, start.norms, permanent, {}, start.origin)

    def _diverged(self, step: int, loss: float) -> DivergedError:
        try:
            self.writer.wait()
        except CheckpointError as error:  # only a warning, since divergence is the error to report
            self.say(f"warning: {error}")
        good = candidates(list(dict.fromkeys(self.start.folders)), lambda _: None)
        kept = f"the last good checkpoint is {good[0].path}" if good else "there is no checkpoint yet"
        cause = "a gradient or a weight is NaN or infinite" if math.isfinite(loss) else "the loss is NaN or infinite"
        return DivergedError(
            f"step {step:,}: {cause}; {kept}. Lower the learning rate, check the metrics in {self.directory} before "
            f"this step, or see its documents: datakit explain {self.directory} --step {step}"
        )
