"""Index pages: only what lies below the page is a file of the source."""

from __future__ import annotations

import pytest

from datakit.download.web import pages
from datakit.download.web.pages import files_below, links_below
from datakit.errors import StorageError, UnreadableError

PAGE = "https://host/data/"


def page(*links: str) -> str:
    return "<html>" + "".join(f'<a href="{link}">x</a>' for link in links) + "</html>"


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ("a.gz", "a.gz"), ("./a.gz", "a.gz"), ("/data/a.gz", "a.gz"), ("https://host/data/a.gz", "a.gz"),
        ("b/", "b/"), ("b/c.gz", "b/c.gz"), ("a.gz#top", "a.gz"), ("a%20b.gz", "a%20b.gz"), ("a&amp;b", "a&b"),
        ("%2e%2e/x", "%2e%2e/x"),  # stays a name
        ("../", ""), ("/", ""), ("/other/a.gz", ""), ("https://host/database/a", ""), ("https://other/data/a.gz", ""),
        ("http://host/data/a.gz", ""), ("//evil/data/a", ""), ("?C=M;O=A", ""), ("a.gz?x=1", ""), ("", ""), ("#a", ""),
        ("../data/../../etc/passwd", ""), ("javascript:alert(1)", ""), ("mailto:a@b", ""),
        ("file:///etc/passwd", ""), ("https://[::1/a", ""), ("a\x00b", ""), ("/data/", ""), ("b/../../a", ""),
    ],
)  # fmt: skip
def test_only_links_below_the_page_are_followed(link: str, path: str) -> None:
    assert links_below(PAGE, page(link)) == ([path] if path else [])


def test_folders_are_entered_once() -> None:
    tree = {
        PAGE: page("b/", "a"),
        f"{PAGE}b/": page("c/", "../a", "../", "d", "/data/b/"),
        f"{PAGE}b/c/": page("../c/"),
    }
    asked: list[str] = []

    def read(url: str) -> str:
        asked.append(url)
        return tree[url]

    assert files_below(PAGE, read) == ["a", "b/d"]
    assert sorted(asked) == sorted(tree)


def test_incomplete_page_is_an_error() -> None:
    with pytest.raises(StorageError, match=r"page https://host/data/ is incomplete: it has no </html>; run again"):
        links_below(PAGE, page("a", "b").removesuffix("</html>"))
    assert links_below(PAGE, '<a href="a">no html tag at all') == ["a"]


def test_endless_tree_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_PAGES", 50)
    with pytest.raises(UnreadableError, match=r"more than 50 folders below this page; name a folder below it, or list"):
        files_below(PAGE, lambda url: page("more/"))
