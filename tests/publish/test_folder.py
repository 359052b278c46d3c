"""A folder or a bucket holds a whole publication or says that it does not, and is never overwritten unawares."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import xxhash

from datakit.errors import CorruptError, NewerRevisionError, NotFoundError, UsageError
from datakit.publish import files, folder, prepare, publish
from datakit.publish.files import sha256_of
from datakit.publish.folder import CLAIM, Claim, Folder
from datakit.publish.publishing import require_replaced
from datakit.publish.record import FILE_NAME, Held, decode_record
from datakit.storage import atomic, removal, urls
from datakit.storage.manifest import Manifest, Partition
from tests.support.paths import REPOSITORY
from tests.support.published.shelf import SOURCES

BARE = {
    **dict.fromkeys(("stage", "dataset", "fingerprint", "identity"), ""),
    **{"parameters": {}, "inputs": [], "schema": [], "counters": {}},
    **{"totals": {"rows": 1, "bytes": 1}, "quarantine": {"records": 0}},
}
KILLED = """
import os, signal, sys
from datakit.cli import main
from datakit.publish.folder import Folder
put, left = Folder._put, [int(sys.argv[1])]
def counted(self, file):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    put(self, file)
Folder._put = counted
sys.exit(main(sys.argv[2:]))
"""


def kill_after(count: int, *arguments: str) -> int:
    """Run `datakit publish` until it has written so many files, and kill it; return its exit status."""
    command = [sys.executable, "-c", KILLED, str(count), "publish", *arguments, "--yes"]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, timeout=120, check=False
    ).returncode


HALF = """
import os, signal, sys
from datakit.cli import main
from datakit.publish import folder
def half(file, path):
    if file.path.endswith(".parquet"):
        path.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return copy(file, path)
copy, folder.copy_to = folder.copy_to, half
sys.exit(main(sys.argv[1:]))
"""


def published(place: str) -> dict[str, str]:
    """The SHA-256 of every visible file by path."""
    return {info.path: sha256_of(info.url) for info in urls.listing(place)}


def recorded(place: str) -> dict[str, str]:
    """The SHA-256 of every file, as the record of the publication states it."""
    url = urls.join(place, FILE_NAME)
    return {file.path: file.sha256 for file in decode_record(urls.read_bytes(url), url).files}


def claimed(place: str) -> bool:
    return urls.exists(urls.join(place, CLAIM))


def test_the_record_lists_every_file_with_its_hash(dataset: Path, place: str) -> None:
    done = publish(prepare(str(dataset), place))
    found = published(place)
    del found[FILE_NAME]
    assert found == recorded(place)
    assert {path.split("/")[1] for path in found if path.startswith("data/")} == set(SOURCES)
    assert (done.documents, done.files, done.changed) == (1797, len(found) + 1, len(found) + 1)
    assert not claimed(place)


def test_publishing_again_transfers_nothing(dataset: Path, place: str) -> None:
    first = publish(prepare(str(dataset), place))
    before = {info.path: urls.stamp(info.url) for info in urls.listing(place)}
    prepared = prepare(str(dataset), place)
    assert prepared.is_published
    again = publish(prepared)
    assert (again.revision, again.changed) == (first.revision, 0)
    assert {info.path: urls.stamp(info.url) for info in urls.listing(place)} == before


@pytest.mark.parametrize("count", [1, 3])
def test_a_killed_publication_goes_on_with_what_is_missing(dataset: Path, place: str, count: int) -> None:
    assert kill_after(count, str(dataset), place) == -signal.SIGKILL
    with pytest.raises(NotFoundError):
        urls.read_bytes(urls.join(place, FILE_NAME))
    assert claimed(place)
    before = {info.path: urls.stamp(info.url) for info in urls.listing(place)}
    prepared = prepare(str(dataset), place)
    assert len(prepared.difference.missing) == len(prepared.files) + 1 - count
    publish(prepared)
    after = {info.path: urls.stamp(info.url) for info in urls.listing(place)}
    assert {path: after[path] for path in before} == before
    found = published(place)
    del found[FILE_NAME]
    assert found == recorded(place) and not claimed(place)


def test_half_a_file_leaves_nothing_behind(dataset: Path, tmp_path: Path) -> None:
    place = tmp_path / "published"
    command = [sys.executable, "-c", HALF, "publish", str(dataset), str(place), "--yes"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    killed = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(place.rglob(".tmp-*")) and not list(place.rglob("part-*"))
    publish(prepare(str(dataset), str(place)))
    assert not [path for path in place.rglob("*") if path.name.startswith(".")]


def test_a_damaged_file_is_replaced(dataset: Path, place: str) -> None:
    publish(prepare(str(dataset), place))
    (damaged,) = [info for info in urls.listing(place) if info.path.startswith("data/laws/")]
    data = bytearray(urls.read_bytes(damaged.url))
    data[len(data) // 2] ^= 1
    atomic.replace_bytes(bytes(data), damaged.url)
    prepared = prepare(str(dataset), place)
    assert [file.path for file in prepared.difference.missing] == [damaged.path]
    with pytest.raises(NewerRevisionError, match="--replaces"):
        require_replaced(prepared, None)
    require_replaced(prepared, prepared.held.revision)
    publish(prepared)
    assert prepare(str(dataset), place).is_published


def test_another_revision_is_replaced_only_if_it_is_named(dataset: Path, dataset_copy: Path, place: str) -> None:
    first = publish(prepare(str(other_license(dataset_copy)), place))
    prepared = prepare(str(dataset), place)
    with pytest.raises(NewerRevisionError, match=f"--replaces {first.revision}"):
        require_replaced(prepared, None)
    with pytest.raises(NewerRevisionError, match=f"holds {first.revision}, not 0123"):
        require_replaced(prepared, "0123")
    require_replaced(prepared, first.revision)
    done = publish(prepared)
    assert done.revision != first.revision
    assert prepare(str(dataset), place).is_published


def other_license(dataset: Path) -> Path:
    """Give the novels another license, as a run with a changed recipe does."""
    latest = dataset / "latest.json"
    facts = json.loads(latest.read_text())
    facts["licenses"]["novels"] = "CC0-1.0"
    latest.write_text(json.dumps(facts))
    return dataset


def test_a_revision_that_came_meanwhile_stays(dataset: Path, dataset_copy: Path, place: str) -> None:
    late = prepare(str(dataset), place)
    first = publish(prepare(str(other_license(dataset_copy)), place))
    before = published(place)
    with pytest.raises(NewerRevisionError, match=f"holds the revision {first.revision}, but no revision was there"):
        publish(late)
    assert published(place) == before and not claimed(place)


def test_a_claim_of_another_publication_is_respected(dataset: Path, place: str) -> None:
    claim = Claim("0123456789abcdef", "")
    atomic.create_bytes(msgspec.json.encode(claim), urls.join(place, CLAIM))
    prepared = prepare(str(dataset), place)
    with pytest.raises(NewerRevisionError, match="being changed to the revision 0123456789abcdef"):
        publish(prepared)
    assert published(place) == {}


def test_a_claim_that_is_taken_away_stops_the_publication(
    dataset: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Folder._put

    def robbed(self: Folder, file: object) -> None:
        put(self, file)  # pyright: ignore[reportArgumentType]
        removal.remove(urls.join(place, CLAIM))

    monkeypatch.setattr(Folder, "_put", robbed)
    with pytest.raises(NewerRevisionError, match="was removed or replaced"):
        publish(prepare(str(dataset), place))
    assert len(published(place)) == 1 and FILE_NAME not in published(place)


def test_files_that_no_publication_wrote_are_left_alone(dataset: Path, place: str) -> None:
    atomic.create_bytes(b"mine", urls.join(place, "notes.txt"))
    with pytest.raises(UsageError, match=r"has files that no publication wrote \(notes.txt\)"):
        prepare(str(dataset), place)


def test_files_among_the_data_are_named(dataset: Path, place: str) -> None:
    publish(prepare(str(dataset), place))
    atomic.create_bytes(b"mine", urls.join(place, "data/novels/part-more.parquet"))
    with pytest.raises(UsageError, match=r"files beside those of its publication \(data/novels/part-more.parquet\)"):
        prepare(str(dataset), place)
    removal.remove(urls.join(place, "data/novels/part-more.parquet"))
    atomic.create_bytes(b"mine", urls.join(place, "notes.txt"))  # no reader takes it for data
    assert prepare(str(dataset), place).is_published


def test_files_of_the_earlier_revision_leave(dataset: Path, place: str) -> None:
    publish(prepare(str(dataset), place))
    url = urls.join(place, FILE_NAME)
    record = json.loads(urls.read_bytes(url))
    record["files"].append({"path": "data/gone/part-00000-of-00001.parquet", "bytes": 4, "sha256": "0" * 64})
    atomic.create_bytes(b"gone", urls.join(place, "data/gone/part-00000-of-00001.parquet"))
    atomic.replace_bytes(json.dumps(record).encode(), url)
    prepared = prepare(str(dataset), place)
    assert prepared.difference.removed == ("data/gone/part-00000-of-00001.parquet",)
    require_replaced(prepared, prepared.held.revision)
    publish(prepared)
    assert "data/gone/part-00000-of-00001.parquet" not in published(place)


def test_damaged_documents_are_not_published(dataset_copy: Path, place: str) -> None:
    file = next(dataset_copy.glob("consolidate-*/data/letters/*.parquet"))
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptError, match="but its manifest states"):
        prepare(str(dataset_copy), place)
    assert published(place) == {}


@pytest.mark.parametrize("size", [3, 11 << 20, 10 << 20])
def test_objects_are_compared_without_downloads(
    store: str, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksums of a bucket can be computed, even those of objects that were uploaded in parts."""
    monkeypatch.setattr(files, "S3_PART_BYTES", 5 << 20)
    monkeypatch.setattr(folder, "sha256_of", lambda url: pytest.fail(f"{url} was read"))
    data = random.Random(size).randbytes(size)
    part = Partition("data/a/part-0.parquet", "a", 1, size, xxhash.xxh3_128_hexdigest(data))
    (tmp_path / part.path).parent.mkdir(parents=True)
    (tmp_path / part.path).write_bytes(data)
    manifest = msgspec.convert({**BARE, "partitions": [msgspec.to_builtins(part)]}, Manifest)
    (file,) = files.data_files(str(tmp_path), manifest, lambda *counts: None, etags=True)
    place = folder.Folder(urls.join(store, f"compared-{size}"))
    place._put(file)
    found = urls.objects(place.url)[0]
    assert ("-" in (found.checksum or "")) == (size > 8 << 20)
    assert place.difference([file], file, Held("")).missing == ()


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/passwd", "data//x"])
def test_a_record_that_names_files_outside_is_refused(dataset: Path, tmp_path: Path, name: str) -> None:
    place = str(tmp_path / "published")
    publish(prepare(str(dataset), place))
    record = json.loads((tmp_path / "published" / FILE_NAME).read_text())
    record["files"].append({"path": name, "bytes": 4, "sha256": "0" * 64})
    (tmp_path / "published" / FILE_NAME).write_text(json.dumps(record))
    with pytest.raises(CorruptError, match="outside of the publication"):
        prepare(str(dataset), place)
