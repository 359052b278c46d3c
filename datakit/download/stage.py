"""Stage `download`: plans one task per remote file, checks the sizes of the copies, and writes the list of a source's
files to the manifest. Local sources are read in place: no task runs, and the manifest is made from the listing alone.
Remote files are copied to `raw/`, one task per file. The manifest gives each file's path relative to the source, never
an absolute URL, so a dataset keeps its identity when its files are moved. If the key of an object cannot be the path
of a file, the manifest also gives the name of the copy (`copy_names.py`). For a remote source, the step succeeds only
if every listed file was copied and each copy has the listed size; transfer.py compares the checksums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa

from datakit.download.copy_names import copy_names
from datakit.download.listing import SourceFile
from datakit.download.transfer import fetch
from datakit.engine.task import SECRET, Output, OutputFile, Phase, Plan, Step, Task, TaskContext, TaskResult
from datakit.errors import StorageError
from datakit.storage import urls
from datakit.storage.manifest import Partition

NAME = "download"
FORMAT_VERSION = 1
RAW = "raw"


@dataclass(frozen=True)
class Config:
    """Patterns for the files to read and for the files to leave out, relative to the source's URL.

    `datakit.storage.globs` describes the patterns. If `include` is empty, all files are read except the excluded ones.
    """

    include: tuple[str, ...] = ()  # documented as keys of a source, in `datakit.recipe`
    exclude: tuple[str, ...] = ()


def files_base(base: str, step_directory: str) -> str:
    """Return the base URL of a finished step's files: `base` if the source is local, else that of the copies."""
    return base if urls.is_local(base) else urls.join(step_directory, RAW)


def plan(step: Step) -> Plan:
    """Plan the step. `step.operations` holds `base` (the URL of the source's files), `files` (their listing) and, if
    the source is a file whose URL has a query string, `query`.
    """
    base, files = step.operations["base"], msgspec.convert(step.operations["files"], list[SourceFile])
    if urls.is_local(base):
        return _output(step, files)
    names, query = copy_names(file.path for file in files), step.operations.get("query", "")
    arguments = [_arguments(base, file, names) for file in files]
    tasks = tuple(
        Task(f"{number:06d}", f"{__name__}:fetch_file", arguments[number], input_bytes=file.size, secret=query)
        for number, file in enumerate(files)
    )
    results = yield Phase("fetch", tasks, memory_bytes=256 << 20, memory_per_input_byte=0.0)
    copies = [_copy(file, result.outputs[0]) for file, result in zip(files, results, strict=True)]
    return _output(step, copies, names)


def _arguments(base: str, file: SourceFile, names: Mapping[str, str]) -> dict[str, Any]:
    named = {"copy": names[file.path]} if file.path in names else {}
    return {"base": base, "path": file.path, "size": file.size, "checksum": file.checksum, **named}


def _copy(file: SourceFile, copy: OutputFile) -> SourceFile:
    if copy.bytes != file.size:
        raise StorageError(f"the copy of {file.path} has {copy.bytes} bytes, but {file.size} were listed; run again")
    return SourceFile(file.path, copy.bytes, copy.xxh3)


def _output(step: Step, files: Sequence[SourceFile], names: Mapping[str, str] = MappingProxyType({})) -> Output:
    partitions = [
        Partition(file.path, step.dataset, rows=0, bytes=file.size, xxh3=file.checksum, copy=names.get(file.path))
        for file in files
    ]
    return Output(partitions, pa.schema([]), {"download/files": len(files)})


def fetch_file(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Copy one file to `raw/`."""
    file = msgspec.convert(arguments, SourceFile)
    path, query = f"{RAW}/{arguments.get('copy', file.path)}", arguments.get(SECRET, "")
    target = urls.child(context.step_directory, path)
    url = f"{arguments['base']}/{file.path}{query}" if query else urls.child(arguments["base"], file.path)
    copy = fetch(url, target, file.size, file.checksum, lambda done: context.report(0, done))
    return TaskResult((OutputFile(path, copy.bytes, copy.xxh3),), {"download/bytes": copy.bytes}, bytes_read=copy.bytes)
