"""Trains a run again from the checkpoint before a step, without some documents, to show what would have happened.

    outcome = train_without("data/demo-train/train-0123456789ab", 120, ["5f0cd7a1b2c3d4e5f60718293a4b5c6d"])

The result is a run of its own, beside the other one. Its settings are those of the other run and two changes: the
mixture excludes the documents from the step on, and `resume_from` names the checkpoint. Both are part of the run's
fingerprint, and its directory records them in run.json. So `datakit train DIRECTORY` continues it after an
interruption. An excluded document keeps its place and its segment in each batch, with loss mask 0; nothing else in any
batch changes (`loader/sources/exclusions.py`). Its tokens still pass through the model, so they count in the router's
statistics and losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from datakit.storage import urls
from datakit.trainer.checkpoints.candidates import Say
from datakit.trainer.commands import train_run_file
from datakit.trainer.config import STAGE
from datakit.trainer.explain.explain import Opened, check_step, open_run
from datakit.trainer.explain.replay import checkpoints_of
from datakit.trainer.metrics.json_lines import STEP, read_metrics
from datakit.trainer.run_directory.named_run import path_in
from datakit.trainer.run_directory.run_code import CACHE
from datakit.trainer.run_directory.run_record import is_recorded, read_run_record
from datakit.trainer.run_file import RunFile
from datakit.trainer.train import Outcome, say_on_stderr

RESUME, INITIALIZE, EXCLUSIONS = "resume_from", "initialize_from", "exclusions"


def train_without(
    name_or_path: str | Path,
    step: int,
    documents: Sequence[str],
    root: str = "./data",
    overrides: Iterable[str] = (),
    say: Say = say_on_stderr,
) -> Outcome:
    """Train the run again from the checkpoint before training step `step` (from 1), without the documents with these
    ids from that step on. Without such a checkpoint, train it from its start. Raises UsageError for a step that the run
    has not trained, LoaderError for an id that none of its caches holds, and the errors of `train_file`.
    """
    opened = open_run(name_or_path, root, overrides, say)
    check_step(opened.place.directory, step, [row[STEP] for row in read_metrics(opened.place.directory)])
    file = counterfactual(opened, step, documents, say)
    return train_run_file(file, opened.root, say, opened.data.resolved)


def counterfactual(opened: Opened, step: int, documents: Sequence[str], say: Say) -> RunFile:
    """Return the settings of the run without these documents from training step `step` on. If such a run has begun, its
    own settings are returned, so that it goes on from its own checkpoint.
    """
    tables, data = dict(opened.file.run_tables), dict(opened.file.data_table)
    listed = {"start_step": step - 1, "documents": sorted(dict.fromkeys(documents))}
    data[EXCLUSIONS] = [*data.get(EXCLUSIONS, []), listed]
    begun = _begun(opened, tables, data)
    if begun is not None:
        say(f"the run without these documents has begun: {begun}")
        _, record = read_run_record(begun)
        start = {name: record.run[name] for name in (RESUME, INITIALIZE) if name in record.run}
        return RunFile(opened.file.path, _settings(tables) | start, data)
    found = [one for one in checkpoints_of(opened.run, opened.place, say) if one.marker.step < step]
    chosen = next((one for one in found if one.damage(checksums=True) is None), None)
    if chosen is None:
        say(f"no checkpoint before step {step:,} remains, so the run starts as the other one did")
        return RunFile(opened.file.path, tables, data)
    tables.pop(INITIALIZE, None)  # the checkpoint holds the whole state
    tables[RESUME] = path_in(opened.root, str(chosen.path))
    return RunFile(opened.file.path, tables, data)


def _begun(opened: Opened, tables: dict[str, Any], data: dict[str, Any]) -> str | None:
    """Return the directory of a run beside this one that has the same settings apart from where it starts."""
    folder = Path(urls.local_path(urls.parent(opened.place.directory)))
    for directory in sorted(map(str, folder.glob(f"{STAGE}-*"))):
        if not is_recorded(directory) or directory == opened.place.directory:
            continue
        _, record = read_run_record(directory)
        if record.data == data and _settings(record.run) == _settings(tables):
            return directory
    return None


def _settings(tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables without where the run starts, and without the compilation cache, which a directory does not
    determine (`run_directory/run_code.py`).
    """
    return {name: value for name, value in tables.items() if name not in (RESUME, INITIALIZE, CACHE)}
