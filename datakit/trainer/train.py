"""The training loop: batches in, checkpoints, figures and a manifest out.

    outcome = train(run, loader, "data", evaluations={"web": batches}, token_bytes=lengths)

It begins where the newest valid checkpoint of the same run ends (one line says which, or that this is a fresh start),
and a resumed run computes bit for bit what an uninterrupted one does: a batch is a function of the step, and the state
is all that there is. After each step the loop waits for its figures (about a millisecond), so a loss that is no number
stops the run before anything of it is saved: DivergedError, exit code 4, the last good checkpoint untouched. On SIGTERM
or Ctrl-C it finishes the step, saves, and ends.

The order of things around a step: batch (placed ahead by a thread), step, row of figures, then the hooks: checkpoint,
evaluation, and the row again with what they brought. Whatever ends a run in between loses none of them: a start at a
step whose evaluation is missing begins with it, the last step included.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from datakit.errors import CheckpointError, DivergedError, UsageError
from datakit.storage import urls
from datakit.storage.manifest import InputReference, find_manifest
from datakit.trainer import run_manifest as records
from datakit.trainer.checkpoints.checkpoint import Marker, Writer, candidates
from datakit.trainer.config import Run
from datakit.trainer.device_feed import BatchSource, Feed, stage_at
from datakit.trainer.evaluate import BatchesOf, check_evaluations, check_tags, evaluate_all
from datakit.trainer.metrics.progress_line import Progress
from datakit.trainer.metrics.step_metrics import Figures, training_flops
from datakit.trainer.metrics.trackers import Metrics, check_trackers, has_rows, last_row, open_metrics
from datakit.trainer.models import load_model
from datakit.trainer.models.weights import Tree, make_mesh, parameter_count
from datakit.trainer.multihost import any_says, is_first, meet
from datakit.trainer.resume import Start, begin, refuse_afresh
from datakit.trainer.run_lock import alone_in
from datakit.trainer.step import Trainer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """A finished run: its directory, the steps done, the last figures, and expectations against measurements."""

    directory: str
    steps: int
    figures: dict[str, Any]
    comparison: dict[str, Any]
    resumed_from: int | None = None  # a step


def say_on_stderr(line: str) -> None:
    """Where lines for people go by default."""
    print(line, file=sys.stderr, flush=True)


def _nobody(_: str) -> None:
    """Where the lines of all processes but the first go."""


def train(
    run: Run,
    source: BatchSource,
    root: str,
    *,
    evaluations: Mapping[str, BatchesOf] | None = None,
    token_bytes: Any = None,
    inputs: Sequence[InputReference] = (),
    devices: Sequence[Any] | None = None,
    say: Say = say_on_stderr,
) -> Outcome:
    """Train to the end, or find it done. Raises DivergedError, CheckpointError, UsageError, and the source's errors."""
    mixture = source.record()
    directory = records.run_directory(root, run, mixture)
    if not urls.is_local(directory):
        raise UsageError(f"--root {root}: a run is written to a disk, local or shared; give a directory")
    done = find_manifest(directory)
    if done is not None:
        refuse_afresh(run, directory)
        say(f"{directory} is finished")
        return Outcome(directory, run.steps, done.details["figures"], done.details["comparison"])
    check_trackers(run.log.trackers)
    outline, tags = source.outline(run.steps), dict(evaluations or {})
    check_tags(tags)
    use_compilation_cache(run)
    trainer, say = trainer_of(run, devices), say if is_first() else _nobody
    with alone_in(directory) if is_first() else nullcontext(), jax.set_mesh(trainer.mesh):
        check_evaluations(tags, run.evaluation.batches)
        start = begin(run, trainer, source, directory, mixture, say)
        if is_first():
            records.write_prediction(directory, run, outline)
        return _Loop(run, trainer, source, directory, start, tags, token_bytes, say).train(inputs)


def trainer_of(run: Run, devices: Sequence[Any] | None = None) -> Trainer:
    """What the run computes, on these devices (all, if None)."""
    mesh = make_mesh(run.replicas, devices)
    return Trainer(load_model(run.kind), run.model, run.optimizer, run.steps, mesh, run.log.watch)


def use_compilation_cache(run: Run) -> None:
    """Compiled steps outlive the process: a resumed run starts in seconds."""
    if run.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(Path(run.compilation_cache).expanduser()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


class _Loop:
    """One process's part of a run."""

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        source: BatchSource,
        directory: str,
        start: Start,
        evaluations: dict[str, BatchesOf],
        token_bytes: Any,
        say: Say,
    ) -> None:
        self.run, self.trainer, self.source, self.directory, self.say = run, trainer, source, directory, say
        self.evaluations, self.token_bytes = evaluations, token_bytes
        self.start, self.mixture, self.profiling = start, source.record(), False
        self.metrics = self._open_metrics()
        counts, flops = dict(start.counts), training_flops(run, source.outline(start.step))
        told = stage_at(self.mixture, counts["sequences"] - 1) if has_rows(directory) else None
        self.figures = Figures(run, trainer, self.mixture, start.norms, counts, flops, told, say)
        self.writer = Writer(run.checkpoint, *start.folders, run.fingerprint(self.mixture), say)

    def _open_metrics(self) -> Metrics:
        if not is_first():
            return Metrics(())
        log, parameters = self.run.log, parameter_count(self.trainer.table)
        told = self.run.content(self.mixture) | {"mixture": self.mixture, "parameter_count": parameters}
        name = f"{self.run.name}-{Path(self.directory).name.rpartition('-')[2]}"
        return open_metrics(self.directory, self.start.step, log.trackers, log.project, name, told)

    def train(self, inputs: Sequence[InputReference]) -> Outcome:
        """From the start to the manifest."""
        with closing(self.metrics), closing(self.writer):
            span = (self.run.model.vocabulary, self.start.step, self.run.steps)
            feed = Feed(self.source, self.trainer.mesh, *span)
            try:
                with feed, _signals() as asked:
                    row = self._steps(feed, asked)
            finally:
                self._profile(None)
        meet("the last checkpoint is committed")
        return self._finish(row, inputs)

    def _steps(self, feed: Feed, asked: threading.Event) -> dict[str, Any]:
        """The row of the last step."""
        state, row = self.start.state, self._catch_up()
        progress = Progress(self.run.steps, self.run.log.progress_seconds, self.say)
        for step in range(self.start.step + 1, self.run.steps + 1):
            turn = time.perf_counter()
            placed = feed.next()
            if placed is None:
                raise self._ended_early(step, state)
            self._profile(step - 1)
            begun = time.perf_counter()
            watch = bool(self.run.log.watch) and (step - 1) % self.run.log.watch_every == 0
            state, results = self.trainer.advance(state, placed.batch, watch=watch)
            results = jax.device_get(results)
            seconds = {"duration": time.perf_counter() - begun, "loading_time": feed.waited}
            row = self.figures.row(step, results, placed, seconds)
            if not results["finite"]:
                self.metrics.log(step, row)
                raise self._diverged(step, float(results["loss"]))
            due, ending = any_says(self.writer.due(step), asked.is_set())
            row |= self._hooks(step, state, row, due, ending)
            progress.step(step, placed.tokens, time.perf_counter() - turn, row)
            if ending:
                raise KeyboardInterrupt
        return row

    def _hooks(self, step: int, state: Tree, row: dict[str, Any], due: bool, ending: bool) -> dict[str, Any]:
        """The row, checkpoint, evaluation, and the row again: so none is lost, whatever ends the run in between."""
        begun, last, evaluates = time.perf_counter(), step == self.run.steps, self._evaluates_at(step)
        saves, more = due or ending or last, {}
        logs = step % self.run.log.every == 0 or last or evaluates or _remarkable(row)
        if logs:
            row |= {f"data/{name}": value for name, value in self.source.snapshot(step).items()}
        if logs and (saves or evaluates):
            self.metrics.log(step, row)
        if saves:
            self.writer.save(state, self._marker(state, permanent=last))
        if evaluates and not ending:  # else the next start does
            more = self._evaluate(state)
        more["throughput/hook_time"] = time.perf_counter() - begun
        if logs:
            self.metrics.log(step, row | more)
        return more

    def _catch_up(self) -> dict[str, Any]:
        """Of the step at which this start begins: its row, and what an earlier one that ended there left undone."""
        step, state = self.start.step, self.start.state
        row = last_row(self.directory, step) if is_first() else {}
        if step == self.run.steps:
            self.writer.save(state, self._marker(state, permanent=True))
        begun_here = bool(row) or step == self.run.steps
        evaluated = any(name.startswith("eval/") for name in row)
        if any_says(is_first() and self._evaluates_at(step) and begun_here and not evaluated)[0]:
            row |= self._evaluate(state)
            self.metrics.log(step, row)
        return row

    def _evaluates_at(self, step: int) -> bool:
        every = self.run.evaluation.every
        return bool(self.evaluations) and (step == self.run.steps or (every is not None and step % every == 0))

    def _ended_early(self, step: int, state: Tree) -> UsageError:
        """No batch for `step`: what was done before it is saved."""
        if step > self.start.step + 1:
            self.writer.save(state, self._marker(state, permanent=False))
        return UsageError(
            f"the data end before step {step:,} of {self.run.steps:,}; train for fewer steps, or let the mixture start "
            "again"
        )

    def _evaluate(self, state: Tree) -> dict[str, Any]:
        limit = self.run.evaluation.batches
        found = evaluate_all(self.trainer, state, self.evaluations, self.token_bytes, limit)
        bits = f", {found['eval/bpb']:.4f} bits per byte" if "eval/bpb" in found else ""
        self.say(f"evaluation: loss {found['eval/loss']:.4f}{bits}")
        return found

    def _marker(self, state: Tree, permanent: bool) -> Marker:
        counts = dict(self.figures.counts)
        start, step = self.start, int(state["step"])
        return Marker(step, self.writer.run, self.mixture, counts, start.norms, permanent, {}, start.origin)

    def _profile(self, step: int | None) -> None:
        """Begin and end the trace of the steps asked for; None ends it in any case."""
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
        except CheckpointError as error:  # the lesser evil: the run still ends as a diverged one
            self.say(f"warning: {error}")
        good = candidates(list(dict.fromkeys(self.start.folders)), lambda _: None)
        kept = f"the last good checkpoint is {good[0].path}" if good else "there is no checkpoint yet"
        what = "a gradient or a weight is no number" if math.isfinite(loss) else "the loss is no number"
        return DivergedError(
            f"step {step:,}: {what}; {kept}. Lower the learning rate, or look at the figures in "
            f"{self.directory} before this step"
        )

    def _finish(self, row: Mapping[str, Any], inputs: Sequence[InputReference]) -> Outcome:
        folders = [self.start.folders[0]]
        final = next(one for one in candidates(folders, self.say) if one.marker.step == self.run.steps)
        kept = {name: row[name] for name in row if name.startswith(("train/loss", "train/cross_entropy", "eval/"))}
        kept = {name: value for name, value in kept.items() if not name.endswith("_time")}
        prediction = records.read_prediction(self.directory)
        comparison = records.compare(prediction, kept)
        if "train/loss" not in kept:
            self.say(f"warning: {self.directory} has no row of step {self.run.steps:,}; its training loss is not known")
        for name, pair in comparison.items():
            landmark = " (by a law fitted to larger budgets)" if pair["extrapolated"] else ""
            if pair["measured"] is not None:
                self.say(f"{name}: expected {pair['expected']:.4f}{landmark}, measured {pair['measured']:.4f}")
        details = {"figures": kept, "prediction": prediction, "comparison": comparison}
        if is_first():
            records.finish(self.directory, self.run, self.mixture, list(inputs), details, final)
        self.say(f"finished {self.run.steps:,} steps: {self.directory}")
        return Outcome(self.directory, self.run.steps, kept, comparison, self.start.resumed_from)


def _remarkable(row: Mapping[str, Any]) -> bool:
    """Whether a row holds what comes seldom, and must be written whatever `log.every` says."""
    return any(name.startswith(("eval/", "alarm/", "mixture/", "grad/", "params/", "updates/")) for name in row)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set, where this is the main thread; a second Ctrl-C ends at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, _: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
