"""Stage `download`: plans one task per remote file, checks the sizes of the copies, and writes the list of a source's
files to the manifest. Local sources are read in place: no task runs, and the manifest is made from the listing alone.
Remote files are copied to `raw/`, one task per file. The manifest gives each file's path relative to the source, never
an absolute URL, so a dataset keeps its identity when its files are moved. If the key of an object cannot be the path
of a file, the manifest also gives the name of the copy (`copy_names.py`). For a remote source, the step succeeds only
if every listed file was copied and each copy has the listed size; bucket_transfer.py (S3 and Google Cloud Storage),
web/fetch.py (the Hub and web servers) and transfer.py (all other stores) verify the content. At the end, a source in a
store is listed again (second_look.py). The manifest also states what the server said about the version of each file
and, for a source on the Hub, the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from datakit.download import bucket_transfer, transfer
from datakit.download.bucket_transfer import BucketFile
from datakit.download.copy_names import copy_names
from datakit.download.git.address import is_git
from datakit.download.git.steps import phase
from datakit.download.remote_listing import HUB, hub_place, is_listed_here
from datakit.download.second_look import Look, require_same
from datakit.download.source_file import SourceFile
from datakit.engine.task import (
    EXCHANGE_FOLDER,
    SECRET,
    Output,
    OutputFile,
    Phase,
    Plan,
    Preload,
    Step,
    Task,
    TaskContext,
    TaskResult,
)
from datakit.errors import StorageError
from datakit.storage import urls
from datakit.storage.atomic import Committed
from datakit.storage.buckets.listing import is_bucket
from datakit.storage.manifest import Partition
from datakit.store_access import StoreAccess

if TYPE_CHECKING:
    from datakit.download.web.requests import RemoteFile

NAME = "download"
FORMAT_VERSION = 1
RAW = "raw"
CLIENTS = "datakit.storage.buckets.clients"
PARTIAL = "partial"  # the folder below `exchange/` for files that have not arrived completely


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
    the source is a file whose URL has a query string, `query`; `private_redirects` if the source has it, and `resolved`
    if there is more to say about where the files come from; for a source in a bucket, `access` (how it is reached, as a
    text) unless it is the usual way; and, if the source is listed again at the end, `look` (the fields of a Look).
    """
    base, files = step.operations["base"], msgspec.convert(step.operations["files"], list[SourceFile])
    if urls.is_local(base):
        return _output(step, files)
    if is_git(base):
        return (yield from _repository(step, base, files))
    # neither the query string nor the access changes what is copied, so results of tasks stay valid if they change
    reach = step.operations.get("query", "") or step.operations.get("access", "")
    names, private = copy_names(file.path for file in files), bool(step.operations.get("private_redirects"))
    arguments = [_arguments(base, file, names, private) for file in files]
    tasks = tuple(
        Task(f"{number:06d}", f"{__name__}:fetch_file", arguments[number], input_bytes=file.size, secret=reach)
        for number, file in enumerate(files)
    )
    clients = (Preload(CLIENTS, f"{CLIENTS}:load", (urls.protocol(base),)),) if is_bucket(base) else ()
    results = yield Phase(
        "fetch", tasks, preloads=clients, memory_bytes=256 << 20, memory_per_input_byte=0.0, copies=True
    )
    if look := step.operations.get("look"):
        require_same(step.dataset, files, msgspec.convert(look, Look))
    copies = [_copy(file, result.outputs[0]) for file, result in zip(files, results, strict=True)]
    return _output(step, copies, names)


def _arguments(base: str, file: SourceFile, names: Mapping[str, str], private: bool) -> dict[str, Any]:
    known = {"copy": names.get(file.path), "content": file.content, "etag": file.etag, "url": file.url,
             "last_modified": file.last_modified, "private_redirects": private}  # fmt: skip
    given = {name: value for name, value in known.items() if value}
    return {"base": base, "path": file.path, "size": file.size, "checksum": file.checksum, **given}


def _repository(step: Step, url: str, files: Sequence[SourceFile]) -> Plan:
    """Download a Git repository, which is listed as one file, with the commit as its checksum. A simulated run may list
    more files, but only for their sizes.
    """
    file, size = files[0], sum(one.size for one in files)
    (result,) = yield phase(url, f"{RAW}/{file.path}", file.checksum, size, step.parameters)
    texts, left_out = result.outputs
    output = _output(step, [SourceFile(file.path, texts.bytes, texts.xxh3)])
    return replace(output, files=[left_out], details={"commit": file.checksum})


def _copy(file: SourceFile, copy: OutputFile) -> SourceFile:
    if copy.bytes != file.size:
        raise StorageError(f"the copy of {file.path} has {copy.bytes} bytes, but {file.size} were listed; run again")
    return replace(file, size=copy.bytes, checksum=copy.xxh3)


def _output(step: Step, files: Sequence[SourceFile], names: Mapping[str, str] = MappingProxyType({})) -> Output:
    partitions = [
        Partition(file.path, step.dataset, rows=0, bytes=file.size, xxh3=file.checksum, copy=names.get(file.path),
                  version=file.version)
        for file in files
    ]  # fmt: skip
    details = {"resolved": resolved} if (resolved := step.operations.get("resolved")) else {}
    return Output(partitions, pa.schema([]), {"download/files": len(files)}, details)


def fetch_file(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Copy one file to `raw/`."""
    file = msgspec.convert(arguments, SourceFile)
    path = f"{RAW}/{arguments.get('copy', file.path)}"
    copy = _fetched(file, arguments, urls.child(context.step_directory, path), context)
    return TaskResult((OutputFile(path, copy.bytes, copy.xxh3),), {"download/bytes": copy.bytes}, bytes_read=copy.bytes)


def _fetched(file: SourceFile, arguments: Mapping[str, Any], target: str, context: TaskContext) -> Committed:
    base, reach = arguments["base"], arguments.get(SECRET, "")

    def progress(done: int) -> None:
        context.report(0, done)

    if is_bucket(base):
        access = StoreAccess.from_text(reach)
        found = BucketFile(urls.child(base, file.path), file.size, file.checksum, access)
        return bucket_transfer.fetch(found, target, _partial_folder(context), progress)
    if not is_listed_here(base):
        return transfer.fetch(urls.child(base, file.path), target, file.size, file.checksum, progress)
    from datakit.download.web.fetch import fetch  # imports an HTTP client, which other sources do not need

    return fetch(_remote_file(file, arguments), target, _partial_folder(context), progress)


def _remote_file(file: SourceFile, arguments: Mapping[str, Any]) -> RemoteFile:
    from datakit.download.hub import hub_file
    from datakit.download.web import web_listing

    base, private = arguments["base"], bool(arguments.get("private_redirects"))
    if base.startswith(HUB):
        return hub_file.remote_file(hub_place(base, file.path), file.size, file.content, private)
    url, query = file.url or f"{base}/{file.path}", arguments.get(SECRET, "")
    known = web_listing.remote_file(url, private, query, base)
    return replace(known, size=file.size, content=file.content, etag=file.etag, last_modified=file.last_modified)


def _partial_folder(context: TaskContext) -> Path:
    """Return where the bytes that have arrived lie: in the step's directory, where a later run finds them, or, if this
    is in a store, in the task's own directory.
    """
    if not urls.is_local(context.step_directory):
        return context.scratch
    return Path(urls.local_path(context.step_directory)) / EXCHANGE_FOLDER / PARTIAL
