"""Lists a source's files: walks directories (following links) and applies include and exclude patterns.
Skips named pipes, sockets and devices, and refuses links that lead to missing files or out of the source's folder.

A URL names a file, a directory or a glob. A pattern is matched against the path relative to the directory. `*` and `?`
match within one path component, `[...]` matches one of the characters listed, and `**` matches any number of
components. A pattern without `/` matches file names at any depth. A URL may start with one of the PLACEHOLDERS, which
stand for folders that every machine with datakit has.

Files and directories whose names start with a dot are never read, but are listed as left out (a directory as one
entry). The components `.` and `..` of an object's key are ordinary names. Links to directories are followed, except
links to enclosing directories. A source is refused if too many paths lead to one directory through links, because even
a few links can create more paths than can be listed. A link that leads out of the directory in the URL is refused.
Otherwise, the author of the data could turn any file on this machine into a document. The URL itself, which the user
wrote, may contain links. Files are opened later, by the same paths; `normalize/readers/inputs.py` then checks that they
have not changed since they were listed.

Cost: one listing. On a disk, this is a directory walk; in an object store, as few requests as the store allows.
"""

from __future__ import annotations

import errno
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from datakit.errors import NotFoundError, UnreadableError, counted
from datakit.printable import one_line
from datakit.regular_files import special_kind
from datakit.signed_urls import split_query
from datakit.storage import urls
from datakit.storage.buckets import listing as buckets
from datakit.storage.io_errors import read_errors
from datakit.storage.urls import FileInfo
from datakit.store_access import USUAL, StoreAccess

_MAGIC = re.compile(r"[*?\[]")
_DANGLING = "a link to a file that does not exist"
_OUTSIDE = "a link that leads out of the source's folder"
_HIDDEN = "hidden"
SHOWN = 5  # maximum number of files that a message names
MOST_PATHS = 1000  # maximum number of paths to one directory; 30 directories with two links each can create 2**30 paths


@dataclass(frozen=True)
class Place:
    """A set of files: those below `base` that match `pattern` (None: all of them), or the single file `file` in
    `base`. query: the query string of the file's URL, which is needed to read the file; "" if it has none. access: how
    the store is reached, if `base` is in a store.
    """

    base: str
    pattern: str | None = None
    file: str | None = None
    query: str = field(default="", repr=False)
    access: StoreAccess = USUAL


def _packages() -> str:
    spec = find_spec("pyarrow")  # finds it without importing it
    assert spec is not None and spec.origin is not None, "datakit needs pyarrow"
    return str(Path(spec.origin).parents[1])


PLACEHOLDERS = {
    "{stdlib}": lambda: sysconfig.get_paths()["stdlib"],  # the running Python's standard library
    "{packages}": _packages,  # the folder in which datakit's dependencies are installed
    "{catalog}": lambda: str(Path(__file__).parents[1] / "catalog"),  # the recipes that come with datakit
}


def expand(url: str) -> str:
    """Replace the placeholder with which a URL or a path starts, if there is one, and return the URL."""
    for placeholder, folder in PLACEHOLDERS.items():
        if url.startswith(placeholder):
            return folder() + url.removeprefix(placeholder)
    return url


def locate(url: str, access: StoreAccess = USUAL) -> Place:
    """Resolve `url` to a file, a directory or a glob. An existing local path is never treated as a glob, and an HTTP
    URL with a query string always names a file. access: how the store is reached, if `url` is in a store.
    """
    place, query = split_query(urls.absolute(expand(url)))
    if query:
        return Place(urls.parent(place), file=urls.name(place), query=query)
    if _is_file(place, access):
        return Place(urls.parent(place) or "/", file=urls.name(place), access=access)
    found = _MAGIC.search(place)
    if found is None or (urls.is_local(place) and os.path.exists(place)):
        return Place(place, access=access)
    cut = place.rindex("/", 0, found.start())
    return Place(place[:cut] or "/", pattern="/" + place[cut + 1 :], access=access)


def first_magic(text: str) -> int | None:
    """Return where the first wildcard of a pattern is, or None if there is none.

    >>> first_magic("data/*.parquet"), first_magic("data")
    (5, None)
    """
    found = _MAGIC.search(text)
    return found.start() if found else None


def _is_file(url: str, access: StoreAccess) -> bool:
    if urls.is_local(url):
        return os.path.isfile(url)
    if _MAGIC.search(url):
        return False
    if buckets.is_bucket(url):
        return buckets.describe(url, access) is not None
    file_system, path = urls.filesystem(url)
    return bool(file_system.isfile(path))


def files_at(
    place: Place, exclude: Sequence[str] = (), outside_links: bool = False, page_keys: int = buckets.PAGE_KEYS
) -> list[FileInfo]:
    """Return every file of a place, sorted by path, whether or not it matches the place's pattern. The list is empty if
    the directory does not exist. On a disk, directories that are excluded entirely (for example, by `**/tests/**`) are
    not entered, because a Python installation may have a hundred thousand files in site-packages.

    The list also holds entries that must not be read (see `regular`); if such an entry is a directory, its path ends
    with a slash. outside_links: if True, links that lead out of the directory are followed. page_keys: how many objects
    of a bucket to request at a time.
    """
    if place.file is not None:
        return [_one_file(place)]
    closed = matcher([f"/{pattern.removesuffix('/**')}" for pattern in exclude if pattern.endswith("/**")])
    if urls.is_local(place.base):
        found = _walk(place.base, closed, outside_links)
    elif buckets.is_bucket(place.base):
        found = map(marked_if_hidden, buckets.objects_below(place.base, place.access, page_keys))
    else:
        found = map(marked_if_hidden, urls.objects(place.base))
    return sorted(found, key=lambda info: info.path)


def marked_if_hidden(info: FileInfo) -> FileInfo:
    """Return the entry, marked as one that must not be read if its name or that of a folder above starts with a dot."""
    return replace(info, special=_HIDDEN) if urls.is_hidden(info.path) else info


def select(files: Sequence[FileInfo], place: Place, include: Sequence[str], exclude: Sequence[str]) -> list[FileInfo]:
    """Return the files that match the place's glob (if it has one), at least one pattern in `include` (if it is not
    empty), and no pattern in `exclude`; also the directories that are not walked, if they may hold such files.
    """
    wanted, unwanted = matcher(include), matcher(exclude)
    glob = matcher([place.pattern]) if place.pattern else None

    def chosen(path: str) -> bool:
        if path.endswith("/"):
            return (not place.pattern or _may_hold(place.pattern, path)) and (
                not include or any(_may_hold(pattern, path) for pattern in include)
            )
        return (glob is None or glob.fullmatch(path) is not None) and (not include or bool(wanted.fullmatch(path)))

    return [
        info for info in files if chosen(info.path) and not (exclude and (unwanted.fullmatch(info.path.rstrip("/"))))
    ]


def _may_hold(pattern: str, folder: str) -> bool:
    """Return True if the pattern may match a file below `folder` (a path that ends with a slash).

    >>> [_may_hold(pattern, "a/b/") for pattern in ("*.py", "/*.py", "a/*.py", "a/*/c.py", "a/**", "b/**/*.py")]
    [True, False, False, True, True, False]
    """
    if "/" not in pattern:
        return True
    parts, names = pattern.removeprefix("/").split("/"), folder[:-1].split("/")
    for part, name in zip(parts, names, strict=False):
        if part == "**":
            return True
        if not re.fullmatch(_part(part), name, re.DOTALL):
            return False
    return len(parts) > len(names)


def regular(files: Sequence[FileInfo], skip_links: bool = False) -> tuple[list[FileInfo], str]:
    """Return the regular files, and a clause that counts and names the other entries. Those entries must not be read:
    opening a named pipe could block forever.

    Raises UnreadableError if an entry is a link to a missing file, or a link that leads out of the directory.
    skip_links: if True, such links are left out like named pipes.
    """
    if not skip_links:
        _refuse(_DANGLING, "fix or exclude it", files)
        _refuse(_OUTSIDE, "exclude it, or set `outside_links = true` for this source to follow such links", files)
    hidden = [one_line(info.path) for info in files if info.special == _HIDDEN]
    skipped = [f"{one_line(info.path)} is {info.special}" for info in files if info.special not in ("", _HIDDEN)]
    clauses = [counted(len(skipped), "entry", "entries") + f" that cannot be read ({_first(skipped)})"] * bool(skipped)
    clauses += [counted(len(hidden), "hidden name") + f" ({_first(hidden)})"] * bool(hidden)
    return [info for info in files if not info.special], ", ".join(clauses)


def refused_links(files: Sequence[FileInfo]) -> dict[str, str]:
    """Return the links that `regular` refuses: what each is, by path."""
    return {info.path.rstrip("/"): info.special for info in files if info.special in (_DANGLING, _OUTSIDE)}


def _refuse(kind: str, advice: str, files: Sequence[FileInfo]) -> None:
    found = [one_line(info.url) for info in files if info.special == kind]
    if found:
        more = f" (and {len(found) - 1} more, such as {', '.join(found[1:SHOWN])})" if found[1:] else ""
        raise UnreadableError(f"{found[0]} is {kind}{more}; {advice}")


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def matcher(patterns: Sequence[str]) -> re.Pattern[str]:
    """Compile several patterns into one regular expression.

    >>> [bool(matcher(["*.py"]).fullmatch(path)) for path in ("a.py", "b/a.py", "a.pyc")]
    [True, True, False]
    >>> [bool(matcher(["b/**/*.py"]).fullmatch(path)) for path in ("b/a.py", "b/c/d/a.py", "a/b/a.py")]
    [True, True, False]
    """
    return re.compile("|".join(map(_expression, patterns)), re.DOTALL)


def _expression(pattern: str) -> str:
    anywhere = "" if "/" in pattern else "(?:.*/)?"
    parts = pattern.removeprefix("/").split("/")
    text = ""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            text += ".*" if last else "(?:[^/]*/)*"  # a component of an object's key may be empty
        else:
            text += _part(part) + ("" if last else "/")
    return f"(?:{anywhere}{text})"


def _part(part: str) -> str:
    text, position = "", 0
    while position < len(part):
        letter, end = part[position], part.find("]", position + 2)
        if letter == "[" and end > 0:
            letters = part[position + 1 : end].replace("\\", "\\\\")
            text += "[" + ("^" + letters[1:] if letters[0] == "!" else letters) + "]"
            position = end
        else:
            text += {"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter))
        position += 1
    return text


def _one_file(place: Place) -> FileInfo:
    name = place.file or ""
    if place.query:
        return _signed_file(f"{place.base}/{name}{place.query}", name)
    url = urls.child(place.base, name)
    if urls.is_local(url):
        return FileInfo(url, name, os.path.getsize(url))
    if buckets.is_bucket(url):
        found = buckets.describe(url, place.access)
        if found is None:
            raise NotFoundError(f"{url} does not exist")
        return found
    file_system, path = urls.filesystem(url)
    info = file_system.info(path)
    return FileInfo(url, name, int(info["size"] or 0), urls.checksum_of(info))


def _signed_file(url: str, name: str) -> FileInfo:
    """Describe a file whose URL has a query string. Its size must be known before it is read."""
    with read_errors(url):
        file_system, path = urls.filesystem(url)
        info = file_system.info(path)
    if info["size"] is None:
        raise UnreadableError(f"{url}: the server does not state the file's size; copy the file to a disk or a store")
    return FileInfo(url, name, int(info["size"]), urls.checksum_of(info))


def _walk(base: str, closed: re.Pattern[str], outside_links: bool) -> Iterator[FileInfo]:
    stack: list[tuple[str, str, frozenset[tuple[int, int]]]] = [(base, "", frozenset())] if os.path.isdir(base) else []
    inside = os.path.join(os.path.realpath(base), "")
    visits = Counter[tuple[int, int]]()
    while stack:
        folder, prefix, above = stack.pop()
        state = os.stat(folder)
        here = (state.st_dev, state.st_ino)
        if here in above:
            continue
        visits[here] += 1
        if visits[here] > MOST_PATHS:
            raise UnreadableError(
                f"{one_line(base)}: more than {MOST_PATHS:,} paths lead to {one_line(os.path.realpath(folder))} "
                "through links; remove or exclude the links"
            )
        with os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                directory = _is_directory(entry)
                if directory and closed.fullmatch(path):
                    continue
                info = _directory(entry, path) if directory else _local_file(entry, path)
                if entry.name.startswith("."):
                    yield replace(info, special=_HIDDEN)
                elif not info.special and not outside_links and _leads_out(entry, inside):
                    yield replace(info, special=_OUTSIDE)
                elif directory:
                    stack.append((entry.path, f"{path}/", above | {here}))
                else:
                    yield info


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link that leads to itself
            raise
        return False


def _leads_out(entry: os.DirEntry[str], inside: str) -> bool:
    """Return True if the entry is a link to a place that is not in the directory `inside`, whose path ends with `/`."""
    return entry.is_symlink() and not os.path.join(os.path.realpath(entry.path), "").startswith(inside)


def _directory(entry: os.DirEntry[str], path: str) -> FileInfo:
    return FileInfo(entry.path, f"{path}/", 0)


def _local_file(entry: os.DirEntry[str], path: str) -> FileInfo:
    try:
        status = entry.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return FileInfo(entry.path, path, 0, special=_DANGLING)
    return FileInfo(entry.path, path, status.st_size, special=special_kind(status.st_mode))


def subdirectories(directory: str) -> list[str]:
    """Return the sorted names of the subdirectories, or an empty list if the directory does not exist."""
    if urls.is_local(directory):
        if not os.path.isdir(directory):
            return []
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    file_system, path = urls.filesystem(directory)
    try:
        entries = file_system.ls(path, detail=True)
    except FileNotFoundError:
        return []
    return sorted(urls.name(entry["name"]) for entry in entries if entry["type"] == "directory")
