"""Files appear whole or not at all, once, on a disk and on S3; every refusal says what, where and what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from datakit.errors import DatakitError, DivergentOutputError, NotFoundError, RootError, StorageError
from datakit.storage import atomic, urls
from datakit.storage.parquet import ShardWriter, open_shard, read_shard
from tests.support.s3 import s3_root


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """One S3 server for this file."""
    with s3_root() as root:
        yield root


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty directory, on a disk and in an object store."""
    if request.param == "disk":
        return str(tmp_path)
    return urls.join(request.getfixturevalue("store"), tmp_path.name)


def names(root: str) -> list[str]:
    return [info.path for info in urls.listing(root)]


def test_a_file_is_created_once_and_a_second_equal_commit_is_no_error(root: str) -> None:
    url = urls.join(root, "a/b/file.bin")
    first = atomic.commit_bytes(b"content", url)
    second = atomic.commit_bytes(b"content", url)
    assert (first.created, second.created) == (True, False)
    assert (first.bytes, first.xxh3) == (second.bytes, second.xxh3) == (7, atomic.hash_url(url)[0])
    assert urls.read_bytes(url) == b"content"
    assert names(root) == ["a/b/file.bin"]


def test_a_different_second_commit_is_refused_and_the_first_stays(root: str) -> None:
    url = urls.join(root, "file.bin")
    atomic.commit_bytes(b"first", url)
    with pytest.raises(
        DivergentOutputError, match=r"file\.bin exists with other content \(5 bytes.* not deterministic"
    ):
        atomic.commit_bytes(b"second", url)
    assert urls.read_bytes(url) == b"first"
    assert names(root) == ["file.bin"]


def test_a_large_object_goes_up_in_parts_and_is_conditional_too(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "S3_PART_BYTES", 5 << 20)  # S3's smallest
    url, first, second = urls.join(store, "large"), tmp_path / "first", tmp_path / "second"
    first.write_bytes(os.urandom(11 << 20))
    second.write_bytes(os.urandom(11 << 20))
    assert atomic.commit_file(first, url).created
    file_system, path = urls.filesystem(url)
    assert file_system.info(path)["ETag"].strip('"').endswith("-3"), "three parts"
    assert not atomic.commit_file(first, url).created
    with pytest.raises(DivergentOutputError):
        atomic.commit_file(second, url)
    assert atomic.hash_url(url) == atomic.hash_file(first)


RACER = """
import sys, time
from pathlib import Path
from datakit.errors import DivergentOutputError
from datakit.storage import atomic, urls

root, name, differ, start = sys.argv[1:]
urls.exists(root)  # the driver is loaded and connected
print("ready", flush=True)
while not Path(start).exists():
    time.sleep(0.001)
for number in range(25):
    data = (name if differ == "differ" else "same").encode() * 5_000
    try:
        print(number, atomic.commit_bytes(data, urls.join(root, f"file-{number}")).created, flush=True)
    except DivergentOutputError:
        print(number, "divergent", flush=True)
"""


@pytest.mark.parametrize("content", ["same", "differ"])
def test_of_processes_that_commit_at_the_same_time_exactly_one_creates(root: str, tmp_path: Path, content: str) -> None:
    start = tmp_path / ".start"
    command = [sys.executable, "-c", RACER, root]
    racers = [
        subprocess.Popen([*command, str(number), content, str(start)], stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    start.touch()
    lines = [line.split() for racer in racers for line in racer.communicate(timeout=60)[0].splitlines()]
    assert [racer.returncode for racer in racers] == [0] * 4
    loser = "False" if content == "same" else "divergent"
    for number in range(25):
        outcomes = Counter(outcome for which, outcome in lines if which == str(number))
        assert outcomes == {"True": 1, loser: 3}
    assert len(names(root)) == 25, "no temporary file is left"


def test_a_listing_is_deep_sorted_and_without_dot_files(root: str) -> None:
    for name in ("b/2", "b/1", "a", "c/d/e", ".hidden", "c/.tmp-x-y", ".folder/file"):
        atomic.commit_bytes(name.encode(), urls.join(root, name))
    found = urls.listing(root)
    assert [info.path for info in found] == ["a", "b/1", "b/2", "c/d/e"]
    assert [info.size for info in found] == [1, 3, 3, 5]
    assert [urls.read_bytes(info.url) for info in found] == [b"a", b"b/1", b"b/2", b"c/d/e"]
    assert urls.listing(urls.join(root, "nothing")) == []


def test_ranges_are_exact_and_what_lies_beyond_the_end_is_not_there(root: str) -> None:
    url, empty = urls.join(root, "file"), urls.join(root, "empty")
    atomic.commit_bytes(b"0123456789", url)
    atomic.commit_bytes(b"", empty)
    ranges = [(0, 4), (3, 3), (4, 7), (7, 100), (10, 12), (50, 60), (2, None), (0, None)]
    got = [urls.read_range(url, start, stop) for start, stop in ranges]
    assert got == [b"0123", b"", b"456", b"789", b"", b"", b"23456789", b"0123456789"]
    assert urls.read_bytes(empty) == urls.read_range(empty, 0, 10) == b""
    with urls.open_read(url) as file:
        file.seek(6)
        assert file.read() == b"6789"


def test_what_is_not_there_is_named(root: str) -> None:
    url = urls.join(root, "absent.parquet")
    readers: list[Callable[[str], object]] = [urls.size, urls.read_bytes, urls.open_read, atomic.hash_url, open_shard]
    for read in readers:
        with pytest.raises(NotFoundError, match=r"absent\.parquet does not exist"):
            read(url)
    assert not urls.exists(url)
    urls.remove(url)
    urls.remove_tree(url)


def test_removal(root: str) -> None:
    for name in ("keep", "tree/a", "tree/b/c", "single"):
        atomic.commit_bytes(b"x", urls.join(root, name))
    urls.remove(urls.join(root, "single"))
    urls.remove_tree(urls.join(root, "tree"))
    assert names(root) == ["keep"]


def test_state_is_replaced_whole(root: str) -> None:
    url = urls.join(root, "state.json")
    atomic.replace_bytes(b"one", url)
    atomic.replace_bytes(b"two", url)
    assert urls.read_bytes(url) == b"two"


def test_an_error_while_writing_leaves_nothing(root: str) -> None:
    with (
        pytest.raises(RuntimeError),
        ShardWriter(urls.join(root, "part.parquet"), pa.schema([("a", "int64")])) as shard,
    ):
        shard.write(pa.table({"a": [1, 2]}))
        raise RuntimeError("stop")
    assert names(root) == []
    if urls.is_local(root):
        assert list(Path(root).iterdir()) == []


def test_a_file_made_on_another_file_system_is_committed(tmp_path: Path) -> None:
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is no second file system here to copy from")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"content")
        file.flush()
        assert atomic.commit_file(Path(file.name), str(tmp_path / "a/b")).created
        assert not atomic.commit_file(Path(file.name), str(tmp_path / "a/b")).created
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_a_file_system_without_links_gets_whole_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # what exFAT answers

    monkeypatch.setattr(os, "link", refuse)
    url = str(tmp_path / "file")
    assert atomic.commit_bytes(b"content", url).created
    with pytest.raises((DivergentOutputError, RootError)):
        atomic.commit_bytes(b"other", url)
    assert urls.read_bytes(url) == b"content"


def as_another_user(action: Callable[[], object]) -> dict[str, str]:
    """Run `action` in a forked child without root's powers; the type and message of what it raised."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = {"type": "nothing", "message": ""}
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setresgid(65_534, 65_534, 65_534)
                os.setresuid(65_534, 65_534, 65_534)
            action()
        except BaseException as error:  # noqa: BLE001 - all of it is the answer
            answer = {"type": type(error).__name__, "message": str(error)}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as file:
        return json.load(file)


@pytest.fixture
def locked() -> Iterator[Path]:
    """A directory that everybody may read and nobody but root may write."""
    path = Path(tempfile.mkdtemp())
    (path / "secret").write_text("x")
    (path / "secret").chmod(0)
    path.chmod(0o555)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def test_a_root_without_permission_is_the_users_to_mend(locked: Path) -> None:
    for place in (locked / "file", locked / "new/folder/file"):
        answer = as_another_user(lambda place=place: atomic.commit_bytes(b"x", str(place)))
        assert answer["type"] == "RootError"
        assert f"no permission to write {place} (Permission denied); choose another --root" in answer["message"]
    answer = as_another_user(lambda: urls.read_bytes(str(locked / "secret")))
    assert answer["type"] == "RootError"
    assert f"no permission to read {locked / 'secret'}" in answer["message"]
    assert [path.name for path in locked.iterdir()] == ["secret"]


def test_a_folder_that_may_not_be_read_is_no_empty_folder(locked: Path) -> None:
    (locked / "inner").mkdir() if os.getuid() == 0 else None
    if not (locked / "inner").exists():
        pytest.skip("only root can make a folder in a folder that is locked")
    (locked / "inner").chmod(0)
    answer = as_another_user(lambda: urls.listing(str(locked)))
    assert answer["type"] == "RootError"


FULL_DISK = """
import json, sys
from pathlib import Path
import numpy as np, pyarrow as pa
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.task import TaskContext
from datakit.errors import DatakitError
from datakit.storage import atomic, urls
from datakit.storage.parquet import ShardWriter

root, noise = sys.argv[1], np.random.default_rng(0).integers(0, 255, 4 << 20, np.uint8).tobytes()
table = pa.table({"a": pa.array([noise[i : i + 4096] for i in range(0, len(noise), 4096)], pa.large_binary())})

def bytes_():
    atomic.commit_bytes(noise, root + "/bytes")

def shard():
    with ShardWriter(root + "/part.parquet", table.schema) as writer:
        writer.write(table)

def exchange():
    with ExchangeWriter(TaskContext(root, Path(root)), "route", "key", 4) as writer:
        writer.write(table, np.arange(table.num_rows) % 4)

answers = {}
for action in (bytes_, shard, exchange):
    try:
        action()
        answers[action.__name__] = "no error"
    except DatakitError as error:
        answers[action.__name__] = f"{type(error).__name__}: {error}"
left = [str(path) for path in Path(root).rglob("*") if path.is_file()]
atomic.commit_bytes(noise[: 1 << 19], root + "/small")
print(json.dumps({"answers": answers, "left": left, "after": [info.path for info in urls.listing(root)]}))
"""


def test_a_full_disk_is_named_and_nothing_half_written_stays(tmp_path: Path) -> None:
    unshare = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    mount = 'mount -t tmpfs -o size=2m tmpfs "$1" || exit 77; shift; exec "$@"'
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: a small disk cannot be made here")
    program = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    command = [*unshare, "sh", "-c", mount, "sh", str(tmp_path), *program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if run.returncode == 77 or "unshare" in run.stderr:
        pytest.skip(f"a small disk cannot be made here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    for action, place in (
        ("bytes_", "bytes"),
        ("shard", "part.parquet"),
        ("exchange", "exchange/route/key-00000.arrow"),
    ):
        assert report["answers"][action].startswith(f"NoSpaceError: no space left to write {tmp_path}/{place}")
        assert "the next run continues from here" in report["answers"][action]
    assert report["left"] == []
    assert report["after"] == ["small"], "once there is space, work goes on"


def test_a_file_where_a_folder_should_be_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot write .*/taken/file"):
        atomic.commit_bytes(b"x", str(tmp_path / "taken/file"))


def test_other_errors_inside_a_commit_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), atomic.staging(str(tmp_path / "file")):
        open("/elsewhere/input")  # noqa: SIM115 - it does not exist
    with pytest.raises(KeyError), atomic.staging(str(tmp_path / "file")):
        raise KeyError("a mistake of ours")


def test_a_bucket_that_is_not_there_is_the_users_to_mend(store: str) -> None:
    with pytest.raises(RootError, match=r"s3://no-such-bucket/file: .*create the bucket or choose another --root"):
        atomic.commit_bytes(b"x", "s3://no-such-bucket/file")


@pytest.mark.parametrize(
    ("variables", "kind", "message"),
    [
        ({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}, StorageError, "the store does not answer"),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, RootError, "set the store's credentials"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_clear_error(
    variables: dict[str, str], kind: type[DatakitError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "HOME": "/nowhere"} | variables).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(kind, match=message):
            urls.read_bytes("s3://bucket/file")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_unknown_protocols_and_missing_drivers_are_named() -> None:
    with pytest.raises(RootError, match=r"unknown protocol nope://; use a path, file://, s3:// or gs://"):
        urls.read_bytes("nope://bucket/file")


def test_an_upload_holds_little_memory(store: str, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from datakit.storage import atomic
def peak():
    return int(dict(line.split(":", 1) for line in open("/proc/self/status"))["VmHWM"].split()[0]) >> 10
path = Path(sys.argv[1])
with open(path, "wb") as file:
    for _ in range(160):
        file.write(bytes(1 << 20))
atomic.commit_bytes(b"warm", sys.argv[2] + "/warm")
before = peak()
atomic.commit_file(path, sys.argv[2] + "/large")
print(peak() - before)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "file"), urls.join(store, "memory")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    print(f"\nan upload of 160 MiB: {run.stdout.strip()} MiB", file=sys.stderr)
    assert int(run.stdout) < 90


def test_shards_read_the_same_from_both(root: str) -> None:
    table = pa.table(
        {"n": range(1_000), "text": pa.array(["word " * (i % 7) for i in range(1_000)], pa.large_string())}
    )
    with ShardWriter(urls.join(root, "part.parquet"), table.schema) as shard:
        shard.write(table.slice(0, 300))
        shard.write(table.slice(300))
    assert read_shard(urls.join(root, "part.parquet")) == table
    assert shard.info.rows == 1_000
