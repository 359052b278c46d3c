"""Decides from a step's ledger whether the step, or a part of it, was made with another version of the user's own code.

The ledger records a hash of the code's file for each driver. The manifest does not contain this hash: otherwise, a
change to a comment would give the same output a different manifest.
"""

from __future__ import annotations

from datakit.engine.ledger.ledger import AttemptLine, DriverLine, drivers, read_ledger


def made_with_other_code(directory: str, code: str, *, finished: bool) -> str:
    """Return the hash that differs from `code` and that a driver recorded: the driver that finished the step in
    `directory` or, if the step is unfinished, any driver that finished one of its tasks. Return "" if there is none.
    """
    if finished:
        recorded = [line.code for line in drivers(directory) if line.code]
        return recorded[-1] if recorded and recorded[-1] != code else ""
    recorded_code = ""
    for line in read_ledger(directory):
        if isinstance(line, DriverLine):
            recorded_code = line.code
        elif isinstance(line, AttemptLine) and line.result is not None and recorded_code not in ("", code):
            return recorded_code
    return ""
