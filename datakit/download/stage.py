"""Download: a source's files, proven complete. One step a source.

Local sources are read in place: there is nothing to run, and the manifest is the listing. Remote files are copied to
`raw/`, one task a file. The manifest lists each file by its path relative to the source, never by an absolute URL, so
a dataset keeps its identity where its files are moved. Success means that the manifest equals the listing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from datakit.download.transfer import fetch
from datakit.engine.task import Output, OutputFile, Phase, Plan, Step, Task, TaskContext, TaskResult
from datakit.errors import StorageError
from datakit.storage import urls
from datakit.storage.manifest import Partition

NAME = "download"
FORMAT_VERSION = 1
RAW = "raw"


# --- configuration


@dataclass(frozen=True)
class Config:
    """Which files of a source are taken: globs relative to its URL (see `datakit.storage.globs`); none: all."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def files_base(base: str, step_directory: str) -> str:
    """Where a done step's files lie: the source itself if it is local, else the copies."""
    return base if urls.is_local(base) else urls.join(step_directory, RAW)


# --- plan


def plan(step: Step) -> Plan:
    """`step.operations` says where (`base`) and what (`files`: the listing)."""
    base, files = step.operations["base"], step.operations["files"]
    if urls.is_local(base):
        return _output(step, [(file["path"], file["size"], file["checksum"]) for file in files])
    tasks = tuple(_task(base, number, file) for number, file in enumerate(files))
    results = yield Phase("fetch", tasks, memory_bytes=256 << 20, memory_per_input_byte=0.0)
    copies = [(file["path"], result.outputs[0]) for file, result in zip(files, results, strict=True)]
    _check_complete(files, copies)
    return _output(step, [(path, copy.bytes, copy.xxh3) for path, copy in copies])


def _task(base: str, number: int, file: dict[str, Any]) -> Task:
    arguments = {"base": base, **{name: file[name] for name in ("path", "size", "checksum")}}
    return Task(f"{number:06d}", f"{__name__}:fetch_file", arguments, input_bytes=file["size"])


def _check_complete(files: Sequence[dict[str, Any]], copies: Sequence[tuple[str, OutputFile]]) -> None:
    for file, (path, copy) in zip(files, copies, strict=True):
        if copy.bytes != file["size"]:
            raise StorageError(f"{path} has {copy.bytes} bytes, but {file['size']} were listed; run again")


def _output(step: Step, files: Sequence[tuple[str, int, str]]) -> Output:
    partitions = [Partition(path, step.dataset, rows=0, bytes=size, xxh3=checksum) for path, size, checksum in files]
    return Output(partitions, pa.schema([]), {"download/files": len(files)})


# --- task


def fetch_file(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Copy one file to `raw/`."""
    url = urls.join(arguments["base"], arguments["path"])
    path = f"{RAW}/{arguments['path']}"
    copy = fetch(
        url,
        urls.join(context.step_directory, path),
        arguments["size"],
        arguments["checksum"],
        lambda done: context.report(0, done),
    )
    return TaskResult((OutputFile(path, copy.bytes, copy.xxh3),), {"download/bytes": copy.bytes}, bytes_read=copy.bytes)
