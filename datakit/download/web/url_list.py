"""Reads a list of files: paths relative to the source's URL, or whole URLs, from the recipe or from a text file.

A text file has one entry per line; empty lines and those that start with `#` are skipped. It is on a disk or at an
HTTP(S) URL, and may be compressed with gzip. A file at another address than below the source's URL gets the path
`<host>/<path>`.
Cost: one read of the list, of which at most MOST_LIST_BYTES are read.
"""

from __future__ import annotations

import io
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from gzip import GzipFile
from urllib.parse import urlsplit

from datakit.errors import RecipeError, UnreadableError
from datakit.printable import one_line
from datakit.signed_urls import HTTP, split_query, user_info_mistake
from datakit.storage import urls

MOST_LIST_BYTES = 256 << 20
SHOWN = 5
ReadList = Callable[[str], bytes]


def read_list(files: Sequence[str] | str, read: ReadList) -> list[str]:
    """Return the entries of a list. files: the entries, or where the text file is. read: reads at most MOST_LIST_BYTES
    and a byte more of it. Raises UnreadableError.
    """
    if not isinstance(files, str):
        return list(files)
    data = read(files)
    if data[:2] == b"\x1f\x8b":
        try:
            data = GzipFile(fileobj=io.BytesIO(data)).read(MOST_LIST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableError(f"the list {files} is not a complete gzip file ({error}); get it again") from error
    if len(data) > MOST_LIST_BYTES:
        raise UnreadableError(f"the list {files} has more than {MOST_LIST_BYTES:,} bytes; divide it between sources")
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UnreadableError(f"the list {files} is not UTF-8 text (byte {error.start}); correct it") from error
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def paths_of(base: str, entries: Sequence[str], place: str) -> dict[str, str]:
    """Return the path of each file within the source, and its URL. base: the source's URL, without a slash at its end.
    place: where the list is, for messages. Raises RecipeError for entries that cannot be used.

    >>> paths_of("https://host/a", ["x.gz", "https://host/a/b/y.gz", "https://other/z.gz"], "list")
    {'x.gz': 'https://host/a/x.gz', 'b/y.gz': 'https://host/a/b/y.gz', 'other/z.gz': 'https://other/z.gz'}
    """
    found = [_path_of(base, entry, place) for entry in entries]
    repeated = [path for path, count in Counter(path for path, _ in found).items() if count > 1]
    if repeated:
        shown = ", ".join(map(one_line, repeated[:SHOWN]))
        raise RecipeError(f"{place}: {len(repeated)} files are listed twice ({shown}); list each of them once")
    return dict(found)


def _path_of(base: str, entry: str, place: str) -> tuple[str, str]:
    url = entry if entry.lower().startswith(HTTP) else f"{base}/{entry.removeprefix('/')}"
    shown = one_line(split_query(url)[0])
    if "://" in entry and url != entry:
        raise RecipeError(f"{place}: {one_line(entry)} is not an http:// or https:// URL; leave it out")
    if mistake := user_info_mistake(url):
        raise RecipeError(f"{place}: {mistake}")
    if split_query(url)[1] or "#" in url:
        raise RecipeError(
            f"{place}: {shown} has a query string or a fragment, which may be a signature; make it a source of its own"
        )
    parts = urlsplit(url)
    path = url.removeprefix(f"{base}/") if url.startswith(f"{base}/") else f"{parts.netloc}{parts.path}"
    if not urls.is_below(path) or not path.isprintable() or " " in path:
        raise RecipeError(f"{place}: {shown} cannot be a file's URL; percent-encode it, or leave it out")
    return path, url
