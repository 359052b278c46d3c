"""Every failure of a disk or a store says what failed, where, and what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datakit.errors import DatakitError, RootError, StorageError
from datakit.storage import atomic, urls


def as_another_user(action: Callable[[], object]) -> dict[str, str]:
    """Run `action` in a forked child without root privileges; return the type and message of its exception."""
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
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            answer = {"type": type(error).__name__, "message": str(error)}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as file:
        return json.load(file)


@pytest.fixture
def locked() -> Iterator[Path]:
    """Provide a directory that only root may write."""
    path = Path(tempfile.mkdtemp())
    (path / "secret").write_text("x")
    (path / "secret").chmod(0)
    path.chmod(0o555)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def test_root_without_permission_is_an_input_error(locked: Path) -> None:
    for place in (locked / "file", locked / "new/folder/file"):
        answer = as_another_user(lambda place=place: atomic.commit_bytes(b"x", str(place)))
        assert answer["type"] == "RootError"
        assert f"no permission to write {place} (Permission denied); choose another --root" in answer["message"]
    answer = as_another_user(lambda: urls.read_bytes(str(locked / "secret")))
    assert answer["type"] == "RootError"
    assert f"no permission to read {locked / 'secret'}" in answer["message"]
    assert [path.name for path in locked.iterdir()] == ["secret"]


def test_unreadable_directory_is_not_empty(locked: Path) -> None:
    (locked / "inner").mkdir() if os.getuid() == 0 else None
    if not (locked / "inner").exists():
        pytest.skip("only root can create a directory in a locked one")
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


def test_full_disk_is_named_and_leaves_no_partial_file(tmp_path: Path) -> None:
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


def test_file_in_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot write .*/taken/file"):
        atomic.commit_bytes(b"x", str(tmp_path / "taken/file"))


def test_unrelated_errors_inside_a_commit_pass_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), atomic.staging(str(tmp_path / "file")):
        open("/elsewhere/input")  # noqa: SIM115 - it does not exist
    with pytest.raises(KeyError), atomic.staging(str(tmp_path / "file")):
        raise KeyError("a mistake of ours")


def test_missing_bucket_is_an_input_error(store: str) -> None:
    with pytest.raises(RootError, match=r"s3://no-such-bucket/file: .*create the bucket or choose another --root"):
        atomic.commit_bytes(b"x", "s3://no-such-bucket/file")


@pytest.mark.parametrize(
    ("variables", "kind", "message"),
    [
        ({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}, StorageError, "the store does not answer"),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, RootError, "set the store's credentials"),
    ],
)
def test_unusable_store_is_one_clear_error(
    variables: dict[str, str], kind: type[DatakitError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in (
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "HOME": "/nowhere", "AWS_MAX_ATTEMPTS": "1"} | variables
    ).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(kind, match=message):
            urls.read_bytes("s3://bucket/file")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
