"""Removes files and directory trees on a disk or in an object store."""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import suppress

from datakit.storage import urls
from datakit.storage.io_errors import storage_errors

REMOVAL_TRIES = 50
REMOVAL_PAUSE_SECONDS = 0.02


def remove(url: str) -> None:
    """Remove one file if it exists. Raises RootError, StorageError."""
    with storage_errors(url), suppress(FileNotFoundError):
        if urls.is_local(url):
            os.unlink(urls.local_path(url))
        else:
            file_system, path = urls.filesystem(url)
            file_system.rm_file(path)


def remove_tree(url: str) -> None:
    """Remove a directory and everything below it, if it exists. Raises RootError, StorageError."""
    with storage_errors(url):
        if urls.is_local(url):
            _remove_local_tree(urls.local_path(url))
            return
        file_system, path = urls.filesystem(url)
        with suppress(FileNotFoundError):
            file_system.rm(path, recursive=True)


def _remove_local_tree(path: str) -> None:
    """Remove a directory tree. Tries again, a limited number of times, if other processes remove files from it or write
    files into it.
    """
    for patience in range(REMOVAL_TRIES, -1, -1):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if not os.path.exists(path):
                return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not patience:
                raise
            time.sleep(REMOVAL_PAUSE_SECONDS)
        else:
            return
