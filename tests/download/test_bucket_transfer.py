"""Transfers from buckets: an object arrives complete, verified and as listed, or not at all, and no byte twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from xxhash import xxh3_128_hexdigest as xxh3

from datakit.download import bucket_transfer, transfer
from datakit.download.bucket_transfer import BucketFile
from datakit.errors import ChangedInputError, CorruptError, NotFoundError, RootError, StorageError
from datakit.storage import urls
from datakit.storage.atomic import Committed
from datakit.storage.buckets.listing import describe
from datakit.store_access import USUAL
from tests.support.buckets import orders
from tests.support.buckets.orders import reads
from tests.support.buckets.proxy import Change
from tests.support.buckets.stores import KINDS, Store, bucket_store
from tests.support.paths import REPOSITORY

BIG = random.Random(1).randbytes(20_000_003)  # two parts of a partial file
OBJECTS = {"empty": b"", "small": b"0123456789", "big": BIG}
IN_FLIGHT = 3 << 20  # more than a broken connection can lose on the way: 2 MiB, and what the sockets hold


@pytest.fixture(scope="module", params=KINDS)
def filled_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A bucket with an empty object, a small and a large one."""
    with bucket_store(request.param) as store:
        store.put_all(OBJECTS)
        yield store


@pytest.fixture
def store(filled_store: Store) -> Iterator[Store]:
    """The bucket; its proxy has seen no request yet. Pauses take no time."""
    filled_store.proxy.reset()
    with patch.object(transfer.time, "sleep"):
        yield filled_store


def listed(store: Store, path: str) -> BucketFile:
    """The object as it is now."""
    found = describe(f"{store.url}/{path}")
    assert found is not None and found.checksum is not None
    store.proxy.seen.clear()
    return BucketFile(found.url, found.size, found.checksum, USUAL)


def fetch(file: BucketFile, folder: Path) -> Committed:
    return bucket_transfer.fetch(file, str(folder / "out/copy"), folder / "partial", lambda done: None)


def assert_nothing_is_left(folder: Path, copies: int) -> None:
    assert [*(folder / "partial").iterdir()] == []
    assert len([*(folder / "out").glob("*")]) == copies


@pytest.mark.parametrize("path", OBJECTS)
def test_an_object_is_read_by_one_request(store: Store, tmp_path: Path, path: str) -> None:
    done, content = list[int](), OBJECTS[path]
    file = listed(store, path)
    copy = bucket_transfer.fetch(file, str(tmp_path / "out/copy"), tmp_path / "partial", done.append)
    assert (copy.bytes, copy.xxh3) == (len(content), xxh3(content))
    assert (tmp_path / "out/copy").read_bytes() == content
    assert done == sorted(done) and done[-1] == len(content)
    assert [seen.kind for seen in store.proxy.seen] == ["read", "describe"][: 1 + (store.kind == "gs")]
    assert_nothing_is_left(tmp_path, 1)


@pytest.mark.parametrize("cuts", [(1,), (5_000_000, 9_000_000, 300_000), (16 << 20,)])
def test_only_missing_bytes_are_requested_after_breaks(store: Store, tmp_path: Path, cuts: tuple[int, ...]) -> None:
    file = listed(store, "big")
    for cut in cuts:
        store.proxy.order(reads("big"), orders.cut_after(cut))
    assert fetch(file, tmp_path).xxh3 == xxh3(BIG)
    requests, sent = store.proxy.of("read"), 0
    for seen in requests:
        assert seen.first <= sent, "no byte was left out"
        assert sent - seen.first < IN_FLIGHT, "only what was lost on the way was requested again"
        sent = seen.first + seen.sent
    assert len(requests) == len(cuts) + 1
    assert sent == len(BIG)
    assert (tmp_path / "out/copy").read_bytes() == BIG


@pytest.mark.parametrize("seed", range(5))
def test_random_faults_lose_nothing(store: Store, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    file, faults = listed(store, "big"), list[Change]()
    for _ in range(4):
        cut = dice.randrange(len(BIG) // 4)
        faults.append(
            dice.choice([orders.refused(503), orders.cut_after(cut), orders.stating_length(dice.randrange(9))])
        )
    for fault in faults:
        store.proxy.order(reads("big"), fault)
    assert fetch(file, tmp_path).xxh3 == xxh3(BIG)
    assert (tmp_path / "out/copy").read_bytes() == BIG
    assert sum(seen.sent for seen in store.proxy.of("read") if seen.status in (200, 206)) < len(BIG) + 5 * IN_FLIGHT


@pytest.mark.parametrize("wrong", [-3, 3])
def test_a_wrong_length_is_not_believed(store: Store, tmp_path: Path, wrong: int) -> None:
    file = listed(store, "small")
    store.proxy.order(reads("small"), orders.stating_length(wrong))
    assert fetch(file, tmp_path).xxh3 == xxh3(b"0123456789")
    store.proxy.order(reads("small"), orders.stating_length(wrong), times=1000)
    with pytest.raises(StorageError, match=r"small failed 6 times in a row; the last error was: .*; run again"):
        fetch(file, tmp_path / "another")


def test_a_store_without_ranges_sends_the_object_again(store: Store, tmp_path: Path) -> None:
    file = listed(store, "big")
    whole = list[orders.Answer]()
    store.proxy.order(reads("big"), lambda answer: whole.append(answer) or orders.cut_after(3_000_000)(answer))
    store.proxy.order(reads("big"), lambda answer: whole[0])
    assert fetch(file, tmp_path).xxh3 == xxh3(BIG)
    assert [seen.first > 0 for seen in store.proxy.of("read")] == [False, True]


def test_stalled_transfer_gives_up_and_keeps_what_has_arrived(store: Store, tmp_path: Path) -> None:
    file = listed(store, "big")
    store.proxy.order(reads("big"), orders.cut_after(9_000_000))
    store.proxy.order(reads("big"), orders.cut_after(0), times=1000)
    words = r"big failed 6 times in a row; the last error was: .*; run again, which continues where it stopped"
    with pytest.raises(StorageError, match=words):
        fetch(file, tmp_path)
    assert not (tmp_path / "out/copy").exists()
    store.proxy.reset()
    assert fetch(file, tmp_path).xxh3 == xxh3(BIG)
    (seen,) = store.proxy.of("read")
    assert 9_000_000 - IN_FLIGHT < seen.first <= 9_000_000
    assert_nothing_is_left(tmp_path, 1)


def test_a_complete_partial_file_costs_one_request(store: Store, tmp_path: Path) -> None:
    """The process was killed after the last byte had arrived, but before the file got its final name."""
    file = listed(store, "big")
    with (
        patch.object(bucket_transfer.atomic, "hash_file", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        fetch(file, tmp_path)
    store.proxy.reset()
    assert fetch(file, tmp_path).xxh3 == xxh3(BIG)
    assert [seen.kind for seen in store.proxy.seen] == ["describe"]


FETCH = """
import sys
from pathlib import Path
from datakit.download.bucket_transfer import BucketFile, fetch
from datakit.store_access import USUAL

url, size, checksum, folder = sys.argv[1:]
file = BucketFile(url, int(size), checksum, USUAL)
fetch(file, f"{folder}/out/copy", Path(folder, "partial"), lambda done: print(done, flush=True))
"""


def test_a_killed_process_is_continued(store: Store, tmp_path: Path) -> None:
    file, release = listed(store, "big"), threading.Event()
    store.proxy.order(reads("big"), orders.held_after(12_000_000, release))
    arguments = [file.url, str(file.size), file.checksum, str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH, *arguments], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    done = 0
    while done < 11_000_000:
        line = process.stdout.readline()
        assert line, "the process was to wait for more"
        done = int(line)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    release.set()
    assert fetch(file, tmp_path).xxh3 == xxh3(BIG)
    first, second = store.proxy.of("read")
    assert (first.first, second.first >= done) == (0, True), "what had arrived was not requested again"
    assert_nothing_is_left(tmp_path, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("replace", "it has changed since it was listed"),
        ("shrink", "it has changed|fewer bytes"),
        ("grow", "it has changed"),
    ],
)
def test_object_that_changed_is_refused(store: Store, tmp_path: Path, change: str, words: str) -> None:
    store.put("moving", b"0123456789" * 500_000)
    file = listed(store, "moving")
    now = {"replace": b"9876543210" * 500_000, "shrink": b"01234", "grow": b"0123456789" * 600_000}[change]
    store.proxy.order(reads("moving"), orders.cut_after(3_000_000))
    store.proxy.then(reads("moving"), lambda: store.put("moving", now))  # between a break and the rest
    with pytest.raises(ChangedInputError, match=rf"moving: .*({words}).*; run again to list"):
        fetch(file, tmp_path)
    with pytest.raises(ChangedInputError, match=rf"moving: .*({words}).*; run again to list"):
        fetch(file, tmp_path / "another")
    assert not (tmp_path / "out/copy").exists() and not (tmp_path / "another/out/copy").exists()


def test_object_that_vanished_is_named(store: Store, tmp_path: Path) -> None:
    store.put("fleeting", b"0123456789")
    file = listed(store, "fleeting")
    store.remove("fleeting")
    with pytest.raises(NotFoundError, match=r"fleeting was listed but no longer exists; run again"):
        fetch(file, tmp_path)


@pytest.mark.parametrize("times", [1, 1000])
def test_a_flipped_bit_is_noticed(store: Store, tmp_path: Path, times: int) -> None:
    """Once, the object is read again; always, it is refused."""
    file_system, path = urls.filesystem(f"{store.url}/hashed")
    if store.kind == "s3":  # its client sends a hash with the object, which the store keeps
        file_system.pipe_file(path, b"0123456789" * 10)
    else:
        store.put("hashed", b"0123456789" * 10)
    file = listed(store, "hashed")
    store.proxy.order(reads("hashed"), orders.flipped(50), times)
    if times == 1:
        assert fetch(file, tmp_path).xxh3 == xxh3(b"0123456789" * 10)
        assert len(store.proxy.of("read")) == 2
        return
    with pytest.raises(CorruptError, match=r"does not have the hash that the store states, twice in a row.*run again"):
        fetch(file, tmp_path)
    assert not (tmp_path / "out/copy").exists()


@pytest.mark.parametrize("status", [401, 403])
def test_denied_access_is_not_retried(store: Store, tmp_path: Path, status: int) -> None:
    file = listed(store, "small")
    store.proxy.order(reads("small"), orders.refused(status, "AccessDenied"), times=1000)
    with pytest.raises(RootError, match=r"access to \S+small was denied .*check .*`requester_pays = true`"):
        fetch(file, tmp_path)
    assert len(store.proxy.of("read")) == 1
