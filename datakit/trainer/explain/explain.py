"""Explains a step of a training run: which documents were in its batch, and how each affected the loss and gradient.

    found = explain("data/demo-train/train-0123456789ab", 120)
    found.documents[0].id, found.documents[0].gradient_norm

The batch is a function of the mixture and the step, so no log of batches is needed; the digest in metrics.jsonl proves
that the loader has made the batch that was trained on. The state before the step is replayed from the checkpoint
before it (replay.py), and the replayed loss must equal the logged one, bit for bit. If it does not, or if a shortcut
was asked for, the answer is labelled as an estimate, with the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from datakit.errors import CorruptError, UsageError, counted
from datakit.loader import Batch, Loader
from datakit.loader.reading.digest import batch_digest
from datakit.trainer import train as loop
from datakit.trainer.checkpoints.candidates import Say
from datakit.trainer.commands import lease_caches
from datakit.trainer.config import Run
from datakit.trainer.data import Data
from datakit.trainer.device_feed import place as place_batch
from datakit.trainer.explain.batch_documents import BatchDocument, batch_documents
from datakit.trainer.explain.replay import (
    LOSS,
    Compared,
    Report,
    Restored,
    advance,
    nearest_weights,
    replay,
    restore_before,
)
from datakit.trainer.explain.scores import GRADIENT, Score, gradient_norms, losses_of, ranking
from datakit.trainer.explain.scores import LOSS as BY_LOSS
from datakit.trainer.load_run import caches_of, load_begun, require_same
from datakit.trainer.loop.compilation_cache import use_compilation_cache
from datakit.trainer.metrics.json_lines import STEP, read_metrics
from datakit.trainer.run_directory.run_record import root_of
from datakit.trainer.run_file import RunFile, read_run_file
from datakit.trainer.run_manifest import RunPlace, run_place
from datakit.trainer.step import Trainer
from datakit.trainer.train import say_on_stderr

DIGEST, ROWS = "data/batch_xxh3", "data/batch_rows"
EXACT, ESTIMATE = "replay", "estimate"


@dataclass(frozen=True)
class Document:
    """A document of the batch. row: its row in the cache. offset: the number of its tokens before its first part.
    tokens: those in the batch. parts: (row of the batch, first column, column after the last). The other numbers are
    those of `scores.Score`; NaN and infinity become None, and finite is False.
    """

    id: str
    source: str
    bucket: str | None
    component: str
    cache: str
    row: int
    offset: int
    tokens: int
    parts: tuple[tuple[int, int, int], ...]
    excluded: bool
    predicted: int
    loss: float | None
    excess: float | None
    gradient_norm: float | None
    finite: bool


@dataclass(frozen=True)
class Explanation:
    """The documents of a step's batch, the most conspicuous first.

    kind: EXACT or ESTIMATE; why_estimate: the reasons. from_checkpoint, from_step: the weights' origin. replayed:
    number of repeated steps before this one. batch_digest: of the first process's rows; batch_proven: True if the log
    has the same digest, None if it has none for this step. logged_loss, replayed_loss: of this step; None if not known
    or not finite. documents: at most as many as requested of the `total` in the batch.
    """

    run: str
    root: str
    step: int
    kind: str
    why_estimate: tuple[str, ...]
    from_checkpoint: str
    from_step: int
    replayed: int
    batch_digest: str
    batch_proven: bool | None
    logged_loss: float | None
    replayed_loss: float | None
    cross_entropy: float | None
    predicted: int
    total: int
    documents: tuple[Document, ...]


@dataclass(frozen=True)
class Options:
    """top: number of documents to return. by: LOSS or GRADIENT, see `scores.ranking`. estimate: use the nearest
    checkpoint's weights and replay nothing. gradients: compute gradient norms; an answer without them is labelled as
    an estimate, too.
    """

    top: int = 20
    by: str = BY_LOSS
    estimate: bool = False
    gradients: bool = True

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UsageError(f"--top is {self.top}; it must be at least 1")
        if self.by not in (BY_LOSS, GRADIENT):
            raise UsageError(f"--by is {self.by!r}; it must be {BY_LOSS} or {GRADIENT}")
        if self.by == GRADIENT and not self.gradients:
            raise UsageError(f"--by {GRADIENT} needs gradients; remove --loss-only")


def explain(
    name_or_path: str | Path,
    step: int,
    root: str = "./data",
    options: Options | None = None,
    overrides: Iterable[str] = (),
    devices: Sequence[Any] | None = None,
    say: Say = say_on_stderr,
    report: Report = lambda done, total, what: None,
) -> Explanation:
    """Explain step `step` (from 1, as in metrics.jsonl) of the run that a run file defines, or that is in a directory.

    Raises UsageError for a step that was not trained, CorruptError if the batch is not the one that was trained on,
    CheckpointError if the state before the step cannot be restored, and the errors of `load_run`.
    """
    if jax.process_count() > 1:
        raise UsageError("`datakit explain` runs in a single process, with all devices; start only one process")
    options = options or Options()
    opened = open_run(name_or_path, root, overrides, say)
    rows = {row[STEP]: row for row in read_metrics(opened.place.directory)}
    check_step(opened.place.directory, step, list(rows))
    with (
        opened.data.loader() as loader,
        lease_caches(opened.root, opened.data, "datakit explain", say, opened.place.directory),
    ):
        use_compilation_cache(opened.run.compilation_cache, say)
        trainer = loop.trainer_of(opened.run, devices)
        with jax.set_mesh(trainer.mesh):
            return _Step(opened, trainer, loader, step, rows, options, say, report).explain()


@dataclass(frozen=True)
class Opened:
    """A run that has begun, its data and its place."""

    file: RunFile
    root: str
    run: Run
    data: Data
    place: RunPlace


def open_run(name_or_path: str | Path, root: str, overrides: Iterable[str], say: Say) -> Opened:
    """Open a run that has begun. Raises UsageError if a run's directory is given, and its recorded settings no longer
    lead to this directory.
    """
    root, file = root_of(name_or_path, root), read_run_file(name_or_path, overrides)
    run, data = load_begun(file, root, say, finished=True, pinned=caches_of(name_or_path))
    with data.loader() as loader:
        place = run_place(root, run, loader.record())
    require_same(name_or_path, place.directory)
    return Opened(file, root, run, data, place)


def check_step(directory: str, step: int, logged: list[int]) -> None:
    """Raise UsageError unless a run has trained this step, according to the steps in its log."""
    last = max(logged, default=0)
    if not 1 <= step <= last:
        reached = f"its log ends at step {last:,}" if last else "its log is empty"
        raise UsageError(f"--step {step}: {directory} has not trained this step ({reached}); steps count from 1")


@dataclass(frozen=True)
class _Step:
    """One step to explain."""

    opened: Opened
    trainer: Trainer
    loader: Loader
    step: int
    rows: dict[int, dict[str, Any]]
    options: Options
    say: Say
    report: Report

    def explain(self) -> Explanation:
        batch = self.loader[self.step - 1]
        digest, proven = self._prove(batch)
        documents = batch_documents(self.loader, self.step - 1)
        restored, state, compared = self._state()
        scores = self._scores(state, batch, documents)
        if not self.options.estimate:
            placed = place_batch(batch, self.trainer.mesh, self.opened.run.model.vocabulary)
            _, loss = advance(self.opened.run, self.trainer, state, placed.batch, self.step)
            compared.append(Compared(self.step, self._logged(), loss))
        reasons = self._reasons(restored, compared)
        order = ranking(scores, self.options.by)[: self.options.top]
        predicted = sum(score.predicted for score in scores)
        total = sum(score.loss * score.predicted for score in scores if score.loss is not None)
        return Explanation(
            run=self.opened.place.directory,
            root=self.opened.root,
            step=self.step,
            kind=ESTIMATE if reasons else EXACT,
            why_estimate=tuple(reasons),
            from_checkpoint=restored.place,
            from_step=restored.step,
            replayed=0 if self.options.estimate else self.step - 1 - restored.step,
            batch_digest=digest,
            batch_proven=proven,
            logged_loss=self._logged(),
            replayed_loss=_finite(compared[-1].replayed) if compared else None,
            cross_entropy=_finite(total / predicted) if predicted else None,
            predicted=predicted,
            total=len(documents),
            documents=tuple(_shown(documents[i], scores[i]) for i in order),
        )

    def _logged(self) -> float | None:
        return self.rows.get(self.step, {}).get(LOSS)

    def _prove(self, batch: Batch) -> tuple[str, bool | None]:
        """Return the batch's digest, and whether the log proves that the run trained on it. Raises CorruptError if the
        log has another digest.
        """
        row = self.rows.get(self.step, {})
        rows = int(row.get(ROWS) or batch.shape[0])
        digest = batch_digest(self.loader.rows(self.step - 1, 0, rows))
        if DIGEST not in row:
            return digest, None
        if row[DIGEST] != digest:
            raise CorruptError(
                f"{self.opened.place.directory}: the batch of step {self.step:,} has the digest {digest}, but the run "
                f"logged {row[DIGEST]}; check its caches with `datakit validate`"
            )
        return digest, True

    def _state(self) -> tuple[Restored, Any, list[Compared]]:
        """Return what was restored, the state to measure with, and the losses of the repeated steps."""
        run, place, step = self.opened.run, self.opened.place, self.step
        if self.options.estimate:
            restored = nearest_weights(run, place, self.trainer, step, self.say)
            return restored, restored.state, []
        restored = restore_before(run, place, self.trainer, self.loader, step, self.say)
        self.say(f"{counted(step - 1 - restored.step, 'step')} to repeat from {restored.place} to step {step:,}")
        state, compared = replay(run, self.trainer, self.loader, restored, step, self.rows, self.report)
        return restored, state, compared

    def _scores(self, state: Any, batch: Batch, documents: list[BatchDocument]) -> list[Score]:
        scores = losses_of(self.trainer, state, batch, documents)
        counted = [i for i, score in enumerate(scores) if score.predicted]
        if not self.options.gradients:
            return scores
        chosen = [documents[i] for i in counted]
        norms = gradient_norms(self.trainer, state, batch, chosen, self.report)
        found = dict(zip(counted, norms, strict=True))
        return [replace(score, gradient_norm=found.get(i, 0.0)) for i, score in enumerate(scores)]

    def _reasons(self, restored: Restored, compared: list[Compared]) -> list[str]:
        """Return why the answer is only an estimate; empty if it is exact."""
        reasons = []
        if self.options.estimate:
            side = "before" if restored.step < self.step else "after"
            reasons.append(f"the weights are those of step {restored.step:,}, {side} this step; nothing was replayed")
        if not self.options.gradients:
            reasons.append("no gradient was computed, only losses")
        if getattr(self.trainer.config, "capacity_factor", None) is not None:
            reasons.append("the losses and gradients are those without a capacity, while training dropped assignments")
        different = [one for one in compared if not one.equal]
        if different:
            first = different[0]
            reasons.append(
                f"the replay is not exact: at step {first.step:,} its loss is {first.replayed!r}, but the log has "
                f"{first.logged!r}; check that devices, versions and settings such as remat are those of the run"
            )
        elif not self.options.estimate and self.step not in self.rows:
            reasons.append(f"the log has no row of step {self.step:,}, so the replay cannot be compared with it")
        return reasons


def _shown(document: BatchDocument, score: Score) -> Document:
    values = [score.loss, score.excess, score.gradient_norm]
    loss, excess, norm = (None if value is None else _finite(value) for value in values)
    return Document(
        id=document.id,
        source=document.source,
        bucket=document.cache.bucket_of(document.row),
        component=document.component,
        cache=document.cache.directory,
        row=document.row,
        offset=document.parts[0].position - document.parts[0].document[0],
        tokens=document.tokens,
        parts=tuple((part.row, part.start, part.stop) for part in document.parts),
        excluded=document.excluded,
        predicted=score.predicted,
        loss=loss,
        excess=excess,
        gradient_norm=norm,
        finite=all(value is None or math.isfinite(value) for value in values),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
