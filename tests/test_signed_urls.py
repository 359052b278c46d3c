"""Presigned HTTP URLs are sources whose identity does not depend on the signature; passwords in URLs are refused."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import datakit
from datakit import signed_urls
from datakit.download.listing import listing_digest, source_base
from datakit.errors import DatakitError, NotFoundError, RecipeError, RootError, StorageError
from datakit.pipeline import running
from datakit.recipe import parse_recipe
from datakit.storage import urls
from tests.support.commands import run_command
from tests.support.faults.signed_server import SignedServer, signed_server
from tests.support.normalize.sources import list_source, write_lines
from tests.support.trees import tree


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SignedServer]:
    write_lines(tmp_path / "served/a.jsonl", *({"text": f"document {number}"} for number in range(20)))
    with signed_server(tmp_path / "served") as running:
        yield running


def run(url: str, root: Path) -> datakit.RunResult:
    """Run a recipe of one source up to normalize."""
    document = {"name": "shelf", "sources": [{"name": "web", "url": url}]}
    return running.run(parse_recipe(document, "recipe", root), str(root), until="normalize", workers=1)


@pytest.mark.parametrize("checksums", [True, False])
def test_new_signature_finds_the_source_done(server: SignedServer, tmp_path: Path, checksums: bool) -> None:
    server.checksums = checksums
    first = run(server.sign("a.jsonl", "11aa"), tmp_path / "root")
    before = tree(str(tmp_path / "root"))
    server.accepted.clear()
    second = run(server.sign("a.jsonl", "22bb"), tmp_path / "root")
    assert second.reused and tree(str(tmp_path / "root")) == before
    assert [step.directory for step in first.steps] == [step.directory for step in second.steps]
    assert first.steps[1].manifest.totals.rows == 20
    copy = next((tmp_path / "root").rglob("raw/a.jsonl"))
    assert copy.read_bytes() == (tmp_path / "served/a.jsonl").read_bytes()


def test_identity_contains_no_query_string(server: SignedServer) -> None:
    one, other = (server.sign("a.jsonl", signature) for signature in ("11aa", "22bb"))
    assert listing_digest(list_source(one, (), ())) == listing_digest(list_source(other, (), ()))
    assert source_base(one) == f"{server.address}/bucket"


def test_unfinished_download_continues_with_a_new_signature(server: SignedServer, tmp_path: Path) -> None:
    """The ledger's entries do not depend on the signature."""
    run(server.sign("a.jsonl", "11aa"), tmp_path / "root")
    (manifest,) = (tmp_path / "root/sources/web").glob("download-*/manifest.json")
    manifest.unlink()
    served = server.served
    run(server.sign("a.jsonl", "22bb"), tmp_path / "root")
    assert server.served - served == 1, "only the listing"


def test_expired_signature_is_named(server: SignedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datakit.download.web.patience.FIRST_WAIT", 0.001)
    url = server.sign("a.jsonl", "11aa")
    server.accepted.clear()
    with pytest.raises(
        RootError, match=r"access to .*/bucket/a\.jsonl\?\[redacted\] was denied.*newly signed URL"
    ) as one:
        list_source(url, (), ())
    assert "11aa" not in "".join(traceback.format_exception(one.value)), "nor does the cause show it"
    missing = server.sign("b.jsonl", "11aa")
    (server.folder / "b.jsonl").mkdir()
    with pytest.raises(StorageError) as other:
        list_source(missing, (), ())
    assert not isinstance(other.value, NotFoundError), "a server that fails does not prove that a file is missing"


def test_inspect_reads_signed_urls(server: SignedServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "inspect", server.sign("a.jsonl", "11aa"), "--draft")
    assert code == 0, err
    assert 'name = "a"' in out and f'url = "{server.address}/bucket/a.jsonl?[redacted]"' in out
    assert "11aa" not in out + err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"url": "https://user:word@host/a.jsonl"},
            r"source 'web': https://\[redacted\]@host/a\.jsonl contains a user",
        ),
        ({"url": "s3://key@bucket/a"}, "contains a user name or a password; remove them"),
        ({"url": "https://host/a.jsonl?[redacted]"}, "was copied from a message"),
        ({"url": "https://host/a.jsonl?s=1", "revision": "1"}, "cannot have a revision: its content identifies it"),
    ],
)
def test_unusable_urls_are_refused(source: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_recipe({"name": "shelf", "sources": [{"name": "web", **source}]}, "recipe", tmp_path)


def test_passwords_are_refused_in_every_url(tmp_path: Path) -> None:
    url = "s3://key:word@bucket/root"
    for action in (urls.absolute, urls.read_bytes, urls.exists, urls.listing, datakit.open_cache, list_source):
        with pytest.raises(DatakitError, match="contains a user name or a password") as refused:
            action(url, (), ()) if action is list_source else action(url)  # type: ignore[operator]
        assert "word@" not in str(refused.value)
    with pytest.raises(RootError, match="contains a user name"):
        datakit.run("demo", root=url)


def test_signed_urls_on_command_lines_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    setting = "sources.web.url='https://host/a.jsonl?s=0a1b'"
    code, _, err = run_command(capsys, "run", "demo", "--set", setting)
    assert (code, "everyone on this machine can read command lines" in err) == (2, True)
    assert "0a1b" not in err


def test_only_http_urls_have_query_strings() -> None:
    assert signed_urls.split_query("s3://bucket/part-?.jsonl") == ("s3://bucket/part-?.jsonl", "")
    assert signed_urls.split_query("/data/a?b") == ("/data/a?b", "")
