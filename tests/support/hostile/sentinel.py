"""Reports which files of a folder were opened, read, changed or listed, by the kernel's notifications (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_ACCESS, IN_MODIFY, IN_ATTRIB, IN_OPEN, IN_CREATE, IN_DELETE, IN_MOVE = 0x1, 0x2, 0x4, 0x20, 0x100, 0x200, 0xC0
WATCHED = IN_ACCESS | IN_MODIFY | IN_ATTRIB | IN_OPEN | IN_CREATE | IN_DELETE | IN_MOVE
NAMES = {IN_ACCESS: "read", IN_MODIFY: "written", IN_ATTRIB: "changed", IN_OPEN: "opened", IN_CREATE: "created",
         IN_DELETE: "deleted"}  # fmt: skip
HEADER = struct.Struct("iIII")


class Sentinel:
    """Watches a folder and the folders below it."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._folders: dict[int, Path] = {}
        for path in [folder, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())]:
            number = self._library.inotify_add_watch(self.descriptor, os.fsencode(path), WATCHED)
            if number < 0:
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {path}")
            self._folders[number] = path

    def touched(self) -> list[str]:
        """Return `path was opened` and the like for all that has happened since the last call."""
        try:
            data = os.read(self.descriptor, 1 << 20)
        except BlockingIOError:
            return []
        found, place = [], 0
        while place < len(data):
            number, mask, _, length = HEADER.unpack_from(data, place)
            name = data[place + HEADER.size : place + HEADER.size + length].rstrip(b"\0")
            path = self._folders.get(number, Path("?")) / os.fsdecode(name)
            found += [f"{path} was {what}" for bit, what in NAMES.items() if mask & bit]
            place += HEADER.size + length
        return list(dict.fromkeys(found))


@contextmanager
def sentinel(folder: Path) -> Iterator[Sentinel]:
    """Watch a folder for the block."""
    watch = Sentinel(folder)
    try:
        yield watch
    finally:
        os.close(watch.descriptor)
