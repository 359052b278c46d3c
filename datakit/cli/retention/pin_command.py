"""Implements `datakit pin`, which protects a step from `datakit gc` or lists pins, and `datakit unpin`."""

from __future__ import annotations

import time

from datakit.cli.console import note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.errors import UsageError, counted


def pin(step: str | None = None, /, *, reason: str = "", list_: Flag = False, json: Flag = False) -> int:
    """Protect a finished step, and everything it was made from, from `datakit gc` until the step is unpinned.

    Pin a step if something outside of its root uses it, such as a training run with another root, a copied dataset that
    refers to it, or a paper. `datakit gc` does not look for uses outside of the root.

    Examples:
      datakit pin data/demo/tokenize-0123456789ab --reason "training run 7 reads it from another disk"
      datakit pin --list data

    Parameters
    ----------
    step
        The directory of a finished step, or that of a dataset, which stands for the last step of its current run and
        its consolidate step. Its path must not lead through a link below the root. With --list, a root; by default
        ./data.
    reason
        Why the step is needed. Shown by --list and by `datakit gc`.
    list_
        List all pins of a root.
    json
        Print one JSON object.
    """
    from datakit.retention.pinning import pin_step

    if list_:
        if reason:
            raise UsageError("--list takes no --reason; leave out one of them")
        return _show(step or "./data", json)
    if step is None or not reason.strip():
        raise UsageError('name a step and a reason: datakit pin STEP --reason "why it is needed"')
    (url, pinned), *others = pin_step(step, reason.strip(), note)
    if json:
        say_json({"step": url, "pin": pinned, "others": [{"step": other, "pin": entry} for other, entry in others]})
    else:
        say("\n".join(f"pinned: {directory}" for directory in (url, *(other for other, _ in others))))
    return 0


def _show(root: str, json: bool) -> int:
    from datakit.retention.pinning import list_pins

    found = list_pins(root)
    if json:
        say_json({"pins": found})
        return 0
    if found:
        rows = [[_day(entry.pin.time), "yes" if entry.exists else "no: removed", entry.pin.reason] for entry in found]
        say(table(("pinned (UTC)", "exists", "reason"), rows, [entry.directory for entry in found]))
    note(counted(len(found), "pin"))
    return 0


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))


def unpin(step: str, /) -> int:
    """Remove the pin of a step, so that `datakit gc` may remove the step once nothing else needs it.

    Example:
      datakit unpin data/demo/tokenize-0123456789ab

    Parameters
    ----------
    step
        The directory of the step. It need not exist anymore.
    """
    from datakit.retention.pinning import unpin_step

    say(f"unpinned: {unpin_step(step)}")
    return 0
