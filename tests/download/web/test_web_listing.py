"""Files on web servers are listed with what identifies them: single files, index pages, and lists."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from xxhash import xxh3_64_hexdigest, xxh3_128_hexdigest

from datakit.download.listing import listing_digest
from datakit.download.web import web_listing
from datakit.errors import ChangedInputError, DatakitError, NoInputError, RefusedInputsError, RootError, UnreadableError
from tests.support.hub_server import faults
from tests.support.hub_server.downloads import VirtualClock, download, look
from tests.support.hub_server.folder_routes import WebServer, web_server

FILES = {"a.jsonl": b"one", "b/c.jsonl.gz": b"three", "b/d.txt": b"four", ".hidden": b"no", "empty.txt": b""}


@pytest.fixture
def shelf(web: WebServer) -> WebServer:
    web.routes.files.update(FILES)
    return web


@pytest.mark.parametrize(
    ("path", "include", "expected"),
    [
        ("", (), ["a.jsonl", "b/c.jsonl.gz", "b/d.txt", "empty.txt"]),
        ("/", ("*.txt",), ["b/d.txt", "empty.txt"]),
        ("/b", (), ["c.jsonl.gz", "d.txt"]),
        ("/b/", (), ["c.jsonl.gz", "d.txt"]),
        ("/*.jsonl", (), ["a.jsonl"]),
        ("/**/*.txt", (), ["b/d.txt", "empty.txt"]),
        ("/b/[c]*", (), ["c.jsonl.gz"]),
        ("/a.jsonl", (), ["a.jsonl"]),
    ],
)
def test_page_pattern_and_file(
    shelf: WebServer, tmp_path: Path, path: str, include: tuple[str, ...], expected: list[str]
) -> None:
    found = look(shelf.url + path, include=include)
    assert [file.path for file in found.files] == expected
    folder = f"{found.base.removeprefix(shelf.url)}/".removeprefix("/")
    for file in found.files:
        content = FILES[folder + file.path]
        etag = f'"{xxh3_64_hexdigest(content)}"'
        assert (file.size, file.etag, file.checksum) == (len(content), etag, etag.strip('"'))
        assert file.version == f"etag {etag}"
    assert download(found, tmp_path) == {path: FILES[folder + path] for path in expected}


def test_last_change_is_recorded_where_there_is_no_etag(shelf: WebServer) -> None:
    shelf.routes.etags, shelf.routes.times = False, True
    (file,) = look(f"{shelf.url}/a.jsonl").files
    assert file.version == "last-modified Wed, 01 Jul 2026 10:00:00 GMT"
    assert file.checksum == xxh3_128_hexdigest(b"one")


def test_list_in_the_recipe_and_in_a_file(shelf: WebServer, tmp_path: Path) -> None:
    with web_server({"z.txt": b"elsewhere"}) as other:
        entries = ["b/d.txt", f"{shelf.url}/a.jsonl", f"{other.url}/z.txt"]
        found = look(shelf.url, files=entries)
        host = other.site.address.removeprefix("http://")
        expected = {"b/d.txt": b"four", "a.jsonl": b"one", f"{host}/data/z.txt": b"elsewhere"}
        assert download(found, tmp_path / "one") == expected
        text = tmp_path / "files.txt.gz"
        text.write_bytes(gzip.compress("\n".join(["# files", *entries]).encode()))
        assert look(shelf.url, files=str(text)) == found
        shelf.routes.files["lists/files.txt"] = "\n".join(entries).encode()
        assert look(shelf.url, files=f"{shelf.url}/lists/files.txt") == found
        assert [file.path for file in look(shelf.url, files=entries, include=("*.jsonl",)).files] == ["a.jsonl"]


def test_list_on_another_host_needs_no_permission_of_the_server(shelf: WebServer) -> None:
    """A list may come from a stranger, so its URLs are checked like redirects: private hosts are refused."""
    with web_server({"z.txt": b"elsewhere"}) as other, pytest.raises(RootError, match="is not public"):
        look(shelf.url, files=[f"{other.url}/z.txt"], private=False)


def test_every_unusable_file_of_a_list_is_named(shelf: WebServer) -> None:
    with pytest.raises(
        RefusedInputsError, match=r"(?s)2 inputs cannot be used:.*x\.txt does not exist.*y\.txt does not"
    ):
        look(shelf.url, files=["x.txt", "a.jsonl", "y.txt"])


def test_compressed_bodies_are_refused_since_nothing_describes_them(shelf: WebServer) -> None:
    shelf.site.faults["file"] = [None, faults.gzipped, faults.gzipped, faults.gzipped]
    with pytest.raises(UnreadableError, match=r"a\.jsonl: the server sends this file only with Content-Encoding: gzip"):
        look(f"{shelf.url}/a.jsonl")


def test_unknown_size_is_refused(shelf: WebServer) -> None:
    shelf.routes.ranges = False
    shelf.site.faults["file"] = [None, faults.chunked]
    with pytest.raises(UnreadableError, match="does not state the file's size"):
        look(f"{shelf.url}/a.jsonl")


@pytest.mark.parametrize("kind", ["page", "file"])
def test_failures_that_pass_are_repeated(shelf: WebServer, kind: str) -> None:
    expected = listing_digest(look(shelf.url).files)
    clock = VirtualClock()
    shelf.site.faults[kind] = [faults.status(503), faults.cut(1), None, faults.status(429, "40")]
    assert listing_digest(look(shelf.url, clock=clock).files) == expected
    assert clock.passed > 40


def test_page_that_is_cut_off_is_an_error(shelf: WebServer) -> None:
    shelf.site.faults["page"] = [None, faults.shorter]
    with pytest.raises(DatakitError, match=r"the index page .* is incomplete: it has no </html>"):
        look(f"{shelf.url}/")
        look(f"{shelf.url}/")


def test_what_is_no_page_is_named(shelf: WebServer) -> None:
    with pytest.raises(DatakitError, match=r"absent/ does not exist \(the server answered 404\); check the URL"):
        look(f"{shelf.url}/absent/")
    with pytest.raises(UnreadableError, match=r"folder/ is not an index page: it has the type application/"):
        shelf.routes.files["folder/"] = b"bytes"
        look(f"{shelf.url}/folder/*.txt")
    del shelf.routes.files["folder/"]
    with pytest.raises(NoInputError, match=r"no files; .* contains 2 \.txt, 1 \.jsonl, 1 \.gz"):
        look(f"{shelf.url}/*.parquet")


def test_endless_page_is_refused(shelf: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_listing, "MOST_PAGE_BYTES", 200)
    with pytest.raises(UnreadableError, match=r"data/ has more than 200 bytes; list files with `files`"):
        look(f"{shelf.url}/")


def test_page_is_not_taken_for_a_file(shelf: WebServer) -> None:
    """The first answer, which decides between a page and a file, was wrong."""
    shelf.site.faults["redirect"] = [faults.status(200)]
    with pytest.raises(UnreadableError, match=r"data shows an index page, not a file; .* end the URL with a slash"):
        look(shelf.url)
    with pytest.raises(UnreadableError, match="shows an index page"):
        look(shelf.url, files=["a.jsonl", "b"])


def test_links_elsewhere_are_not_followed(shelf: WebServer) -> None:
    with web_server({"x": b"y"}) as other:
        shelf.routes.links = [f"{other.url}/x", "/etc/passwd", "../../up", "file:///etc/passwd", "//evil/x"]
        assert len(look(shelf.url).files) == 4
        assert not other.site.log


def test_redirect_of_a_page_to_another_host_is_refused(shelf: WebServer) -> None:
    with web_server(FILES) as other:
        shelf.site.faults["page"] = [None, faults.redirected(f"{other.url}/")]
        with pytest.raises(UnreadableError, match="is not an index page: it was found at"):
            look(shelf.url)
            look(shelf.url)


def test_change_while_a_file_is_hashed_is_an_error(shelf: WebServer) -> None:
    shelf.routes.etags = False
    shelf.routes.files["a.jsonl"] = b"x" * 100

    def grow() -> None:
        shelf.routes.files["a.jsonl"] = b"x" * 200

    shelf.site.faults["file"] = [None, faults.then(grow)]
    with pytest.raises(ChangedInputError, match="it is longer than the 100 bytes that the server stated"):
        look(f"{shelf.url}/a.jsonl")
