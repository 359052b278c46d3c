"""Turns HTML into text with Resiliparse or trafilatura, within a limit on CPU time.

The functions are called as anyone would call them, with these settings:

    resiliparse    extract_plain_text(html, main_content=True)     fast; keeps lists and line breaks
    trafilatura    extract(html)                                   slower; more precise about what is boilerplate
    none           the HTML itself

Extractors crash, hang and eat memory on some pages, and Python cannot interrupt their compiled code. So nothing here
catches such a fault: it ends the process, and the engine finds the record that was in progress. The kernel ends the
process (SIGPROF) when it has used the permitted CPU time for one record. Since CPU time is counted rather than time
that passes, a record does not fail because a machine is busy. It may fail on one machine and pass on another that is
much faster; records close to the limit are rare, because the limit is about a thousand times what a page takes.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from datakit.normalize.config import NO_EXTRACTION, RESILIPARSE, TRAFILATURA
from datakit.normalize.readers.web.errors import BrokenRecordError

Extract = Callable[[str], str | None]


def extractor(name: str) -> Extract:
    """Return the function that turns HTML into text."""
    return {RESILIPARSE: _resiliparse, TRAFILATURA: _trafilatura, NO_EXTRACTION: lambda: str}[name]()


def _resiliparse() -> Extract:
    from resiliparse.extract.html2text import extract_plain_text

    return lambda html: extract_plain_text(html, main_content=True)


def _trafilatura() -> Extract:
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # its messages may quote pages
    return trafilatura.extract


def warm(name: str) -> None:
    """Load an extractor, and what it loads at its first call, so that forked children need not do so."""
    extractor(name)("<html><body><p>A page, and a text of some words.</p></body></html>")


def extracted(extract: Extract, html: str) -> str | None:
    """Return the text of a page, or None if it has none. Raises BrokenRecordError if the extractor raises an exception,
    for example because Rust code panics.
    """
    try:
        return extract(html)
    except (MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BrokenRecordError(f"the extractor raised {type(error).__name__}") from error


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """End the process with SIGPROF as soon as it has used `seconds` of CPU time in the `with` block; 0: no limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
