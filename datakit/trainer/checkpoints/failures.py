"""Words the failure of a save in one line, and keeps libraries from printing a traceback for each array to be saved."""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from types import TracebackType

from datakit.storage.io_errors import SPACE


@cache
def keep_failures_short() -> None:
    """Keep orbax and TensorStore from printing a traceback per array if a save fails: `Writer.wait` reports it."""
    logging.getLogger("absl").addFilter(lambda record: not record.exc_info)
    show = sys.excepthook  # TensorStore calls it for each write that ends after orbax has given up

    def unless_given_up(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not (kind is RuntimeError and str(error) == "Event loop is closed"):
            show(kind, error, trace)

    sys.excepthook = unless_given_up


def reason(failure: BaseException) -> str:
    """Word a failure in one line, although TensorStore's own message may have many."""
    text = str(failure).strip()
    for full in map(os.strerror, SPACE):
        if full in text:
            return f"{full}; free some space, and run the same command again to resume from the last checkpoint"
    return f"{type(failure).__name__}: {(text.splitlines() or [''])[0]}"
