"""Describes a failed save in one line, and makes orbax wait for all writes and reads even if one fails."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from functools import cache
from typing import Any

from orbax.checkpoint._src import asyncio_utils

from datakit.storage.io_errors import SPACE


@cache
def prepare_orbax() -> None:
    """Make orbax delay the error of a failed task until all tasks that it has started have ended. Also switch off its
    logging of tracebacks, because `Writer.wait` raises the error.

    Without the delay, orbax would close its event loop after the first of many failures, TensorStore would print a
    traceback for each array that it reports to the closed loop, and asyncio would print one for each unretrieved error.
    """
    logging.getLogger("absl").addFilter(lambda record: not record.exc_info)
    asyncio_utils._run_sync_via_new_loop = run_to_the_end  # orbax has no setting for this


def run_to_the_end(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new event loop, which is closed only when all tasks have ended, even if one has failed.

    If the coroutine fails, asyncio does not print tracebacks of the other tasks' unretrieved exceptions.
    """
    loop, failed = asyncio.new_event_loop(), False
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(lambda loop, context: None if failed else loop.default_exception_handler(context))
    try:
        return loop.run_until_complete(work)
    except BaseException as error:
        failed = True
        if isinstance(error, KeyboardInterrupt | SystemExit):
            for task in asyncio.all_tasks(loop):
                task.cancel()
        raise
    finally:
        while rest := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()


def reason(failure: BaseException) -> str:
    """Return a one-line description of a failed save. TensorStore's own message may have many lines."""
    text = str(failure).strip()
    for full in map(os.strerror, SPACE):
        if full in text:
            return f"{full}; free some space, and run the same command again to resume from the last checkpoint"
    return f"{type(failure).__name__}: {(text.splitlines() or [''])[0]}"
