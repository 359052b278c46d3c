"""Warms up the fork server: imports the readers, and compiles the kernels or loads them from disk."""

from __future__ import annotations

from datakit.normalize import text_rules
from datakit.normalize.readers import csv, json_lines


def warm() -> None:
    """Call every kernel with the argument types that tasks use."""
    text_rules.warm()
    json_lines.warm()
    csv.warm()
