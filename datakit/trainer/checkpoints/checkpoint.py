"""Decides when a checkpoint is saved, kept or removed; writes and restores checkpoints.

    <run>/checkpoints/step-000000400/state/...       orbax's files, each array sharded as on the devices
                                     commit.json     the marker, written last: step, run, mixture, files and checksums
    <temporary>/<same names>                         rolling checkpoints, e.g. in storage that deletes old files

A rolling checkpoint is written every `interval_minutes` minutes, and also before an evaluation if no save is in
progress. Only the newest `keep_temporary` rolling checkpoints are kept. The final checkpoint is permanent. If
`keep_every` is set, a permanent one is also written every `keep_every` steps. A new checkpoint is committed before an
older one is removed, and a checkpoint's marker is removed before its files. So the last good checkpoint survives, no
matter when the process is killed.

During a save, the training loop waits only while the state is copied to host memory; the rest of the save runs in the
background. A checkpoint can be restored on any number of devices, because orbax reads each array into the requested
sharding. Before a checkpoint is restored, its files are read an additional time to verify their checksums.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

import jax
import msgspec
import orbax.checkpoint as ocp
from etils import epath

from datakit.errors import CheckpointError, UsageError
from datakit.storage import urls
from datakit.trainer.checkpoints.candidates import (
    MARKER,
    SET_ASIDE,
    Candidate,
    Marker,
    Say,
    candidate_at,
    candidates,
    file_hash,
    step_folders,
)
from datakit.trainer.checkpoints.compatibility import METADATA, check_fit, check_names
from datakit.trainer.checkpoints.failures import prepare_orbax, reason
from datakit.trainer.models.weights import Tree
from datakit.trainer.multihost import is_first

STATE = "state"


@dataclass(frozen=True)
class Checkpoints:
    """Settings for saving and resuming. By default, rolling checkpoints are stored next to permanent ones."""

    interval_minutes: float = 10.0
    keep_temporary: int = 2
    keep_every: int | None = None  # training steps between permanent checkpoints
    temporary_root: str | None = None
    # True: resume, or fail if no checkpoint exists; False: start afresh; None: resume if one exists, else start afresh
    load: bool | None = None

    def __post_init__(self) -> None:
        if not self.interval_minutes >= 0:
            raise UsageError(f"checkpoint.interval_minutes is {self.interval_minutes}; it must be 0 or more")
        if self.keep_temporary < 1:
            raise UsageError("checkpoint.keep_temporary must be at least 1; without a checkpoint, a run cannot resume")
        if self.keep_every is not None and self.keep_every < 1:
            raise UsageError(f"checkpoint.keep_every is {self.keep_every}; use at least 1 step, or remove this setting")
        root = self.temporary_root
        if root is not None and urls.is_local(root) and not os.path.isabs(os.path.expanduser(root)):
            raise UsageError(
                f"checkpoint.temporary_root is {root!r}; give an absolute path or a URL, "
                "so that the run finds its checkpoints from any working directory"
            )


def restore(candidate: Candidate, like: Tree, whole: bool = True) -> Tree:
    """Restore the state in a checkpoint. If `whole` is false, restore only the parts in `like` (e.g. "params" and
    "model"), whichever optimizer the checkpoint was written with. Each leaf of `like` is an array or a
    ShapeDtypeStruct, and gives the sharding of the restored array. Raises CheckpointError if the arrays to restore have
    other names or shapes in the checkpoint than in `like`.
    """
    prepare_orbax()
    place = candidate.path / STATE
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
    check_names(place / METADATA, str(candidate.path))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        check_fit(checkpointer.metadata(place).item_metadata.tree, like, whole, str(candidate.path))
        arguments = ocp.checkpoint_utils.construct_restore_args(abstract)
        wanted = ocp.args.PyTreeRestore(item=abstract, restore_args=arguments, partial_restore=True)
        return checkpointer.restore(place, args=wanted)


@dataclass
class Writer:
    """Saves states of a run in the background, one at a time. `run` is the run's fingerprint. Permanent and rolling
    checkpoints go to the folders `permanent` and `temporary`.
    """

    settings: Checkpoints
    permanent: str
    temporary: str
    run: str
    say: Say
    _saver: ocp.AsyncCheckpointer = field(init=False)
    _thread: threading.Thread | None = None
    _failure: BaseException | None = None
    _saved_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        prepare_orbax()
        self._saver = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def due(self, step: int, evaluates: bool, before: bool = False) -> bool:
        """Return True if the state after `step` steps should be saved now. `evaluates` is True if an evaluation
        follows. This is a reason to save, but not while an earlier checkpoint is still being written: the new save, and
        thus the evaluation, would have to wait for it. before: True if the state one step earlier is about to be
        saved, so no time will have passed since the last save.
        """
        waited = 0.0 if before else time.monotonic() - self._saved_at
        late = waited >= 60 * self.settings.interval_minutes
        writing = self._thread is not None and self._thread.is_alive()
        return self._kept(step) or late or (evaluates and not writing)

    def _kept(self, step: int) -> bool:
        return self.settings.keep_every is not None and step % self.settings.keep_every == 0

    def save(self, state: Tree, marker: Marker) -> None:
        """Wait for the previous save to finish, and then start to save `state`, in which all values must be finite."""
        self.wait()
        permanent = marker.permanent or self._kept(marker.step)
        marker = msgspec.structs.replace(marker, run=self.run, permanent=permanent)
        path = epath.Path(self.permanent if permanent else self.temporary) / f"step-{marker.step:09d}"
        if permanent and candidate_at(path, lambda _: None) is not None:
            return  # an earlier process of this run has committed this checkpoint
        if is_first():
            (path / MARKER).unlink(missing_ok=True)
            (path / SET_ASIDE).unlink(missing_ok=True)
        self._saver.save(path / STATE, args=ocp.args.StandardSave(state), force=True)
        self._saved_at = time.monotonic()
        self._thread = threading.Thread(target=self._commit, args=(path, marker), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the current save is committed. Raises CheckpointError if the save failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise CheckpointError(f"a checkpoint could not be written: {reason(failure)}") from failure

    def close(self) -> None:
        """Wait for the current save, and stop the background threads."""
        try:
            self.wait()
        finally:
            self._saver.close()

    def _commit(self, path: epath.Path, marker: Marker) -> None:
        try:
            self._saver.wait_until_finished()
            if is_first():
                commit(path, marker)
                self._prune(marker.step)
        except Exception as error:  # noqa: BLE001 - raised by `wait` in the main thread
            self._failure = error

    def _prune(self, step: int) -> None:
        """Remove unfinished checkpoints of earlier steps, and rolling ones older than the newest `keep_temporary`."""
        found = [one for one in candidates([self.temporary], lambda _: None) if not one.marker.permanent]
        for candidate in found[self.settings.keep_temporary :]:
            # The marker goes first: if the removal is interrupted, a checkpoint without a marker is ignored.
            (candidate.path / MARKER).unlink(missing_ok=True)
            candidate.path.rmtree()
        for folder in {self.permanent, self.temporary}:
            for number, path in step_folders(folder):
                if number < step and not any((path / name).exists() for name in (MARKER, SET_ASIDE)):
                    path.rmtree()


def commit(path: epath.Path, marker: Marker) -> None:
    """Write the marker of a completely written state, with the size and checksum of each file."""
    files = {str(file.relative_to(path)): (file.stat().length, file_hash(file)) for file in _files(path / STATE)}
    data = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(marker, files=files)), indent=1)
    unfinished = path / f".{MARKER}.tmp"
    unfinished.write_bytes(data)
    unfinished.rename(path / MARKER)


def _files(folder: epath.Path) -> list[epath.Path]:
    found: list[epath.Path] = []
    for entry in sorted(folder.iterdir()):
        found.extend(_files(entry) if entry.is_dir() else [entry])
    return found
