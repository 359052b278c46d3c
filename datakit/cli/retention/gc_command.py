"""Implements `datakit gc`, which lists or removes what a root no longer needs: leftovers of killed runs, steps that
nothing needs, old trash, and expired roots of ferries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from datakit.cli.console import bytes_text, note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.errors import counted

if TYPE_CHECKING:
    from datakit.retention.collection import Garbage

HEADERS = ("bytes", "kind", "why")
SHOWN_REASONS = 4


def gc(
    root: str = "./data",
    /,
    *,
    delete: Flag = False,
    unreachable: Flag = False,
    ferry_roots: Flag = False,
    older_than: float = 24.0,
    json: Flag = False,
) -> int:
    """List or remove what a root no longer needs.

    Leftovers are files that no manifest refers to: temporary files of dead processes, exchange files of finished
    steps, all files of unfinished steps that no run is working on, and the rotated events of runs that have ended.

    A finished step is unreachable if nothing needs it, directly or indirectly: no dataset's current step or cache, no
    pin, no training run in the root, no packing step, and no process that is running. Only the root itself is searched.
    Before anything outside of the root uses a step, pin the step with `datakit pin`.

    Unreachable steps are moved to <root>/.trash/<day>/, which is emptied after 14 days. To restore a step, move its
    directory back. If a manifest cannot be read, nothing is removed. Steps that changed within the last 24 hours are
    kept (see --older-than), because an interrupted run uses its finished steps when it is resumed.

    Examples:
      datakit gc data
      datakit gc data --delete --older-than 0
      datakit gc data --unreachable --delete
      datakit gc data --unreachable --delete --older-than 0

    Parameters
    ----------
    root
        The root given to `datakit run`.
    delete
        Remove the listed leftovers, and what the next two options name.
    unreachable
        With --delete, also move unreachable steps to the trash, and remove what has been there for more than 14 days.
    ferry_roots
        With --delete, also remove the roots below this folder that a ferry created and whose time to live is over.
    older_than
        Include temporary files from other hosts, rotated events, unfinished steps and unreachable steps that have not
        changed for this many hours. If you keep an unfinished step, a resumed run can reuse the results of the step's
        finished tasks.
    json
        Print one JSON object.
    """
    from datakit.retention.collection import find_garbage, remove_garbage

    seconds = older_than * 3600
    if delete:
        found = remove_garbage(root, seconds, unreachable=unreachable, ferry_roots=ferry_roots, say=note)
    else:
        found = find_garbage(root, seconds)
    if json:
        say_json({"removed": delete, "bytes": found.bytes, "leftovers": found.leftovers,
                  "unreachable": found.unreachable, "trash": found.trash, "ferry_roots": found.ferry_roots,
                  "linked": found.linked, "kept": found.kept})  # fmt: skip
        return 0
    _show(found, delete)
    return 0


def _show(found: Garbage, delete: bool) -> None:
    kinds = {"leftover": found.leftovers, "unreachable step": found.unreachable, "old trash": found.trash,
             "expired ferry root": found.ferry_roots}  # fmt: skip
    entries = [(kind, entry) for kind, listed in kinds.items() for entry in listed]
    if entries:
        rows = [[entry.bytes, kind, entry.why] for kind, entry in entries]
        say(table(HEADERS, rows, [entry.url for _, entry in entries]))
    for url in found.linked:
        note(f"{url} is unreachable, but lies behind a link, so it is never removed")
    for line in _kept(found):
        note(line)
    counts = ", ".join(counted(len(listed), kind, plural) for (kind, listed), plural in zip(
        kinds.items(), ("leftovers", "unreachable steps", "days of old trash", "expired ferry roots"), strict=True)
        if listed or kind == "leftover")  # fmt: skip
    note(f"{counts}, {bytes_text(found.bytes)}: {_outcome(found, delete)}")


def _kept(found: Garbage) -> Iterator[str]:
    """Yield a line for each of the most frequent reasons why steps that are not current are kept."""
    reasons = Counter(step.why for step in found.kept).most_common()
    for why, number in reasons[:SHOWN_REASONS]:
        yield f"{counted(number, 'step')} kept, though not current: {why}"
    if others := sum(number for _, number in reasons[SHOWN_REASONS:]):
        yield f"{counted(others, 'step')} kept, though not current, for other reasons; --json gives all"


def _outcome(found: Garbage, delete: bool) -> str:
    if delete:
        return "removed" + ("; the steps are in the trash of the root for 14 days" if found.unreachable else "")
    advice = ["--delete removes leftovers"]
    advice += ["--unreachable --delete moves the steps to the trash"] * bool(found.unreachable or found.trash)
    advice += ["--ferry-roots --delete removes the roots of ferries"] * bool(found.ferry_roots)
    return f"listed; {', '.join(advice)}"
