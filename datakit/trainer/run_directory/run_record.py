"""Records in a run's directory with which settings the run was started, so that a later command needs only this
directory: `datakit explain DIRECTORY`, `datakit train DIRECTORY`.

    run.json     the run file's tables with all overrides applied, and the run file's path relative to the directory

Relative paths in the tables are relative to the run file's folder, as in the run file itself. Every start of the run
writes the record again, because settings that do not determine the result may change from start to start. The run file
may be edited or removed later. For a model or an optimizer of your own, give the run file instead of the directory
(`run_code.py`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from datakit.errors import CorruptError, NotFoundError, UsageError
from datakit.leases import training_record
from datakit.storage import atomic, urls
from datakit.storage.json_data import decode_errors

FILE_NAME = "run.json"
FORMAT = "datakit.run/1"


class RunRecord(msgspec.Struct, frozen=True):
    """The content of `run.json`. file: the run file's path, relative to the run's directory."""

    file: str
    run: dict[str, Any]
    data: dict[str, Any]
    format: str = FORMAT


def write_run_record(directory: str, file: Path, run: dict[str, Any], data: dict[str, Any]) -> None:
    """Record a run file's tables in the run's directory. file: the run file's path."""
    home = os.path.realpath(urls.local_path(directory))
    path = os.path.relpath(os.path.realpath(file), home)
    record = msgspec.structs.asdict(RunRecord(path, run, data))
    content = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)  # infinity as TOML's `inf`: Infinity
    atomic.replace_bytes(content.encode() + b"\n", urls.join(directory, FILE_NAME))


def read_run_record(directory: str) -> tuple[Path, RunRecord]:
    """Return the run file's path and the record in a run's directory. Raises UsageError if there is no record, and
    CorruptError if it is damaged.
    """
    url = urls.join(urls.absolute(directory), FILE_NAME)
    try:
        with decode_errors():
            record = msgspec.convert(json.loads(urls.read_bytes(url)), RunRecord)
    except NotFoundError as error:
        raise UsageError(
            f"{directory} has no {FILE_NAME}; give the run file, or the directory of a run that this version trained"
        ) from error
    except (msgspec.DecodeError, json.JSONDecodeError) as error:
        raise CorruptError(f"{url} cannot be read: {error}; give the run file instead") from error
    if record.format != FORMAT:
        raise CorruptError(f"{url} has format {record.format!r}, but this version reads {FORMAT!r}")
    home = os.path.realpath(urls.local_path(urls.absolute(directory)))
    return Path(os.path.normpath(os.path.join(home, record.file))), record


def is_run(name_or_path: str | Path) -> bool:
    """Return True if this is the directory of a training run."""
    names = (FILE_NAME, training_record.FILE_NAME)  # earlier versions wrote only the latter
    return any(os.path.isfile(os.path.join(name_or_path, name)) for name in names)


def is_recorded(directory: str | Path) -> bool:
    """Return True if a run's directory has a record of its settings."""
    return os.path.isfile(os.path.join(directory, FILE_NAME))


def root_of(name_or_path: str | Path, root: str, default: str = "./data") -> str:
    """Return the root to use: for a run's directory, the root that holds the run; otherwise `root`. Raises UsageError
    if a root other than the default is given with the directory of a run elsewhere.
    """
    if not is_run(name_or_path):
        return root
    own = urls.parent(urls.parent(urls.absolute(os.fspath(name_or_path))))
    if root != default and urls.absolute(root) != own:
        raise UsageError(f"--root {root}: {name_or_path} is in the root {own}; remove --root")
    return own
