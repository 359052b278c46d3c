"""What the fork server does once for all tasks: import the readers, and compile the kernels or load them from disk."""

from __future__ import annotations

from datakit.normalize import text_rules
from datakit.normalize.readers import csv, json_lines


def warm() -> None:
    """Call every kernel on the kinds of arrays that tasks give it."""
    text_rules.warm()
    json_lines.warm()
    csv.warm()
