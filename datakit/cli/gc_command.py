"""Implements `datakit gc`, which lists or deletes the leftovers of killed runs; by default, unfinished steps are
included only after 24 hours without a change.
"""

from __future__ import annotations

from datakit.cli.console import bytes_text, note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.errors import counted


def gc(root: str = "./data", /, *, delete: Flag = False, older_than: float = 24.0, json: Flag = False) -> int:
    """List or delete the leftovers of killed runs.

    Leftovers are files that no manifest refers to: temporary files of dead processes, exchange files of finished
    steps, all files of unfinished steps that no run is working on, and the rotated events of runs that have ended. The
    output of finished steps is never touched.

    Examples:
      datakit gc data
      datakit gc data --delete --older-than 0

    Parameters
    ----------
    root
        The root given to `datakit run`.
    delete
        Delete the listed leftovers.
    older_than
        Include temporary files from other hosts, rotated events and unfinished steps that have not changed for this
        many hours. If you keep an unfinished step, a resumed run can reuse the results of the step's finished tasks.
    json
        Print one JSON object.
    """
    from datakit.pipeline import find_leftovers, remove_leftovers

    found = find_leftovers(root, older_than * 3600)
    if delete:
        remove_leftovers(found)
    total = sum(leftover.bytes for leftover in found)
    if json:
        say_json({"removed": delete, "bytes": total, "leftovers": found})
        return 0
    if found:
        rows = [[entry.bytes, entry.why] for entry in found]
        say(table(("bytes", "why"), rows, [entry.url for entry in found]))
    done = "removed" if delete else "listed; --delete removes them"
    note(f"{counted(len(found), 'leftover')}, {bytes_text(total)}: {done}")
    return 0
