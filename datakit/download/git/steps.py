"""Lists and downloads a source that is a Git repository: one task fetches the revision and writes its files or, for a
source with `history = true`, its commits as one Parquet file.

The identity of such a source is the id of the commit and the patterns of the source. The listing asks the repository
which commit a branch or a tag means now; a full commit id needs no question.
"""

from __future__ import annotations

import shutil
from typing import Any

from datakit.download.git.address import parse
from datakit.download.git.client import commit_of, fetch, list_commits
from datakit.download.git.history import write_history
from datakit.download.git.snapshot import Patterns, write_snapshot
from datakit.engine.task import OutputFile, Phase, Task, TaskContext, TaskResult
from datakit.storage import urls

LISTED_AS_LEFT_OUT = "left_out.parquet"


def listed_file(url: str, history: bool = False) -> tuple[str, str]:
    """Return the name of the file that a repository becomes, and the id of the commit that the URL names now. Raises
    NoInputError, RootError or StorageError.
    """
    address = parse(url)
    return f"{address.name}{'-history' if history else ''}.parquet", commit_of(address)


def phase(url: str, path: str, commit: str, size: int, parameters: dict[str, Any]) -> Phase:
    """Return the phase that downloads a repository. path: the path of the file to write, in the step's directory. size:
    an estimate of its size in bytes, or 0.
    """
    patterns = {name: list(parameters.get(name, ())) for name in ("include", "exclude")}
    arguments = {"url": url, "commit": commit, "path": path, **patterns}
    arguments |= {"history": True} if parameters.get("history") else {}
    task = Task("000000", f"{__name__}:fetch_repository", arguments, input_bytes=size, file=path)
    return Phase("fetch", (task,), memory_bytes=1 << 30, memory_per_input_byte=0.0)


def fetch_repository(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Fetch one commit of a repository, and write its files, or it and all commits before it."""
    path, commit, history = arguments["path"], arguments["commit"], bool(arguments.get("history"))
    patterns = Patterns(arguments["include"], arguments["exclude"])
    targets = tuple(urls.join(context.step_directory, name) for name in (path, LISTED_AS_LEFT_OUT))
    folder, ids = context.scratch / "repository", context.scratch / "repository" / "commits"

    def still_alive() -> None:
        context.report(0, 0)

    try:
        fetch(parse(arguments["url"]), commit, folder, still_alive, history=history)
        if history:
            list_commits(folder, commit, ids, still_alive)
            found = write_history(folder, ids, patterns, (targets[0], targets[1]), context.report)
        else:
            found = write_snapshot(folder, commit, patterns, (targets[0], targets[1]), context.report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outputs = (
        OutputFile(path, found.texts.bytes, found.texts.xxh3, found.texts.rows),
        OutputFile(LISTED_AS_LEFT_OUT, found.left_out.bytes, found.left_out.xxh3, found.left_out.rows),
    )
    counters = {
        "download/bytes": found.texts.bytes,
        "download/commits" if history else "download/files_in_commit": found.texts.rows,
    }
    counters |= {f"download/left_out_{reason}": count for reason, count in sorted(found.reasons.items())}
    return TaskResult(outputs, counters, records=found.texts.rows, bytes_read=found.texts.bytes)
