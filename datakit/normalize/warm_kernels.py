"""Prepares the fork server for normalize: imports the readers, and compiles every kernel or loads it from disk, so that
no task has to do so.
"""

from __future__ import annotations

from datakit.engine.freed_memory import keep_freed_memory
from datakit.normalize import kernels, text_rules
from datakit.normalize.readers import csv_records, json_lines
from datakit.normalize.readers.json_arrays.one_line import on_one_line
from datakit.normalize.readers.taken_texts import take


def warm() -> None:
    """Call every kernel with the argument types that tasks use."""
    # a use of the import above: a compilation can be announced only if numba is imported before this function is called
    assert kernels
    keep_freed_memory()
    text_rules.warm()
    json_lines.warm()
    take.warm()
    csv_records.warm()
    on_one_line(b"{}")
