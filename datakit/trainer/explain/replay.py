"""Restores the state that a run had before a step: from the nearest checkpoint before it, by repeating the steps since.

The steps are repeated with the same compiled function and the same batches, so on the same devices and versions they
give the same bits. Each repeated step's loss is compared with the one in metrics.jsonl, so a replay that is not exact
is noticed. Cost: the steps since the checkpoint. If no checkpoint remains, the run is repeated from its start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from datakit.errors import CheckpointError
from datakit.loader import Loader
from datakit.trainer.checkpoints.candidates import Candidate, Say, candidates
from datakit.trainer.checkpoints.select import checkpoint_folders, restore_newest
from datakit.trainer.config import Run
from datakit.trainer.device_feed import Feed
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import Tree
from datakit.trainer.optimizers.schedules import learning_rates
from datakit.trainer.resume import first_start
from datakit.trainer.run_manifest import RunPlace
from datakit.trainer.step import Trainer

LOSS = "train/loss"
Rows = Mapping[int, Mapping[str, Any]]  # rows of metrics.jsonl by step
Report = Callable[[int, int, str], None]  # called with the number done, the total, and a noun


@dataclass(frozen=True)
class Restored:
    """A state and where it came from. place: the checkpoint's path, or "the start of the run". step: its step."""

    state: Tree
    place: str
    step: int


@dataclass(frozen=True)
class Compared:
    """The loss of a step, as logged and as replayed. logged: None if the log has no loss for the step."""

    step: int
    logged: float | None
    replayed: float

    @property
    def equal(self) -> bool:
        """True if both are the same number, or both are NaN or infinite (the log has null for these)."""
        return self.logged == self.replayed or (self.logged is None and not math.isfinite(self.replayed))


def checkpoints_of(run: Run, place: RunPlace, say: Say) -> list[Candidate]:
    """Return the run's checkpoints, newest first. Raises CheckpointError if some belong to another run."""
    found = candidates(list(dict.fromkeys(checkpoint_folders(place.directory, run.checkpoint.temporary_root))), say)
    if any(one.marker.run != place.fingerprint for one in found):
        raise CheckpointError(f"{place.directory} holds checkpoints of another run; move them to another directory")
    return found


def nearest_weights(run: Run, place: RunPlace, trainer: Trainer, step: int, say: Say) -> Restored:
    """Restore the weights (keys "params" and "model") of the checkpoint closest to the state before `step`."""
    found = sorted(checkpoints_of(run, place, say), key=lambda one: (abs(one.marker.step - step + 1), one.marker.step))
    if not found:
        raise CheckpointError(
            f"{place.directory} has no checkpoint, so nothing can be estimated; without --estimate, the run is "
            "repeated from its start"
        )
    like = trainer.like()
    state, used = restore_newest(found, {name: like[name] for name in ("params", "model")}, say, whole=False)
    return Restored(state, str(used.path), used.marker.step)


def restore_before(run: Run, place: RunPlace, trainer: Trainer, loader: Loader, step: int, say: Say) -> Restored:
    """Restore the newest checkpoint before `step` (at step `step` - 1 or earlier), or the state at the run's start.
    Raises CheckpointError if the run started from a checkpoint that is gone.
    """
    found = [one for one in checkpoints_of(run, place, say) if one.marker.step < step]
    if found:
        state, used = restore_newest(found, trainer.like(), say)
        return Restored(state, str(used.path), used.marker.step)
    advice = "to keep checkpoints, set checkpoint.keep_every; --estimate uses the nearest checkpoint instead"
    say(f"no checkpoint before step {step:,} remains, so the run is repeated from its start ({advice})")
    start = first_start(run, place, trainer, loader, checkpoint_folders(place.directory, None), say)
    if start.step >= step:
        raise CheckpointError(f"the run started at step {start.step:,}, so it did not train step {step:,}; {advice}")
    return Restored(start.state, "the start of the run", start.step)


def replay(
    run: Run, trainer: Trainer, loader: Loader, restored: Restored, step: int, rows: Rows, report: Report
) -> tuple[Tree, list[Compared]]:
    """Repeat the steps after `restored` up to `step` - 1; return the state before `step`, and each repeated step's loss
    beside the logged one. Steps without a row in the log are left out. `restored.state` is used up.
    """
    state, compared = restored.state, list[Compared]()
    with Feed(loader, trainer.mesh, run.model.vocabulary, restored.step, step - 1) as feed:
        for number in range(restored.step + 1, step):
            report(number - restored.step - 1, step - restored.step - 1, f"steps, from step {restored.step + 1:,} on")
            placed = feed.next()
            assert placed is not None, "the loader has fewer batches than the run has steps"
            state, loss = advance(run, trainer, state, placed.batch, number)
            if number in rows:
                compared.append(Compared(number, rows[number].get(LOSS), loss))
    return state, compared


def advance(run: Run, trainer: Trainer, state: Tree, batch: Tokens, step: int) -> tuple[Tree, float]:
    """Take training step `step` with the same compiled function as the run; return the state after it and its loss. The
    buffers of `state` are reused.
    """
    watch = bool(run.log.watch) and (step - 1) % run.log.watch_every == 0
    known = trainer.programs.get((batch.tokens.shape, watch)) or trainer.compile(state, batch, watch)
    rates = learning_rates(run.optimizer, trainer.rates_like(), step - 1, run.steps)
    after, results = known(state, batch, rates)
    return after, float(results["loss"])
