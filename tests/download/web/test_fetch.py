"""A download ends complete and verified, or with an error that says why; only missing bytes are requested again."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from datakit.download.listing import Listing
from datakit.download.web import fetch, partial_file, patience
from datakit.download.web.patience import REAL
from datakit.errors import ChangedInputError, CorruptError, DatakitError, NotFoundError, RootError, StorageError
from tests.support.hub_server import faults
from tests.support.hub_server.downloads import VirtualClock, download, look, refused
from tests.support.hub_server.fixtures import hub
from tests.support.hub_server.hub import Hub
from tests.support.hub_server.site import Fault

__all__ = ["hub"]  # a fixture
CONTENT = random.Random(7).randbytes(1000)
PART = 100


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_file, "PART_BYTES", PART)


@pytest.fixture
def listing(hub: Hub) -> Listing:
    hub.repository.commit({"a.bin": CONTENT})
    return look(hub.url)


def kept(folder: Path) -> int:
    """The number of bytes that an unfinished download has kept."""
    (counts,) = (folder / "exchange/partial").glob("*.parts")
    stored = counts.read_bytes()[-8 * 10 :]
    return sum(int.from_bytes(stored[at : at + 8], "little") for at in range(0, 80, 8))


def test_parts_are_requested_once_each(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    progress: list[int] = []
    assert download(listing, tmp_path, progress=progress.append) == {"a.bin": CONTENT}
    ranges = sorted(entry.request.headers["range"] for entry in hub.store.log)
    assert ranges == sorted(f"bytes={start}-{start + PART - 1}" for start in range(0, 1000, PART))
    assert hub.store.sent("store") == 1000 and progress[-1] == 1000 and progress == sorted(progress)
    assert hub.hub.count("resolve") <= 4, "each connection follows the redirect at most once"
    assert not list((tmp_path / "exchange/partial").iterdir())


@pytest.mark.parametrize(
    "fault",
    [faults.status(500), faults.status(503, "20"), faults.status(429, "20"), faults.cut(0), faults.cut(37)],
)
def test_failures_of_the_store_are_repeated(hub: Hub, listing: Listing, tmp_path: Path, fault: Fault) -> None:
    clock = VirtualClock()
    hub.store.faults["store"] = [fault, None, fault, fault]
    assert download(listing, tmp_path, clock=clock) == {"a.bin": CONTENT}
    assert clock.waits
    assert hub.store.sent("store") - sum(entry.sent for entry in hub.store.log if entry.status > 299) == 1000


@pytest.mark.parametrize("fault", [faults.status(502), faults.status(429, "3"), faults.cut(1)])
def test_failures_of_the_hub_are_repeated(hub: Hub, tmp_path: Path, fault: Fault) -> None:
    hub.repository.commit({"a.bin": CONTENT, "small.bin": b"0123456789"})
    hub.hub.faults["resolve"] = [fault, None, fault, fault, None, fault]
    assert download(look(hub.url), tmp_path) == {"a.bin": CONTENT, "small.bin": b"0123456789"}


def test_later_run_requests_only_what_is_missing(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    hub.store.faults["store"] = [None, faults.cut(30), None, faults.cut(61), *[faults.status(500)] * 100]
    refused(listing, tmp_path, StorageError, r"failed 6 times in a row; the last error was: the server answered 500")
    arrived = kept(tmp_path)
    assert arrived >= 30 and hub.store.sent("store") >= arrived
    hub.store.faults.clear()
    hub.store.log.clear()
    assert download(listing, tmp_path) == {"a.bin": CONTENT}
    assert hub.store.sent("store") == 1000 - arrived


def test_killed_download_continues_at_the_byte_that_it_had_reached(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    hub.store.faults["store"] = [None] * 3 + [faults.cut(40)] * 50

    def kill(_: float) -> None:
        os.kill(os.getpid(), signal.SIGKILL)  # at the first wait, after the first cut

    child = os.fork()
    if child == 0:
        clock = VirtualClock()
        clock.sleep = kill  # type: ignore[method-assign]
        download(listing, tmp_path, clock=clock)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    arrived = kept(tmp_path)
    assert arrived >= 40
    hub.store.settle()
    hub.store.faults.clear()
    hub.store.log.clear()
    assert download(listing, tmp_path) == {"a.bin": CONTENT}
    assert hub.store.sent("store") == 1000 - arrived


def test_connection_that_breaks_again_and_again_gets_there_if_it_brings_enough(
    hub: Hub, listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_file, "PART_BYTES", 10_000)
    hub.store.faults["store"] = [faults.cut(30)] * 100
    refused(listing, tmp_path, StorageError, "failed 6 times in a row")
    monkeypatch.setattr(fetch, "ENOUGH", 30)
    hub.store.faults["store"] = [faults.cut(30)] * 20
    assert download(listing, tmp_path) == {"a.bin": CONTENT}
    assert hub.store.sent("store") == 1000


def test_expired_signature_is_renewed(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    def expire() -> None:
        hub.store_routes.expired.update(f"{number:x}" for number in range(hub.routes.signatures + 1))

    hub.store.faults["store"] = [None, None, faults.then(expire)]
    assert download(listing, tmp_path) == {"a.bin": CONTENT}
    assert any(entry.status == 403 for entry in hub.store.log)


@pytest.mark.parametrize("fault", [faults.gzipped, faults.chunked, faults.whole(CONTENT)])
def test_unusual_answers_are_understood(hub: Hub, listing: Listing, tmp_path: Path, fault: Fault) -> None:
    hub.store.faults["store"] = [fault] * 12
    assert download(listing, tmp_path) == {"a.bin": CONTENT}


def test_store_without_ranges_starts_again_after_a_break(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    hub.store_routes.refuses_ranges = True
    hub.store.faults["store"] = [None] * 4 + [faults.cut(999), faults.cut(10)]
    assert download(listing, tmp_path) == {"a.bin": CONTENT}
    hub.store.faults["store"] = [faults.cut(900)] * 100
    refused(listing, tmp_path / "other", StorageError, r"failed 6 times in a row; the last error was: RemoteProtocol")


def test_one_damaged_transfer_is_repeated_as_a_whole(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    hub.store.faults["store"] = [None, None, faults.damaged]
    assert download(listing, tmp_path) == {"a.bin": CONTENT}
    assert hub.store.sent("store") == 2000


def test_damaged_content_is_an_error(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    hub.store.faults["store"] = [faults.damaged] * 100
    refused(listing, tmp_path, CorruptError, r"the content that arrived has the hash sha256:.*was listed, twice")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.with_headers(X_Repo_Commit="0" * 40), r"the Hub now states another commit \(0{40}\) than when it was"),
        (faults.with_headers(X_Linked_Size="1001"), r"another size \(1001\) than when it was listed \(1000\)"),
        (faults.with_headers(X_Linked_ETag='"' + "0" * 64 + '"'), r"another hash \(0{64}\) than when it was listed"),
    ],
)
def test_hub_that_states_something_else_is_an_error(
    hub: Hub, listing: Listing, tmp_path: Path, fault: Fault, words: str
) -> None:
    hub.hub.faults["resolve"] = [fault] * 10
    refused(listing, tmp_path, ChangedInputError, words)


def test_wrong_sizes_are_errors(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    hub.store.faults["store"] = [faults.with_headers(Content_Range="bytes 0-99/1001")] * 20
    refused(listing, tmp_path, DatakitError, r"the server has 1001 bytes, but 1000 were listed|from 0 on")
    hub.store.faults["store"] = [faults.shorter] * 200
    refused(listing, tmp_path / "b", StorageError, r"failed 6 times in a row; .*: the connection closed")
    hub.store.faults["store"] = [faults.status(416)] * 20
    refused(listing, tmp_path / "c", DatakitError, r"a\.bin")


def test_file_that_is_gone_is_named(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    hub.repository.commits.clear()
    refused(listing, tmp_path, DatakitError, r"has no revision|was listed but no longer exists")
    hub.repository.commit({"b.bin": b"x"})
    hub.repository.commits[listing.resolved["commit"]] = {}
    refused(listing, tmp_path, NotFoundError, r"a\.bin was listed but no longer exists; run again to list the source")


def test_slow_trickle_is_an_error(hub: Hub, listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr(patience, "ATTEMPTS", 2)
    hub.store.faults["store"] = [faults.slow(0.03, 1)] * 100
    with (
        monkeypatch.context() as patched,
        pytest.raises(StorageError, match=r"failed 2 times in a row; .*the server sent only \d+ bytes in 0 s"),
    ):
        clock = VirtualClock()
        patched.setattr(clock, "clock", lambda: patience.Clock(clock.sleep, REAL.now))
        download(listing, tmp_path, clock=clock)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://169.254.169.254/latest", r"whose address 169\.254\.169\.254 is not public; set `private_redirects"),
        ("http://localhost:1/a", "is not public"),
        ("file:///etc/passwd", "only http:// and https:// are followed|names no host"),
    ],
)
def test_redirects_to_private_places_are_refused(
    hub: Hub, listing: Listing, tmp_path: Path, location: str, words: str
) -> None:
    hub.hub.faults["resolve"] = [faults.redirected(location)] * 10
    refused(listing, tmp_path, RootError, words, private=False)


def test_redirects_without_end_are_an_error(hub: Hub, listing: Listing, tmp_path: Path) -> None:
    hub.hub.faults["resolve"] = [faults.redirected(f"{hub.hub.address}/datasets/lab/words/resolve/main/a.bin")] * 100
    refused(listing, tmp_path, StorageError, "redirected more than 10 times")


def test_empty_file(hub: Hub, tmp_path: Path) -> None:
    hub.repository.commit({"a.bin": b"", "b.bin": b"x"})
    found = look(hub.url)
    assert download(found, tmp_path) == {"a.bin": b"", "b.bin": b"x"}
