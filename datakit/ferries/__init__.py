"""Runs ferries: complete runs of the pipeline, some of them with training, that prove that this version of datakit
works.

A ferry is plain data (`ferry.py`, `catalog.py`). `runner.py` executes it in a root of its own, and appends a record
to the history, with which the next run is compared. See docs/ferries.md.
"""

from datakit.ferries.catalog import FERRIES, ferry_named
from datakit.ferries.ferry import Ferry
from datakit.ferries.history import Summary, read_history, summaries
from datakit.ferries.record import Record
from datakit.ferries.runner import Options, run_ferry

__all__ = [
    "FERRIES",
    "Ferry",
    "Options",
    "Record",
    "Summary",
    "ferry_named",
    "read_history",
    "run_ferry",
    "summaries",
]
