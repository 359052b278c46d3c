"""Which files a source is made of, and that remote ones arrive whole or not at all."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import pytest
import xxhash
from fsspec.implementations.memory import MemoryFileSystem

from datakit.download import hashes, listing, transfer
from datakit.download.hashes import HashCache
from datakit.download.listing import SourceFile, list_source, listing_digest, pinned, source_base
from datakit.download.stage import files_base, plan
from datakit.engine.inline import run_plan_inline
from datakit.engine.task import Output, Step
from datakit.errors import ChangedInputError, NoInputError, NotFoundError, StorageError, UnreadableError
from datakit.storage import urls
from datakit.storage.atomic import Committed
from tests.support.s3 import s3_root
from tests.support.sources import download


def xxh3(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source with files at several depths."""
    folder = tmp_path / "tree"
    for path in ("a.jsonl", "b/c.jsonl", "b/d/e.txt", "b/.hidden/f.jsonl", ".g.jsonl", "b/d/h.jsonl.gz"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


# --- listing


@pytest.mark.parametrize(
    ("where", "include", "exclude", "expected"),
    [
        ("", [], [], ["a.jsonl", "b/c.jsonl", "b/d/e.txt", "b/d/h.jsonl.gz"]),
        ("", ["*.jsonl"], [], ["a.jsonl", "b/c.jsonl"]),
        ("", ["/*.jsonl"], [], ["a.jsonl"]),
        ("", ["**/*.jsonl", "*.txt"], [], ["a.jsonl", "b/c.jsonl", "b/d/e.txt"]),
        ("", ["b/*"], [], ["b/c.jsonl"]),
        ("", ["b/**"], ["*.gz"], ["b/c.jsonl", "b/d/e.txt"]),
        ("", [], ["b/**"], ["a.jsonl"]),
        ("", ["[ab].jsonl", "?.txt"], [], ["a.jsonl", "b/d/e.txt"]),
        ("/b", [], [], ["c.jsonl", "d/e.txt", "d/h.jsonl.gz"]),
        ("/b/*", [], [], ["c.jsonl"]),
        ("/*/*.jsonl", [], [], ["b/c.jsonl"]),
        ("/**/*.jsonl*", [], [], ["a.jsonl", "b/c.jsonl", "b/d/h.jsonl.gz"]),
        ("/**/*.jsonl*", ["*.gz"], [], ["b/d/h.jsonl.gz"]),
        ("/b/c.jsonl", [], [], ["c.jsonl"]),
    ],
)
def test_what_a_url_and_patterns_name(
    tree: Path, where: str, include: list[str], exclude: list[str], expected: list[str]
) -> None:
    url = f"{tree}{where}"
    files = list_source(url, include, exclude)
    assert [file.path for file in files] == expected
    for file in files:
        content = (Path(source_base(url)) / file.path).read_bytes()
        assert (file.size, file.checksum) == (len(content), xxh3(content))


def test_a_name_with_glob_characters_is_itself(tmp_path: Path) -> None:
    for name in ("[x].txt", "x.txt", "50% *.txt"):
        (tmp_path / name).write_text(name)
    assert [file.path for file in list_source(str(tmp_path / "[x].txt"), [], [])] == ["[x].txt"]
    assert [file.path for file in list_source(str(tmp_path / "50% *.txt"), [], [])] == ["50% *.txt"]


def test_linked_directories_are_followed_once(tree: Path) -> None:
    (tree / "link").symlink_to(tree / "b")
    (tree / "b" / "back").symlink_to(tree)
    assert [file.path for file in list_source(str(tree), ["*.jsonl"], [])] == ["a.jsonl", "b/c.jsonl", "link/c.jsonl"]
    (tree / "dangling.jsonl").symlink_to(tree / "nowhere")
    with pytest.raises(UnreadableError, match=r"dangling\.jsonl is a link to a file that does not exist"):
        list_source(str(tree), [], [])


def test_the_standard_library_is_a_source() -> None:
    files = list_source("{stdlib}/json", ["*.py"], [])
    assert "decoder.py" in [file.path for file in files]
    assert source_base("{stdlib}/json") == f"{sysconfig.get_paths()['stdlib']}/json"


@pytest.mark.parametrize(
    ("where", "include", "words"),
    [
        (
            "",
            ["*.parquet"],
            r"no file that matches \*\.parquet; below .*tree there are 2 \.jsonl, 1 \.txt, 1 \.gz, e\.g",
        ),
        ("/*.parquet", [], r"no file; below .*tree there are 2 \.jsonl"),
        ("e", [], r"no file; .* exists, but it has no 'treee'; did you mean 'tree'\?"),
        ("/b/dd/x/y", [], r"no file; .*/b exists, but it has no 'dd'"),
        ("/b/.hidden/..", ["q"], r"no file that matches q"),
    ],
)
def test_a_source_without_files_says_what_is_there(tree: Path, where: str, include: list[str], words: str) -> None:
    with pytest.raises(NoInputError, match=words):
        list_source(f"{tree}{where}", include, [])


def test_a_listing_does_not_depend_on_where_it_lies(tree: Path, tmp_path: Path) -> None:
    before = list_source(str(tree), [], [])
    tree.rename(tmp_path / "moved")
    after = list_source(str(tmp_path / "moved"), [], [])
    assert listing_digest(before) == listing_digest(after)
    (tmp_path / "moved" / "a.jsonl").write_text("A.jsonl")
    assert listing_digest(list_source(str(tmp_path / "moved"), [], [])) != listing_digest(before)


def test_a_hub_url_is_pinned_to_its_revision() -> None:
    assert pinned("hf://datasets/org/name", "abc") == "hf://datasets/org/name@abc"
    assert pinned("hf://datasets/org/name@main/data/*", "abc") == "hf://datasets/org/name@abc/data/*"
    assert pinned("s3://bucket/key", "abc") == "s3://bucket/key"
    assert pinned("hf://datasets/org/name", None) == "hf://datasets/org/name"


# --- remembered hashes


@pytest.fixture
def later() -> Iterator[None]:
    """All files have been left alone for a while."""
    with patch.object(hashes, "SETTLED_NS", -1):
        yield


@pytest.mark.usefixtures("later")
def test_hashes_are_remembered_and_forgotten(tree: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    first = list_source(str(tree), [], [], HashCache.of_source(root, "tree"))
    with patch.object(listing.atomic, "hash_file", side_effect=AssertionError("hashed again")):
        assert list_source(str(tree), [], [], HashCache.of_source(root, "tree")) == first
    (tree / "a.jsonl").write_text("A.jsonl")
    os.utime(tree / "a.jsonl", (1, 1))
    (tree / "b/c.jsonl").unlink()
    second = list_source(str(tree), [], [], HashCache.of_source(root, "tree"))
    assert second[0] == SourceFile("a.jsonl", 7, xxh3(b"A.jsonl"))
    remembered = json.loads((tmp_path / "root/.cache/hashes-tree.json").read_text())
    assert list(remembered) == ["a.jsonl", "b/d/e.txt", "b/d/h.jsonl.gz"]


@pytest.mark.usefixtures("later")
def test_a_time_that_was_put_back_does_not_hide_a_change(tree: Path, tmp_path: Path) -> None:
    """As `touch -r` and `rsync --inplace --times` do."""
    os.utime(tree / "a.jsonl", ns=(10**18, 10**18))
    root = str(tmp_path / "root")
    list_source(str(tree), [], [], HashCache.of_source(root, "tree"))
    with open(tree / "a.jsonl", "r+b") as file:
        file.write(b"A")
    os.utime(tree / "a.jsonl", ns=(10**18, 10**18))
    changed = list_source(str(tree), [], [], HashCache.of_source(root, "tree"))
    assert changed[0] == SourceFile("a.jsonl", 7, xxh3(b"A.jsonl"))


@pytest.mark.usefixtures("later")
def test_a_cache_of_an_older_form_is_made_anew(tree: Path, tmp_path: Path) -> None:
    path, state = tmp_path / "root/.cache/hashes-tree.json", os.stat(tree / "a.jsonl")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"a.jsonl": [state.st_size, state.st_mtime_ns, state.st_ino, "0" * 32]}))
    files = list_source(str(tree), [], [], HashCache.of_source(str(tmp_path / "root"), "tree"))
    assert files[0].checksum == xxh3(b"a.jsonl")
    assert json.loads(path.read_text())["a.jsonl"][-1] == xxh3(b"a.jsonl")


def test_a_file_that_changes_while_it_is_hashed_is_in_no_listing(tree: Path) -> None:
    hash_file = listing.atomic.hash_file

    def appended(path: Path) -> tuple[str, int]:
        found = hash_file(path)
        if path.name == "a.jsonl":
            path.write_text("a.jsonl and more")
        return found

    with patch.object(listing.atomic, "hash_file", appended):
        with pytest.raises(ChangedInputError, match=r"a\.jsonl changed while it was listed; run again"):
            list_source(str(tree), [], [])
        assert list_source(str(tree), [], ["a.jsonl"])


def test_a_file_of_this_moment_is_not_remembered(tree: Path, tmp_path: Path) -> None:
    """A second change in the same tick of the clock would leave size and times as they are, whatever they say."""
    for path in tree.rglob("*.*"):
        os.utime(path, (1, 1))
    list_source(str(tree), [], [], HashCache.of_source(str(tmp_path), "tree"))
    assert not (tmp_path / ".cache").exists()


@pytest.mark.usefixtures("later")
def test_a_frozen_cache_writes_nothing_and_a_broken_one_is_ignored(tree: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    list_source(str(tree), [], [], HashCache.of_source(root, "tree", frozen=True))
    assert not (tmp_path / "root").exists()
    (tmp_path / "root/.cache").mkdir(parents=True)
    (tmp_path / "root/.cache/hashes-tree.json").write_text("{broken")
    assert len(list_source(str(tree), [], [], HashCache.of_source(root, "tree"))) == 4


# --- the stage


def run(step: Step) -> Output:
    return run_plan_inline(plan(step), step.directory)[0]


def step_for(url: str, directory: str) -> Step:
    files = [asdict(file) for file in list_source(url, [], [])]
    return Step("download", "tree", directory, "0" * 32, {}, (), {"base": source_base(url), "files": files})


def test_local_files_are_read_in_place(tree: Path, tmp_path: Path) -> None:
    upstream = download(tmp_path, str(tree))
    assert [part.path for part in upstream.manifest.partitions] == [
        "a.jsonl", "b/c.jsonl", "b/d/e.txt", "b/d/h.jsonl.gz",
    ]  # fmt: skip
    assert upstream.manifest.partitions[0].xxh3 == xxh3(b"a.jsonl")
    assert str(tree) not in (tmp_path / "download/manifest.json").read_text(), "moved data keeps its identity"
    assert os.listdir(tmp_path / "download") == ["manifest.json"]
    assert files_base(str(tree), upstream.directory) == str(tree)


class FlakyFileSystem(MemoryFileSystem):
    """A store that breaks as it is told: `broken` maps the number of an `open` to the error it ends with."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in the base class: one store for all instances
    pseudo_dirs = [""]  # noqa: RUF012
    broken: list[Exception | None] = []  # noqa: RUF012
    etag = "v1"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).replace("flaky://", "memory://"))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {**super().info(path, **options), "ETag": type(self).etag and f'"{type(self).etag}"'}

    def find(
        self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        names = super().find(path, maxdepth, withdirs, False, **options)
        return {name: self.info(name) for name in names} if detail else names

    def _open(self, path: str, mode: str = "rb", *rest: Any, **options: Any) -> Any:
        file = super()._open(path, mode, *rest, **options)
        error = type(self).broken.pop(0) if mode == "rb" and type(self).broken else None
        if error is None:
            return file
        return _Breaking(file, error)


class _Breaking:
    """Gives ten bytes, then the error."""

    def __init__(self, file: Any, error: Exception) -> None:
        self._file, self._error, self._given = file, error, False

    def read(self, size: int = -1) -> bytes:
        if self._given:
            raise self._error
        self._given = True
        return self._file.read(10)

    def seek(self, place: int) -> None:
        self._file.seek(place)

    def __enter__(self) -> _Breaking:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.seek(0)


@pytest.fixture
def flaky() -> Iterator[type[FlakyFileSystem]]:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    FlakyFileSystem.store.clear()
    FlakyFileSystem.broken, FlakyFileSystem.etag = [], "v1"
    FlakyFileSystem().pipe("/shelf/a.txt", b"0123456789" * 5)
    with patch.object(transfer.time, "sleep"):
        yield FlakyFileSystem


CHANGED = r"a\.txt: it has changed since it was listed \(checksum v1, now v2\); run again"


def fetch(file: SourceFile, folder: Path, progress: Callable[[int], None] = lambda done: None) -> Committed:
    url, target = f"flaky://shelf/{file.path}", str(folder / file.path)
    return transfer.fetch(url, target, file.size, file.checksum, progress)


def test_a_broken_transfer_goes_on_where_it_was(flaky: type[FlakyFileSystem], tmp_path: Path) -> None:
    flaky.broken = [TimeoutError("slow"), ConnectionResetError("gone"), None]
    output = run(step_for("flaky://shelf", str(tmp_path)))
    assert (tmp_path / "raw/a.txt").read_bytes() == b"0123456789" * 5
    assert [(part.path, part.bytes, part.xxh3) for part in output.partitions] == [
        ("a.txt", 50, xxh3(b"0123456789" * 5)),
    ]
    assert flaky.broken == [], "three attempts"
    assert files_base("flaky://shelf", str(tmp_path)) == f"{tmp_path}/raw"


def test_a_transfer_that_never_moves_gives_up(flaky: type[FlakyFileSystem], tmp_path: Path) -> None:
    step = step_for("flaky://shelf", str(tmp_path))

    def fail(*_: Any, **__: Any) -> Any:
        raise TimeoutError("no byte came")

    words = r"flaky://shelf/a\.txt broke off 6 times in a row, last: no byte came"
    with patch.object(flaky, "_open", fail), pytest.raises(StorageError, match=words):
        run(step)
    assert not list(tmp_path.rglob("*.txt")), "nothing half-written is visible"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError(13, "Forbidden"), StorageError, r"a\.txt may not be read.*check the credentials for flaky://"),
        (FileNotFoundError("gone"), NotFoundError, "was listed but is not there any more"),
    ],
)
def test_a_refusal_is_not_repeated(
    flaky: type[FlakyFileSystem], tmp_path: Path, error: Exception, kind: type[Exception], words: str
) -> None:
    step = step_for("flaky://shelf", str(tmp_path))
    flaky.broken = [error, None]
    with pytest.raises(kind, match=words):
        run(step)
    assert flaky.broken == [None], "one attempt"


def test_a_file_that_changed_since_it_was_listed_is_refused(flaky: type[FlakyFileSystem], tmp_path: Path) -> None:
    step = step_for("flaky://shelf", str(tmp_path))
    flaky.etag = "v2"
    with pytest.raises(ChangedInputError, match=CHANGED):
        run(step)
    flaky.etag = "v1"
    flaky().pipe("/shelf/a.txt", b"0123456789" * 6)
    with pytest.raises(ChangedInputError, match="longer than the 50 bytes of the listing"):
        run(step)


@pytest.mark.parametrize("moment", ["after a break", "after the last byte"])
def test_a_file_that_is_replaced_while_it_is_fetched_is_refused(
    flaky: type[FlakyFileSystem], tmp_path: Path, moment: str
) -> None:
    (listed,) = list_source("flaky://shelf", [], [])

    def replace(*_: object) -> None:
        flaky.etag = "v2"
        flaky().pipe("/shelf/a.txt", b"9876543210" * 5)

    if moment == "after a break":
        flaky.broken = [ConnectionResetError("gone"), None]
    with patch.object(transfer.time, "sleep", replace), pytest.raises(ChangedInputError, match=CHANGED):
        fetch(listed, tmp_path, lambda done: replace() if done == 50 else None)
    assert not list(tmp_path.iterdir()), "nothing of two files is kept"


@pytest.mark.parametrize("broken", [[], [TimeoutError("slow"), ConnectionResetError("gone"), None]])
def test_where_the_store_has_no_checksums_the_content_is_compared(
    flaky: type[FlakyFileSystem], tmp_path: Path, broken: list[Exception | None]
) -> None:
    flaky.etag = ""
    (listed,) = list_source("flaky://shelf", [], [])
    assert listed.checksum == xxh3(b"0123456789" * 5)
    flaky.broken = list(broken)
    assert fetch(listed, tmp_path).xxh3 == listed.checksum
    flaky().pipe("/shelf/a.txt", b"9876543210" * 5)
    flaky.broken = list(broken)
    with pytest.raises(ChangedInputError, match=r"a\.txt: it has changed since it was listed"):
        fetch(listed, tmp_path / "another")
    assert not list((tmp_path / "another").iterdir())


def test_a_store_without_checksums_is_read_to_hash(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/plain/a.txt", b"content")
    files = list_source("memory://plain", [], [])
    assert files == [SourceFile("a.txt", 7, xxh3(b"content"))]
    fsspec.filesystem("memory").rm("/plain", recursive=True)
    with pytest.raises(NoInputError, match="empty or not there; check the URL and the credentials"):
        list_source("memory://plain", [], [])


def test_from_an_object_store_to_an_object_store(tree: Path) -> None:
    with s3_root() as root:
        for file in list_source(str(tree), [], []):
            file_system, path = urls.filesystem(urls.join(root, "source", file.path))
            file_system.pipe_file(path, (tree / file.path).read_bytes())
        url = urls.join(root, "source")
        assert [file.path for file in list_source(f"{url}/b/*.jsonl", [], [])] == ["c.jsonl"]
        assert [file.path for file in list_source(f"{url}/a.jsonl", [], [])] == ["a.jsonl"]
        assert all(len(file.checksum) == 32 for file in list_source(url, [], []))
        output = run(step_for(url, urls.join(root, "step")))
        assert [part.path for part in output.partitions] == ["a.jsonl", "b/c.jsonl", "b/d/e.txt", "b/d/h.jsonl.gz"]
        for part in output.partitions:
            assert urls.read_bytes(urls.join(root, "step/raw", part.path)) == (tree / part.path).read_bytes()
            assert part.xxh3 == xxh3((tree / part.path).read_bytes())
