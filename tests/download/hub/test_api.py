"""Errors of the Hub say what to do; the token goes to the endpoint and nowhere else."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from datakit.download.hub.address import parse
from datakit.download.hub.api import endpoint, hub_api
from datakit.errors import DatakitError, NotFoundError, RootError, StorageError
from tests.support.hub_server import faults
from tests.support.hub_server.downloads import download, look
from tests.support.hub_server.fixtures import TOKEN, hub
from tests.support.hub_server.hub import Hub
from tests.support.hub_server.site import Reply, Request, running

__all__ = ["hub"]  # a fixture


def test_unknown_repository_and_revision_are_named(hub: Hub) -> None:
    hub.repository.commit({"a": b"x"})
    with pytest.raises(
        RootError, match=r"the Hub has no dataset lab/none, or it is private; .*set HF_TOKEN .*/settings/tokens"
    ):
        look("hf://datasets/lab/none")
    with pytest.raises(NotFoundError, match=r"dataset lab/words has no revision 'v9'; .*/datasets/lab/words"):
        look(f"{hub.url}@v9")


def test_private_repository_needs_the_token(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.repository.commit({"a": b"x" * 100, "b": b"y"})
    hub.repository.token = TOKEN
    with pytest.raises(RootError, match=r"or it is private; .* set HF_TOKEN to a token of an account with access"):
        look(hub.url)
    monkeypatch.setenv("HF_TOKEN", "hf_ofsomebodyelsewithoutaccess")
    with pytest.raises(RootError, match=r"or it is private; .*the account of the token in HF_TOKEN must have access"):
        look(hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert download(look(hub.url), tmp_path) == {"a": b"x" * 100, "b": b"y"}


def test_gated_repository_names_the_page_and_the_token(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.repository.commit({"a": b"x" * 100})
    hub.repository.gated = True
    page = rf"accept its terms on {hub.hub.address}/datasets/lab/words"
    with pytest.raises(RootError, match=rf"is gated, and no token is set; {page}, and set HF_TOKEN"):
        look(hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    listing = look(hub.url)
    with pytest.raises(RootError, match=rf"is gated, and the token's account has no access; {page}"):
        download(listing, tmp_path)
    hub.repository.accepted.add(TOKEN)
    assert download(listing, tmp_path) == {"a": b"x" * 100}


def test_token_is_in_no_message_and_no_file(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.repository.commit({"a": b"x" * 100, "b": b"y" * 200})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    listing = look(hub.url)
    assert TOKEN not in repr(listing)
    hub.store.faults["store"] = [faults.cut(50), *[faults.status(500)] * 20]
    with pytest.raises(DatakitError) as refused:
        download(listing, tmp_path)
    assert TOKEN not in "".join(traceback.format_exception(refused.value))
    assert [path.name for path in tmp_path.rglob("*.parts")], "the bytes that arrived are kept"
    assert not any(TOKEN.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_store_of_large_files_gets_no_token(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.repository.commit({"a": b"x" * 100})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    download(look(hub.url), tmp_path)
    asked = [entry.request.headers for entry in hub.hub.log if entry.kind in ("info", "tree", "resolve")]
    assert len(asked) == 3 and all(headers["authorization"] == f"Bearer {TOKEN}" for headers in asked)
    assert [entry.request.headers.get("authorization") for entry in hub.store.log] == [None]


def test_host_that_a_listing_names_gets_no_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library sends it to the host in the link to the next page."""
    hub.repository.commit({f"{number}.jsonl": b"x" for number in range(4)})
    hub.routes.page_files = 2
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def other(request: Request) -> Reply | None:
        return Reply(200, b"[]", {"Content-Type": "application/json"}, "tree")

    with running(other) as elsewhere:
        hub.routes.next_host = elsewhere.address
        with pytest.raises(RootError, match=r"whose address 127\.0\.0\.1 is not public; set `private_redirects = true"):
            look(hub.url, private=False)
        assert not elsewhere.log
        with pytest.raises(StorageError, match=r"2 files missing from the tree"):
            look(hub.url)
        assert [entry.request.headers.get("authorization") for entry in elsewhere.log] == [None]


def test_redirects_of_the_api_are_guarded(hub: Hub) -> None:
    hub.repository.commit({"a": b"x"})
    for location, words in (
        ("http://10.1.2.3/api", "10.1.2.3 is not public"),
        ("file:///etc/passwd", "only http:// and https:// are followed|UnsupportedProtocol|cannot be understood"),
        ("http://[::1]/", "is not public"),
    ):
        hub.hub.faults["info"] = [faults.redirected(location)]
        with pytest.raises(DatakitError, match=words):
            look(hub.url, private=False)


def test_compressed_answers_cannot_grow_without_bound(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repository.commit({"a": b"x"})
    monkeypatch.setattr("datakit.download.hub.api.MOST_CODED_BYTES", 100)
    hub.hub.faults["info"] = [faults.gzipped]
    with pytest.raises(StorageError, match=r"has more than 100 bytes \(content coding: gzip\)"):
        look(hub.url)
    monkeypatch.setattr("datakit.download.hub.api.MOST_BYTES", 20)
    with pytest.raises(StorageError, match=r"has more than 20 bytes \(content coding: identity\)"):
        look(hub.url)
    hub.hub.faults["info"] = [faults.with_headers(Content_Encoding="br")]
    with pytest.raises(StorageError, match=r"has more than 0 bytes \(content coding: br\)"):
        look(hub.url)


def test_library_has_its_usual_client_afterwards(hub: Hub) -> None:
    from huggingface_hub.utils import get_session

    with hub_api(False):
        ours = get_session()
    assert ours.is_closed and get_session() is not ours


def test_endpoint_is_the_hub_or_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert endpoint() == "https://mirror.example"
    monkeypatch.delenv("HF_ENDPOINT")
    assert endpoint() == "https://huggingface.co"
    assert parse("hf://datasets/a/b").page(endpoint()) == "https://huggingface.co/datasets/a/b"


def test_offline_mode_of_the_library_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(RootError, match=r"HF_HUB_OFFLINE is set, so the Hub is not asked; unset it"):
        look(hub.url)
