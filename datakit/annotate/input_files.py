"""Finds and hashes the files that annotators read besides documents, such as lists and evaluation sets.

In a recipe, a table with the keys `path` and `sha256` names one file, or several with a pattern. When the recipe is
checked, the files are hashed, and the hash enters the fingerprint in place of the path: a moved file changes nothing,
and a changed file makes the step anew. A recipe that gives `sha256` itself refuses a changed file. A task compares the
hash again before it uses the files.

The hash of one file is its sha256. The hash of several files is the sha256 of their sha256s (hex digits, each followed
by a newline), in the order of their paths.

Cost: each file is read once per process and whenever its size or its time of modification has changed, at about 1 GB/s.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from datakit.errors import ChangedInputError, NoInputError, UnreadableError
from datakit.regular_files import open_regular
from datakit.storage.globs import expand

PATH, SHA256 = "path", "sha256"
SUITE = "suite"  # stands for the columns of a file, which are in the table as well
_HEX = re.compile(r"[0-9a-fA-F]{64}")


PIECE = 1 << 20  # bytes that are read and hashed at a time


def check_optional_sha256(sha256: str) -> None:
    """Raise ValueError unless `sha256` is "" or consists of 64 hex digits."""
    if sha256 and not _HEX.fullmatch(sha256):
        raise ValueError(f"sha256 is {sha256!r}; it must be the 64 hex digits that `sha256sum` prints for the file")


def find_files(path: str, what: str) -> list[str]:
    """Return the file with this path or, for a pattern with `*`, `?` or `[`, the files that match it, sorted. A file
    whose name is the pattern itself is preferred. what: a description for messages, such as "list 'adult'". Raises
    NoInputError and UnreadableError.
    """
    path = os.path.expanduser(expand(path))
    plain = os.path.lexists(path) or not glob.has_magic(path)
    found = [path] if plain else sorted(glob.glob(path, recursive=True))
    if not found or not os.path.lexists(found[0]):
        raise NoInputError(f"{what}: no file matches {path}; correct `path`, which is relative to the recipe's file")
    for one in found:
        if not os.path.isfile(one):
            raise UnreadableError(f"{what}: {one} is not a file; give a file, or a pattern with `*` that matches files")
    return found


def sha256_of(paths: Sequence[str], what: str) -> str:
    """Return the hash of these files (see above). Raises UnreadableError."""
    try:
        digests = [_file_sha256(path, _state(path)) for path in paths]
    except OSError as error:
        raise UnreadableError(f"{what}: {error.filename} cannot be read: {error.strerror}") from error
    return sha256_of_digests(digests)


def sha256_of_digests(digests: Sequence[str]) -> str:
    """Return the hash of several files (see above). digests: the sha256 of each."""
    together = "".join(f"{one}\n" for one in digests)
    return digests[0] if len(digests) == 1 else hashlib.sha256(together.encode()).hexdigest()


def _state(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.lru_cache(maxsize=4096)
def _file_sha256(path: str, state: tuple[int, ...]) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def check_files(path: str, sha256: str, what: str) -> list[str]:
    """Return the files that `path` names. Raises ChangedInputError if their hash is not `sha256`, unless it is "", and
    what `find_files` and `sha256_of` raise.
    """
    found = find_files(path, what)
    if sha256:
        check_sha256(sha256_of(found, what), sha256, path, what)
    return found


def check_sha256(found: str, expected: str, path: str, what: str) -> None:
    """Raise ChangedInputError if two hashes differ. path, what: for the message."""
    if found != expected.lower():
        raise ChangedInputError(
            f"{what}: the sha256 of {path} is {found}, but {expected.lower()} is expected; restore the file, or run "
            "again after changing `sha256` in the recipe if it is given there"
        )


def without_paths(tables: Mapping[str, Mapping[str, Any]], place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate tables with the keys `path` and `sha256` into what enters the fingerprint (the hash) and what does not
    (the path). The name of a suite is left out. place: the place of the tables in the recipe, for messages, such as
    "[annotate.words.lists". Raises what `check_files` raises.
    """
    content: dict[str, Any] = {}
    for name, table in tables.items():
        what = f"{place}.{name}]"
        found = check_files(table[PATH], table[SHA256], what)
        others = {key: value for key, value in table.items() if key not in (PATH, SUITE)}
        content[name] = {**others, SHA256: table[SHA256].lower() or sha256_of(found, what)}
    return content, {name: {PATH: table[PATH]} for name, table in tables.items()}


def with_paths(settings: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the values that were left out of the fingerprint, at any depth."""
    merged = dict(settings)
    for name, value in paths.items():
        merged[name] = with_paths(merged.get(name, {}), value) if isinstance(value, Mapping) else value
    return merged
