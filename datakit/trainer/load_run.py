"""Opens a run and its data, with the caches with which the run began, and checks the model's vocabulary size.

    run, data = load_run("run.toml", "data")
    run, data = load_begun(read_run_file("run.toml"), "data", say, finished=False)

A dataset in a run file stands for its current cache. A run that has begun goes on with the cache that was current then:
`caches.json` in its directory names it. So a directory always stands for the same run, and a run file stands for the
run that it has begun, until this run is finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from datakit.errors import LoaderError, NotFoundError, UsageError
from datakit.storage import urls
from datakit.storage.manifest import is_finished
from datakit.trainer import STAGE
from datakit.trainer.checkpoints.candidates import Say
from datakit.trainer.checkpoints.select import checkpoint_folders, committed
from datakit.trainer.config import Run
from datakit.trainer.data import Data, Resolved, open_data, recorded_caches
from datakit.trainer.huggingface import initialize
from datakit.trainer.models.weights import use_cpu_devices
from datakit.trainer.run_directory.named_run import with_named_runs
from datakit.trainer.run_directory.run_record import is_run
from datakit.trainer.run_file import RunFile, read_run_file
from datakit.trainer.run_manifest import run_place


def load_run(
    name_or_path: str | Path | RunFile,
    root: str = "./data",
    overrides: Iterable[str] = (),
    pinned: Mapping[str, Resolved] | None = None,
) -> tuple[Run, Data]:
    """Return the run that a run file defines or that a run's directory records, and its opened data. Overrides such as
    `steps=20` or `model.hidden=64` replace values in the file. Without `model.vocabulary`, the model gets the
    tokenizer's vocabulary size, rounded up to a multiple of 128. `pinned` gives, by dataset, the cache to use instead
    of the dataset's current cache. If the run sets `cpu_devices`, the process gets these devices. Raises RecipeError,
    UsageError, TokenizerError, LoaderError, and the errors of `open_cache`.
    """
    file = name_or_path if isinstance(name_or_path, RunFile) else read_run_file(name_or_path, overrides)
    file = replace(file, run_tables=with_named_runs(file.run_tables, root))
    data = open_data(file.data_table, file.path, root, pinned)
    run = file.run(data.vocabulary)
    use_cpu_devices(run.cpu_devices)
    smallest = max(cache.contract.vocabulary_size for cache in data.caches.values())
    hub = initialize.folder_of(run.initialize_from)
    if run.model.vocabulary < smallest:
        advice = "raise this setting, or remove it" if hub is None else "make caches with the model's own tokenizer"
        raise UsageError(
            f"{file.path}: model.vocabulary is {run.model.vocabulary}, but the caches need at least {smallest}; "
            f"{advice}"
        )
    if hub is not None:
        place = next(iter(data.caches.values())).tokenizer_url
        data = replace(data, notes=data.notes + initialize.check_tokenizer(hub, urls.read_bytes(place), place))
    return run, data


def load_begun(
    file: RunFile, root: str, say: Say, *, finished: bool, pinned: Mapping[str, Resolved] | None = None
) -> tuple[Run, Data]:
    """Return a run and its data, as `load_run` does. If the run began before its datasets got their current caches, the
    earlier caches are used and a message is passed to `say`. finished: also consider finished runs that began with
    earlier caches.
    """
    run, data = load_run(file, root, pinned=pinned)
    if pinned or not data.resolved or _begun(run, directory := directory_of(run, data, root)):
        return run, data
    for other in sorted(Path(urls.local_path(urls.parent(directory))).glob(f"{STAGE}-*"), key=_age):
        recorded = recorded_caches(str(other))
        if not recorded or not _begun(run, str(other)) or (is_finished(str(other)) and not finished):
            continue
        try:
            earlier = load_run(file, root, pinned=recorded)
        except (NotFoundError, LoaderError) as error:
            say(f"{other} cannot go on: {error}")
            continue
        if directory_of(*earlier, root) == str(other):
            for place, found in data.resolved.items():
                used = earlier[1].resolved[place]
                if used != found:
                    say(_newer(place, used.cache, found.cache))
            return earlier
    return run, data


def caches_of(name_or_path: str | Path) -> Mapping[str, Resolved]:
    """Return the caches that the run in a directory began with, by dataset; empty for a run file. So the directory
    always stands for this run, whichever caches are current, and whichever other runs have the same settings.
    """
    return recorded_caches(urls.absolute(str(name_or_path))) if is_run(name_or_path) else {}


def require_same(name_or_path: str | Path, directory: str) -> None:
    """Raise UsageError if a run's directory is given, and its recorded settings now lead to another `directory`."""
    if is_run(name_or_path) and Path(directory).resolve() != Path(name_or_path).resolve():
        raise UsageError(
            f"{name_or_path}: with its recorded settings, the run would now be {directory}; a cache or the version of "
            "datakit has changed"
        )


def directory_of(run: Run, data: Data, root: str) -> str:
    """Return the directory of a run under `root`."""
    with data.loader() as loader:
        return run_place(root, run, loader.record()).directory


def _newer(dataset: str, used: str, newest: str) -> str:
    return (
        f"the run goes on with {used}, with which it began\n"
        f"  {dataset} now stands for {urls.name(newest)}; to train on that cache, change the run's name"
    )


def _begun(run: Run, directory: str) -> bool:
    return bool(committed(list(checkpoint_folders(directory, run.checkpoint.temporary_root))))


def _age(directory: Path) -> float:
    """Return a sort key by which the most recently changed directory comes first."""
    return -directory.stat().st_mtime
