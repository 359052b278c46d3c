"""Implements `datakit du`, which shows how much disk space a root takes, by dataset, stage, source and age."""

from __future__ import annotations

from datakit.cli.console import bytes_cell, bytes_text, note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.errors import counted

FIELDS = ("dataset", "stage", "source", "age")


def du(root: str = "./data", /, *, json: Flag = False) -> int:
    """Show how much space a root takes, by dataset, stage, source and age.

    The sizes in each table add up to that of the whole root. The age of a file is the time since its step last changed.
    Names in parentheses stand for what belongs to no dataset, stage or source. What can be removed is listed by
    `datakit gc`.

    Examples:
      datakit du data
      datakit du s3://bucket/data --json

    Parameters
    ----------
    root
        The root given to `datakit run`.
    json
        Print one JSON object.
    """
    from datakit.retention.usage import disk_use

    found = disk_use(root)
    tables = {field: found.by(field) for field in FIELDS}
    if json:
        sums = {field: {name: {"files": count, "bytes": size} for name, (count, size) in values.items()}
                for field, values in tables.items()}  # fmt: skip
        say_json({"root": found.root, "files": found.files, "bytes": found.bytes, "entries": found.entries, **sums})
        return 0
    for number, (field, values) in enumerate(tables.items()):
        rows = [[name, count, (bytes_cell(size) or "").rjust(8)] for name, (count, size) in values.items()]
        say(("\n" if number else "") + table((field, "files", "    size"), rows))
    note(f"{found.root}: {counted(found.files, 'file')}, {bytes_text(found.bytes)}")
    return 0
