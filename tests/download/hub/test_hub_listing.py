"""A listing of a repository is complete and of one commit, or an error that names what is missing."""

from __future__ import annotations

import pytest

from datakit.download.source_file import SourceFile
from datakit.errors import DatakitError, NoInputError, StorageError
from tests.support.hub_server import faults
from tests.support.hub_server.downloads import VirtualClock, look
from tests.support.hub_server.fixtures import hub
from tests.support.hub_server.hub import Hub
from tests.support.hub_server.repository import StoredFile
from tests.support.hub_server.site import Fault

__all__ = ["hub"]  # a fixture

FILES = {
    "README.md": b"words",
    "data/en/a.jsonl": b'{"text": "large"}\n' * 9,
    "data/en/b.jsonl": b'{"text": "small"}\n',
    "data/fr/c.jsonl": b"",
    ".gitattributes": b"*.parquet filter=lfs",
}


@pytest.fixture
def commit(hub: Hub) -> str:
    hub.routes.page_files = 2
    return hub.repository.commit(FILES)


@pytest.mark.parametrize(
    ("path", "include", "expected"),
    [
        ("", (), ["README.md", "data/en/a.jsonl", "data/en/b.jsonl", "data/fr/c.jsonl"]),
        ("@main/data", (), ["en/a.jsonl", "en/b.jsonl", "fr/c.jsonl"]),
        ("/data/*/*.jsonl", (), ["en/a.jsonl", "en/b.jsonl", "fr/c.jsonl"]),
        ("/data/en/[a]*", (), ["a.jsonl"]),
        ("/data/**/*", ("*b.jsonl",), ["en/b.jsonl"]),
        ("/data/en/b.jsonl", (), ["b.jsonl"]),
        ("/README.md", (), ["README.md"]),
    ],
)
def test_files_of_a_folder_a_pattern_or_one_file(
    hub: Hub, commit: str, path: str, include: tuple[str, ...], expected: list[str]
) -> None:
    found = look(hub.url + path, include=include)
    assert [file.path for file in found.files] == expected
    assert found.base.startswith(f"{hub.url}@{commit}")
    assert found.resolved == {"commit": commit, "repository": hub.url}
    for file in found.files:
        stored = StoredFile(FILES[f"{found.base}/{file.path}".removeprefix(f"{hub.url}@{commit}/")])
        content = f"sha256:{stored.sha256}" if stored.large else f"git-sha1:{stored.blob}"
        assert (file.size, file.checksum, file.content) == (len(stored.content), stored.blob, content)


def test_a_branch_that_moves_between_two_requests_changes_nothing(hub: Hub, commit: str) -> None:
    def move() -> None:
        hub.repository.commit({"data/en/other.jsonl": b"another commit"})

    hub.hub.faults["info"] = [faults.then(move)]
    found = look(f"{hub.url}@main/data")
    assert hub.repository.branches["main"] != commit
    assert found.resolved["commit"] == commit and len(found.files) == 3
    assert all(f"/tree/{commit}" in entry.request.path for entry in hub.hub.log if entry.kind == "tree")
    assert look(f"{hub.url}@main/data").resolved["commit"] == hub.repository.branches["main"]
    assert look(f"{hub.url}@main/data", commit=commit).files == found.files, "a commit that a root remembers"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.without_last_entry, r"its tree lists 4 files .* but its description 5 files .*1 file missing"),
        (faults.other_size, r"1 file with other sizes or hashes \(data/fr/c\.jsonl\)"),
    ],
)
def test_contradiction_names_the_files(hub: Hub, commit: str, fault: Fault, words: str) -> None:
    hub.routes.page_files = 100
    hub.hub.faults["tree"] = [fault]
    with pytest.raises(StorageError, match=words):
        look(hub.url, include=("*.jsonl", "*.md"))


def test_missing_page_is_an_error_that_names_its_files(hub: Hub, commit: str) -> None:
    hub.hub.faults["tree"] = [None, faults.without_next_page]
    with pytest.raises(StorageError, match=r"contradicts itself about .*README\.md|missing from the tree \("):
        look(hub.url)
    hub.routes.hidden = {"data/en/b.jsonl"}
    with pytest.raises(StorageError, match=r"1 file missing from the tree \(data/en/b\.jsonl\); run again later"):
        look(hub.url)
    with pytest.raises(StorageError, match=r"1 file missing from the tree \(data/en/b\.jsonl\)"):
        look(f"{hub.url}/data/en/b.jsonl")


@pytest.mark.parametrize("kind", ["info", "tree"])
@pytest.mark.parametrize(
    "fault",
    [faults.status(500), faults.status(429, "31"), faults.status(503), faults.cut(9), faults.gzipped, faults.chunked],
)
def test_failures_that_pass_are_repeated(hub: Hub, commit: str, kind: str, fault: Fault) -> None:
    clock = VirtualClock()
    hub.hub.faults[kind] = [fault, None, fault]
    assert len(look(hub.url, clock=clock).files) == 4
    if fault not in (faults.gzipped, faults.chunked):
        assert clock.passed >= (31 if hub.hub.log[0].status == 429 else 0.75)


@pytest.mark.parametrize("kind", ["info", "tree"])
def test_failures_that_do_not_pass_end_with_the_reason(hub: Hub, commit: str, kind: str) -> None:
    clock = VirtualClock()
    hub.hub.faults[kind] = [faults.status(503)] * 20
    with pytest.raises(StorageError, match=r"failed 6 times in a row; the last error was: the server answered 503"):
        look(hub.url, clock=clock)
    assert 20 < clock.passed < 60
    hub.hub.faults[kind] = [faults.status(429, "7200")]
    with pytest.raises(StorageError, match=r"the server asks to wait 7,200 s; run again after that time"):
        look(hub.url)


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'{"id": 5}', b'[{"type": "file"}]', b'{"siblings": [{}]}'])
def test_answers_that_are_no_listing_are_named(hub: Hub, commit: str, body: bytes) -> None:
    def replaced(request: object, reply: object) -> object:
        from tests.support.hub_server.site import Reply

        return Reply(200, body, {"Content-Type": "application/json"}, "info")

    for kind in ("info", "tree"):
        hub.hub.faults[kind] = [replaced]  # type: ignore[list-item]
        with pytest.raises(DatakitError, match=r"the Hub|contradicts"):
            look(hub.url)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a//b", "./a"])
def test_names_that_are_no_paths_are_refused(hub: Hub, name: str) -> None:
    hub.repository.commit({name: b"x"})
    with pytest.raises(StorageError, match="which no file in dataset lab/words can be named"):
        look(hub.url)


def test_empty_places_are_named(hub: Hub, commit: str) -> None:
    with pytest.raises(NoInputError, match=r"absent: no files; .*/absent is empty or does not exist; check the URL"):
        look(f"{hub.url}/absent")
    with pytest.raises(NoInputError, match=r"no files; .*data contains 3 \.jsonl, e\.g\. en/a\.jsonl"):
        look(f"{hub.url}/data/*.parquet")


def test_checksum_is_the_git_blob_whatever_verifies_the_content(hub: Hub, commit: str) -> None:
    """The digest of a listing does not change, so steps of earlier versions stay current."""
    small, large = StoredFile(b"small"), StoredFile(b"large" * 99)
    hub.repository.commit({"small": b"small", "large": b"large" * 99})
    assert look(hub.url).files == [
        SourceFile("large", 495, large.blob),
        SourceFile("small", 5, small.blob),
    ]
