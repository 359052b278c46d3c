"""Prepares the fork server for normalize: imports the readers, and compiles every kernel or loads it from disk, so that
no task has to do so.
"""

from __future__ import annotations

from datakit.normalize import kernels, text_rules
from datakit.normalize.readers import csv_records, json_lines


def warm() -> None:
    """Call every kernel with the argument types that tasks use."""
    assert kernels  # imported above, with numba, so that the fork server can announce a compilation
    text_rules.warm()
    json_lines.warm()
    csv_records.warm()
