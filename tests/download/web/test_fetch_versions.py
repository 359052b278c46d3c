"""Files of web servers: a file that changes is refused, whatever the server states about its version."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.download.web import partial_file
from datakit.errors import ChangedInputError, CorruptError, StorageError
from tests.support.hub_server import faults
from tests.support.hub_server.downloads import download, look, refused
from tests.support.hub_server.folder_routes import WebServer
from tests.support.hub_server.site import Reply, Request, Site

CONTENT = random.Random(7).randbytes(1000)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_file, "PART_BYTES", 100)


def answering(site: Site, act: Callable[[], object], after: int) -> None:
    """Do something after the answer with this number."""
    site.faults["file"] = [None] * after + [faults.then(act)]


@pytest.fixture
def bin_web(web: WebServer) -> WebServer:
    web.routes.files["a.bin"] = CONTENT
    return web


@pytest.mark.parametrize("after", [0, 3, 9, 10])
def test_file_of_a_web_server_that_is_replaced_is_refused(bin_web: WebServer, tmp_path: Path, after: int) -> None:
    """There is never a mix of two versions: neither if it is replaced between ranges nor after the last of them."""
    found = look(f"{bin_web.url}/a.bin")

    def replace() -> None:
        bin_web.routes.files["a.bin"] = CONTENT[::-1]

    if after < 10:
        answering(bin_web.site, replace, after)
    else:
        replace()
    refused(found, tmp_path, ChangedInputError, r"it has changed since it was listed \(etag \"\w+\", now \"\w+\"\)")


def test_web_server_that_forgets_the_version_is_refused(bin_web: WebServer, tmp_path: Path) -> None:
    found = look(f"{bin_web.url}/a.bin")
    bin_web.routes.etags = False
    refused(found, tmp_path, ChangedInputError, r"and now the server states none")


@pytest.mark.parametrize("times", [True, False])
@pytest.mark.parametrize("ranges", [True, False])
def test_web_server_without_etags_is_verified_by_content(
    bin_web: WebServer, tmp_path: Path, times: bool, ranges: bool
) -> None:
    bin_web.routes.etags, bin_web.routes.times, bin_web.routes.ranges = False, times, ranges
    found = look(f"{bin_web.url}/a.bin")
    assert found.files[0].content.startswith("xxh3-128:")
    assert download(found, tmp_path / "first") == {"a.bin": CONTENT}
    bin_web.routes.files["a.bin"] = CONTENT[::-1]
    refused(found, tmp_path / "second", CorruptError, "the content that arrived has the hash xxh3-128")


def test_weak_etag_proves_nothing(bin_web: WebServer, tmp_path: Path) -> None:
    """Two contents may share it, so parts of both could become one file."""
    bin_web.routes.weak_etag = 'W/"same"'
    found = look(f"{bin_web.url}/a.bin")
    assert (found.files[0].etag, found.files[0].content[:9]) == ("", "xxh3-128:")
    assert download(found, tmp_path / "first") == {"a.bin": CONTENT}
    bin_web.routes.files["a.bin"] = CONTENT[::-1]
    assert look(f"{bin_web.url}/a.bin").files[0].checksum != found.files[0].checksum
    refused(found, tmp_path / "second", CorruptError, "the content that arrived has the hash xxh3-128")


def test_resumed_web_download_sends_the_missing_bytes_only(bin_web: WebServer, tmp_path: Path) -> None:
    found = look(f"{bin_web.url}/a.bin")
    bin_web.site.log.clear()
    bin_web.site.faults["file"] = [faults.cut(50), *[faults.status(500)] * 100]
    refused(found, tmp_path, StorageError, "failed 6 times in a row")
    bin_web.site.faults.clear()
    assert download(found, tmp_path) == {"a.bin": CONTENT}
    content = [entry for entry in bin_web.site.log if entry.status == 206]
    assert sum(entry.sent for entry in content) == 1000 + 1, "the last byte is the question whether it has changed"


def test_reply_that_is_too_long_is_refused(bin_web: WebServer, tmp_path: Path) -> None:
    found = look(f"{bin_web.url}/a.bin")

    def longer(request: Request, reply: Reply) -> Reply:
        return Reply(206, reply.body + b"more", dict(reply.headers), reply.kind)

    bin_web.site.faults["file"] = [longer] * 20
    refused(found, tmp_path, ChangedInputError, r"the server sent more than the 100 bytes that were requested")
