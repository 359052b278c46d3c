"""Returns the present time by the clock of a store. The age of a file must be computed from two times given by
the same clock: on a network disk or in an object store, files get the server's times, and the clock of this machine may
be hours off. Cost: one small file written and removed, on a disk or in a store.
"""

from __future__ import annotations

import time

from datakit.errors import RootError
from datakit.storage import atomic, urls


def now(directory: str) -> float:
    """Return the time that a file written to `directory` now would get, in seconds since 1970. Returns this
    machine's time if the user may not write to the directory (and thus cannot remove files from it either).
    """
    try:
        with atomic.temporary_file(directory, "clock", b"") as url:
            return urls.modified(url)
    except RootError:
        return time.time()
