"""Opens local files only if they are regular files. Opening a named pipe waits for its writer. Opening a device may
change it (a tape is rewound), and reading it may never end. A directory made by others may contain such entries or
links to them, and a setting may name one. The local files of sources and settings are therefore opened by this module.
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
    """Open a local file. Raises OSError, or UnreadableError for a named pipe, a socket or a device, without opening it.
    The file's kind is checked again once it is open, in case it was replaced; opening never waits for a pipe's writer.
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
    """Raise IsADirectoryError for a directory, and UnreadableError for any other entry that is not a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if kind := special_kind(status.st_mode):
        raise UnreadableError(f"{path} is {kind}, not a file; copy the data to a file, or exclude it")
