"""Lists the files of an index page: those to which the page, or the page of a folder below it, has a link.

Web servers have no common form of listing, but most show a page with a link to every entry of a folder. Only links to
places below the page are followed: neither those to other folders or hosts, nor those with a query string, by which a
page offers to sort itself. A name stays as it is written in the link, with its percent-encoding, so it cannot become
`..` or a slash later.

Nothing states how many files there should be. A page that lacks its last tag, or whose connection breaks, is an error;
a page that a server has left incomplete cannot be recognized.
Cost: one request per folder. At most MOST_PAGES pages of at most MOST_PAGE_BYTES each are read.
"""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

from datakit.errors import StorageError, UnreadableError
from datakit.signed_urls import without_query
from datakit.storage import urls

MOST_PAGES = 10_000
MOST_PAGE_BYTES = 32 << 20
HTML = ("text/html", "application/xhtml+xml")
ReadPage = Callable[[str], str]  # a page's URL -> its text


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.opened = self.closed = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened |= tag == "html"
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]

    def handle_endtag(self, tag: str) -> None:
        self.closed |= tag == "html"


def links_below(page: str, text: str) -> list[str]:
    """Return the paths, relative to the page's URL, of the files and folders to which the page has links, sorted; those
    of folders end with a slash. page: the URL, which ends with a slash. Raises StorageError for an incomplete page.

    >>> links_below("https://host/a/", '<a href="x"><a href="/a/b/"><a href="../c"><a href="?C=N"><a href="b/../d">')
    ['b/', 'd', 'x']
    """
    parser = _Links()
    parser.feed(text)
    parser.close()
    if parser.opened and not parser.closed:
        raise StorageError(f"the index page {page} is incomplete: it has no </html>; run again")
    paths = (_below(page, link) for link in parser.found)
    return sorted({path for path in paths if path})


def _below(page: str, link: str) -> str:
    try:
        url = urldefrag(urljoin(page, link.strip())).url
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.query or url.endswith("?") or not url.startswith(page):
        return ""
    path = url.removeprefix(page)
    return path if urls.is_below(path.removesuffix("/")) and path.isprintable() else ""


def files_below(page: str, read: ReadPage) -> list[str]:
    """Return the paths of all files below an index page, relative to its URL, sorted. Raises UnreadableError if there
    are too many pages.
    """
    files, folders, seen = set[str](), [""], {""}
    while folders:
        folder = folders.pop()
        for path in links_below(page + folder, read(page + folder)):
            if not path.endswith("/"):
                files.add(folder + path)
            elif folder + path not in seen:
                seen.add(folder + path)
                folders.append(folder + path)
        if len(seen) > MOST_PAGES:
            raise UnreadableError(
                f"{without_query(page)}: there are more than {MOST_PAGES:,} folders below this page; name a folder "
                "below it, or list the files with `files`"
            )
    return sorted(files)
