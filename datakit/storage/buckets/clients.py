"""Imports the client of a store ahead of time, in the process from which the children of a step are forked.

Importing s3fs or gcsfs takes 0.2 to 0.3 s of CPU time, which each child would otherwise spend before its first request.
No client is made here, because a client has a thread, and a process with threads must not be forked.
"""

from __future__ import annotations

from contextlib import suppress


def load(protocol: str) -> None:
    """Import the client for URLs of a protocol. If it is not installed, the first request says so."""
    import fsspec

    with suppress(ImportError, ValueError):
        fsspec.get_filesystem_class(protocol)
