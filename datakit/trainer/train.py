"""Runs the training loop: decides when and in which order to log, save, evaluate, profile and stop, and what happens on
a signal, on divergence, and when the data ends early.

    outcome = train(run, loader, "data", evaluations={"web": batches}, token_bytes=lengths)

A run resumes from its newest valid checkpoint. It then computes bit for bit what an uninterrupted run would have
computed, because a batch is a function of the step, and the state is all that a run carries from step to step. After
each step, the loop waits for the metrics (about a millisecond), so a NaN or infinite loss stops the run before the bad
state is saved: DivergedError is raised, the exit code is 5, and the last good checkpoint remains untouched. On SIGTERM
or Ctrl-C, the loop finishes the step, saves, and raises SystemExit (exit code 143) or KeyboardInterrupt (130).

For each step, the loop takes the batch (which a thread has already placed on the devices), runs the step, and logs the
row of metrics. If a checkpoint or an evaluation is due, the loop then saves, evaluates or does both, and logs the row
again with the additional metrics. Each evaluation is preceded by a save, unless the previous save is still being
written. If the run ends between the save and the evaluation, nothing is lost, because a run that resumes at a step
whose evaluation is missing starts with that evaluation, even at the last step.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from datakit.errors import CheckpointError, DivergedError, UsageError, counted
from datakit.exit_codes import ExitCode
from datakit.messages import show
from datakit.storage import urls
from datakit.storage.manifest import InputReference, find_manifest
from datakit.toml_config import check_idle
from datakit.trainer import run_manifest
from datakit.trainer.checkpoints.candidates import Marker, Say, candidates
from datakit.trainer.checkpoints.checkpoint import Writer
from datakit.trainer.config import Run
from datakit.trainer.device_feed import BatchSource, Feed, stage_at
from datakit.trainer.evaluate import BatchesOf, EvaluationsAt, check_evaluations, check_tags, evaluate_all
from datakit.trainer.metrics.json_lines import has_rows, last_row
from datakit.trainer.metrics.progress_line import Progress
from datakit.trainer.metrics.step_metrics import StepMetrics, training_flops
from datakit.trainer.metrics.trackers import Trackers, check_trackers, open_trackers
from datakit.trainer.models import load_model
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import Tree, make_mesh, parameter_count
from datakit.trainer.multihost import any_says, is_first, meet
from datakit.trainer.norms import WATCHABLE
from datakit.trainer.resume import Start, begin, refuse_afresh
from datakit.trainer.run_lock import exclusive
from datakit.trainer.step import Trainer


@dataclass(frozen=True)
class Outcome:
    """A finished run: its directory, number of steps, last metrics, and the comparison with the expected metrics."""

    directory: str
    steps: int
    figures: dict[str, Any]  # the metrics; the field's name is their key in the manifest and in JSON output
    comparison: dict[str, Any]
    # The step at which training resumed; None: it started at step 0, or the run was already finished.
    resumed_from: int | None = None


def say_on_stderr(line: str) -> None:
    """Print a line for the user on standard error, without secrets."""
    show(line)


def train(
    run: Run,
    source: BatchSource,
    root: str,
    *,
    evaluations: Mapping[str, BatchesOf] | EvaluationsAt | None = None,
    token_bytes: Any = None,
    inputs: Callable[[str], list[InputReference]] = lambda _: [],
    devices: Sequence[Any] | None = None,
    say: Say = say_on_stderr,
) -> Outcome:
    """Train a run's model to the last step. If the run is already finished, return its outcome without training.
    `inputs` is called with the run's directory, and returns the input references for the run's manifest.
    `evaluations` may be a function of the number of steps done, e.g. to evaluate with longer sequences as training
    proceeds. `token_bytes` holds the length of each token in bytes; if it is None, bits per byte are not computed.
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
        check_idle("evaluation", run.evaluation, [dict.fromkeys(("every", "batches"), "without a validation set")])
    use_compilation_cache(run)
    trainer, say = trainer_of(run, devices), say if is_first() else lambda _: None
    with exclusive(directory) if is_first() else nullcontext(), jax.set_mesh(trainer.mesh):
        check_evaluations(tags(0), run.evaluation.batches)
        start = begin(run, place, trainer, source, say)
        prediction = run_manifest.prediction_of(directory, run, outline, say, write=is_first())
        return _Loop(run, place, trainer, source, start, prediction, tags, token_bytes, say).train(references)


def trainer_of(run: Run, devices: Sequence[Any] | None = None) -> Trainer:
    """Return the `Trainer` of a run on these devices (None: all devices)."""
    mesh = make_mesh(run.replicas, devices)
    return Trainer(load_model(run.kind), run.model, run.optimizer, run.steps, mesh, run.log.watch)


def use_compilation_cache(run: Run) -> None:
    """Keep compiled functions on disk, so that a resumed run starts within seconds."""
    if run.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(Path(run.compilation_cache).expanduser()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


@dataclass
class _Loop:
    """The part of a run that one process executes."""

    run: Run
    place: run_manifest.RunPlace
    trainer: Trainer
    source: BatchSource
    start: Start
    prediction: dict[str, Any]
    evaluations: EvaluationsAt
    token_bytes: Any
    say: Say
    profiling: bool = False

    def __post_init__(self) -> None:
        run, start = self.run, self.start
        self.directory, self.mixture = self.place.directory, self.source.record()
        self.trackers = self._open_trackers()
        counts, flops = dict(start.counts), training_flops(run, self.source.outline(start.step))
        logged_stage = stage_at(self.mixture, counts["sequences"] - 1) if has_rows(self.directory) else None
        self.metrics = StepMetrics(run, self.trainer, self.mixture, start.norms, counts, flops, logged_stage, self.say)
        self.writer = Writer(run.checkpoint, *start.folders, self.place.fingerprint, self.say)

    def _open_trackers(self) -> Trackers:
        if not is_first():
            return Trackers(())
        log, parameters = self.run.log, parameter_count(self.trainer.table)
        config = self.run.content(self.mixture) | {"mixture": self.mixture, "parameter_count": parameters}
        name = f"{self.run.name}-{Path(self.directory).name.rpartition('-')[2]}"
        return open_trackers(self.directory, self.start.step, log.trackers, log.project, name, config, self.say)

    def train(self, inputs: list[InputReference]) -> Outcome:
        """Run all remaining steps, write the manifest, and return the outcome."""
        with closing(self.trackers), closing(self.writer):
            span = (self.run.model.vocabulary, self.start.step, self.run.steps)
            feed = Feed(self.source, self.trainer.mesh, *span)
            try:
                with feed, _signals() as stop:
                    row = self._steps(feed, stop)
            finally:
                self._profile(None)
        meet("the last checkpoint is committed")
        return self._finish(row, inputs)

    def _steps(self, feed: Feed, stop: Mapping[int, bool]) -> dict[str, Any]:
        """Execute all remaining steps and return the row of metrics of the last step."""
        state, row = self.start.state, self._catch_up()
        progress = Progress(self.run.steps, self.run.log.progress_seconds, self.say)
        for step in range(self.start.step + 1, self.run.steps + 1):
            turn = time.perf_counter()
            placed = feed.next()
            if placed is None:
                raise self._ended_early(step, state)
            self._profile(step - 1)
            watch = bool(self.run.log.watch) and (step - 1) % self.run.log.watch_every == 0
            advance, compiled = self._compiled(state, placed.batch, watch)
            terminated, interrupted = any_says(*stop.values()) if compiled else (False, False)
            if terminated or interrupted:
                self._save_before(step, state)
                raise _ending(terminated)
            started = time.perf_counter()
            turn = started - feed.waited if compiled else turn  # the rate shown excludes compilation
            state, results = advance(state, placed.batch)
            results = jax.device_get(results)
            seconds = {"duration": time.perf_counter() - started, "loading_time": feed.waited}
            row = self.metrics.row(step, results, placed, seconds)
            if not results["finite"]:
                self.trackers.log(step, row)
                raise self._diverged(step, float(results["loss"]))
            evaluates = self._evaluates_at(step)
            due, terminated, interrupted = any_says(self.writer.due(step, evaluates), *stop.values())
            stopping = terminated or interrupted
            row |= self._hooks(step, state, row, due, evaluates, stopping)
            progress.step(step, placed.tokens, time.perf_counter() - turn, row)
            if stopping:
                raise _ending(terminated)
        return row

    def _hooks(
        self, step: int, state: Tree, row: dict[str, Any], due: bool, evaluates: bool, stopping: bool
    ) -> dict[str, Any]:
        """Save the state, evaluate the model and log the row, each only if it is due. Return the metrics of the
        evaluation and the total time taken; the logged row includes both.

        The row is also logged before a save or an evaluation, so that it is not lost if the run ends during either.
        """
        started, last = time.perf_counter(), step == self.run.steps
        saves, more = due or stopping or last, {}
        logs = step % self.run.log.every == 0 or last or evaluates or _must_log(row)
        if logs:
            row |= {f"data/{name}": value for name, value in self.source.snapshot(step).items()}
        if logs and (saves or evaluates):
            self.trackers.log(step, row)
        if saves:
            self.writer.save(state, self._marker(state, permanent=last))
        if evaluates and not stopping:  # if the run is stopping, the next start evaluates
            more = self._evaluate(step, state)
        more["throughput/hook_time"] = time.perf_counter() - started
        if logs:
            self.trackers.log(step, row | more)
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
            self.trackers.log(step, row)
        return row

    def _evaluates_at(self, step: int) -> bool:
        every = self.run.evaluation.every
        due = step == self.run.steps or (every is not None and step % every == 0)
        return due and bool(self.evaluations(step))

    def _compiled(self, state: Tree, batch: Tokens, watch: bool) -> tuple[Callable[..., Any], bool]:
        """Return the compiled step, and True if it had to be compiled, which may take minutes."""
        known = self.trainer.programs.get((batch.tokens.shape, watch))
        if known is not None:
            return known, False
        rows, length = batch.tokens.shape
        self.say(f"compiling the training step for {rows:,} sequences of {length:,} tokens")
        started = time.perf_counter()
        advance = self.trainer.compile(state, batch, watch)
        self.say(f"compiled in {time.perf_counter() - started:.0f} s")
        return advance, True

    def _save_before(self, step: int, state: Tree) -> None:
        """Save the state that precedes `step`, unless the run started with it."""
        if step > self.start.step + 1:
            self.writer.save(state, self._marker(state, permanent=False))

    def _ended_early(self, step: int, state: Tree) -> UsageError:
        """Save the state that precedes `step`, the first step without a batch, and return the error to raise."""
        self._save_before(step, state)
        return UsageError(
            f"the data ends before step {step:,} of {self.run.steps:,}; train for fewer steps, or let the data repeat"
        )

    def _evaluate(self, step: int, state: Tree) -> dict[str, Any]:
        limit = self.run.evaluation.batches
        found = evaluate_all(self.trainer, state, self.evaluations(step), self.token_bytes, limit)
        bits = f", {found['eval/bpb']:.4f} bits per byte" if "eval/bpb" in found else ""
        self.say(f"evaluation: loss {found['eval/loss']:.4f}{bits}")
        return found

    def _marker(self, state: Tree, permanent: bool) -> Marker:
        counts = dict(self.metrics.counts)
        start, step = self.start, int(state["step"])
        return Marker(step, self.writer.run, self.mixture, counts, start.norms, permanent, {}, start.origin)

    def _profile(self, step: int | None) -> None:
        """Start or stop the trace if `step` is the start or end of `log.profile`; stop it if `step` is None."""
        first, end = self.run.log.profile or (None, None)
        if step is not None and step == first:
            jax.profiler.start_trace(urls.join(self.directory, "profile"))
            self.profiling = True
        elif self.profiling and step in (end, None):
            jax.profiler.stop_trace()
            self.profiling = False

    def _diverged(self, step: int, loss: float) -> DivergedError:
        try:
            self.writer.wait()
        except CheckpointError as error:  # only a warning, since divergence is the error to report
            self.say(f"warning: {error}")
        good = candidates(list(dict.fromkeys(self.start.folders)), lambda _: None)
        kept = f"the last good checkpoint is {good[0].path}" if good else "there is no checkpoint yet"
        cause = "a gradient or a weight is NaN or infinite" if math.isfinite(loss) else "the loss is NaN or infinite"
        return DivergedError(
            f"step {step:,}: {cause}; {kept}. Lower the learning rate, or check the metrics in {self.directory} before "
            "this step"
        )

    def _finish(self, row: Mapping[str, Any], inputs: list[InputReference]) -> Outcome:
        folders = [self.start.folders[0]]
        final = next(one for one in candidates(folders, self.say) if one.marker.step == self.run.steps)
        wanted = ("train/loss", "train/cross_entropy", "eval/")
        kept = {name: row[name] for name in row if name.startswith(wanted) and not name.endswith("_time")}
        comparison = run_manifest.compare(self.prediction, kept)
        if "train/loss" not in kept:
            missing = f"{self.directory} has no row for step {self.run.steps:,}"
            self.say(f"warning: {missing}, so its training loss is unknown")
        for name, pair in comparison.items():
            source = " (by a law fitted on other text)" if pair["law"] else ""
            measured = "not measured" if pair["measured"] is None else f"measured {pair['measured']:.4f}"
            self.say(f"{name}: expected {pair['expected']:.4f}{source}, {measured}")
        details = {"figures": kept, "prediction": self.prediction, "comparison": comparison}
        if is_first():
            run_manifest.finish(self.place, self.run, self.mixture, inputs, details, final)
        self.say(f"finished {counted(self.run.steps, 'step')}")
        return Outcome(self.directory, self.run.steps, kept, comparison, self.start.resumed_from)


def _must_log(row: Mapping[str, Any]) -> bool:
    """Return True if a row holds rare metrics, which are logged regardless of `log.every`."""
    rare = ("eval/", "alarm/", "mixture/", *(f"{kind}/" for kind in WATCHABLE))
    return any(name.startswith(rare) or isinstance(value, list) for name, value in row.items())


@contextmanager
def _signals() -> Iterator[Mapping[int, bool]]:
    """Yield a mapping from SIGTERM and SIGINT to booleans, each of which is True once its signal has arrived. Outside
    the main thread, both stay False. A second signal ends the run immediately.
    """
    arrived = {int(signal.SIGTERM): False, int(signal.SIGINT): False}
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return

    def request(number: int, _: Any) -> None:
        if any(arrived.values()):
            raise _ending(number == signal.SIGTERM)
        arrived[number] = True

    before = {number: signal.signal(number, request) for number in arrived}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending(terminated: bool) -> BaseException:
    """Return the exception that ends a run after SIGTERM or, if `terminated` is false, after Ctrl-C."""
    return SystemExit(ExitCode.TERMINATED) if terminated else KeyboardInterrupt()
