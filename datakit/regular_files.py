"""Opens local files only if they are regular files. Opening a named pipe waits for its writer, reading a device may
never end, and opening one may change it (a tape is rewound); data and settings that others made may contain such
entries, or links to them. Wherever a path is given, to a source or to a setting, its file is therefore opened here.
Cost: two system calls per file.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

from datakit.errors import UnreadableError

SPECIAL = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISREG, ""), (stat.S_ISDIR, ""))


def special_kind(mode: int) -> str:
    """Return a phrase for the kind of an entry with these mode bits ("a socket"), or "" for a file or directory."""
    return next((kind for is_kind, kind in SPECIAL if is_kind(mode)), "a device")


def open_regular(path: str) -> BinaryIO:
    """Open a local file. Raises OSError, and UnreadableError for a named pipe, a socket or a device, which is not
    opened. An entry that is replaced at the same moment is recognized too, and a pipe's writer is not waited for.
    """
    require_regular(path, os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        require_regular(path, os.fstat(descriptor))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(path: str, status: os.stat_result) -> None:
    """Raise IsADirectoryError for a directory, and UnreadableError for an entry of another kind that is not a file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if kind := special_kind(status.st_mode):
        raise UnreadableError(f"{path} is {kind}, not a file; copy the data to a file, or exclude it")
