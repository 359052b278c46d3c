"""Implements `datakit publish`, which puts the documents of a dataset in a folder, a bucket or a repository of the Hub,
after it has shown what will be there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from datakit.cli.console import bytes_text, note, progress_note, say, say_json, table, wrapped
from datakit.cli.parameters import Flag
from datakit.errors import UsageError, counted

if TYPE_CHECKING:
    from datakit.publish import Prepared, Published


def publish(
    target: str,
    destination: str,
    /,
    *,
    public: Flag = False,
    replaces: str | None = None,
    yes: Flag = False,
    dry_run: Flag = False,
    json: Flag = False,
) -> int:
    """Publish the documents of a dataset: Parquet files, a dataset card, and the lineage.

    Shows columns, licenses and what is known about personal data, and asks before it begins. An interrupted publication
    goes on: run the same command again. Every source needs a `license` in the recipe. On the Hub, a new repository is
    private, and the token comes from HF_TOKEN.

    Examples:
      datakit publish data/shelf hf://datasets/my-organization/shelf --dry-run
      datakit publish data/shelf hf://datasets/my-organization/shelf --yes
      datakit publish data/shelf s3://bucket/shelf --yes
      datakit publish data/shelf/consolidate-0123456789ab published/shelf --replaces 5f0cd7a1b2c3d4e5

    Parameters
    ----------
    target
        The directory of a dataset or of one of its consolidate steps.
    destination
        hf://datasets/ORGANIZATION/NAME, a folder, or the URL of a bucket and a prefix.
    public
        Create a repository on the Hub that everyone can read.
    replaces
        The revision in the destination that may be replaced. Without this option, only an empty destination is written.
    yes
        Do not ask.
    dry_run
        Show what would be published, and end.
    json
        Print one JSON object.
    """
    from datakit import publish as publishing
    from datakit.publish.publishing import require_replaced

    prepared = publishing.prepare(target, destination, public=public, progress=progress_note("hashing:"))
    if not json or not yes:
        _show(prepared, on_stderr=json)
    if dry_run:
        if json:
            say_json(_described(prepared))
        else:
            _list_missing(prepared)
        return 0
    require_replaced(prepared, replaces)
    if not prepared.is_published:
        _confirm(prepared, yes)
    done = publishing.publish(prepared, progress=progress_note("publishing:"), say=note)
    _end(prepared, done, json)
    return 0


def _show(prepared: Prepared, *, on_stderr: bool) -> None:
    documents, publication = prepared.documents, prepared.publication
    lines = [
        f"{documents.dataset}: {counted(publication.rows, 'document')} of {counted(len(documents.sources), 'source')}, "
        f"{counted(len(prepared.files) + 1, 'file')}, {bytes_text(sum(file.bytes for file in prepared.files))}",
        "\nlicenses and personal data:",
        table(("source", "license", "personal data"), [
            (status.source, documents.licenses[status.source], status.describe()) for status in documents.personal
        ]),
        "\ncolumns:",
        *(wrapped(f"{source}: {_columns(prepared, source)}", "  ", "  ") for source in documents.sources),
        f"\nto {prepared.destination.url}: {_change(prepared)}",
    ]  # fmt: skip
    for line in lines:
        (note if on_stderr else say)(line)


def _columns(prepared: Prepared, source: str) -> str:
    return ", ".join(f"{column.name} ({column.type})" for column in prepared.documents.columns[source])


def _change(prepared: Prepared) -> str:
    if prepared.is_published:
        return f"already there, as revision {prepared.held.revision}"
    missing = prepared.difference.missing
    text = f"{counted(len(missing), 'file')} to add, {bytes_text(sum(file.bytes for file in missing))}"
    if prepared.difference.removed:
        text += f"; {counted(len(prepared.difference.removed), 'file')} to remove"
    text += f"; {prepared.destination.visibility}" if prepared.destination.visibility else ""
    return text + (f"; replaces the revision {prepared.replaced}" if prepared.replaced else "")


def _list_missing(prepared: Prepared) -> None:
    rows = [(file.path, bytes_text(file.bytes)) for file in prepared.difference.missing]
    rows += [(path, "to remove") for path in prepared.difference.removed]
    if rows:
        say("\n" + table(("file", "size"), rows))
    note("nothing was published; leave out --dry-run to publish")


def _confirm(prepared: Prepared, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("publish asks before it begins, but there is no terminal to ask on; add --yes")
    note(f"publish this to {prepared.destination.url}? Type yes:")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was published, because the answer was not yes")


def _end(prepared: Prepared, done: Published, json: bool) -> None:
    if json:
        say_json({**_described(prepared), "revision": done.revision, "url": done.url})
        return
    say(done.url)
    new = f"{counted(done.changed, 'file')} new or changed ({bytes_text(done.bytes)}), {done.files:,} in all"
    note(f"revision {done.revision}: {new}; read it with: {_reading(prepared)}")


def _reading(prepared: Prepared) -> str:
    place = prepared.destination.url.removeprefix("hf://datasets/")
    manifest = prepared.documents.manifest
    first = next(part.source for part in manifest.partitions if part.rows)
    return f'datasets.load_dataset("{place}", "{first}")'


def _described(prepared: Prepared) -> dict[str, Any]:
    documents, difference = prepared.documents, prepared.difference
    return {
        "dataset": documents.dataset,
        "identity": documents.manifest.identity,
        "documents": prepared.publication.rows,
        "destination": prepared.destination.url,
        "visibility": prepared.destination.visibility or None,
        "holds": prepared.held.revision or None,
        "replaces": prepared.replaced or None,
        "licenses": dict(documents.licenses),
        "columns": {name: [column.name for column in columns] for name, columns in documents.columns.items()},
        "personal_data": {one.source: one.describe() for one in documents.personal},
        "files": [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in prepared.files],
        "missing": [file.path for file in difference.missing],
        "removed": list(difference.removed),
    }
