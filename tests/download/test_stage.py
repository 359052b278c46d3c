"""The download stage: local files in place, remote files copied."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import fsspec
import pytest
from xxhash import xxh3_128_hexdigest as xxh3

from datakit.download.stage import files_base
from datakit.storage import urls
from tests.support.normalize.sources import download, download_step, list_source, run_download
from tests.support.s3 import s3_root

NewRoot = Callable[[], AbstractContextManager[str]]


def test_local_files_are_read_in_place(tree: Path, tmp_path: Path) -> None:
    upstream = download(tmp_path, str(tree))
    assert [part.path for part in upstream.manifest.partitions] == [
        "a.jsonl", "b/c.jsonl", "b/d/e.txt", "b/d/h.jsonl.gz",
    ]  # fmt: skip
    assert upstream.manifest.partitions[0].xxh3 == xxh3(b"a.jsonl")
    assert str(tree) not in (tmp_path / "download/manifest.json").read_text(), "moved data keeps its identity"
    assert os.listdir(tmp_path / "download") == ["manifest.json"]
    assert files_base(str(tree), upstream.directory) == str(tree)


@contextmanager
def memory_root() -> Iterator[str]:
    yield "memory://download-test"
    fsspec.filesystem("memory").rm("/download-test", recursive=True)


@pytest.mark.parametrize("new_root", [memory_root, pytest.param(s3_root, marks=pytest.mark.soak)])
def test_object_store_is_copied_to_object_store(
    tree: Path, new_root: Callable[[], AbstractContextManager[str]]
) -> None:
    with new_root() as root:
        for file in list_source(str(tree), [], []):
            file_system, path = urls.filesystem(urls.join(root, "source", file.path))
            file_system.pipe_file(path, (tree / file.path).read_bytes())
        url = urls.join(root, "source")
        assert [file.path for file in list_source(f"{url}/b/*.jsonl", [], [])] == ["c.jsonl"]
        assert [file.path for file in list_source(f"{url}/a.jsonl", [], [])] == ["a.jsonl"]
        assert all(len(file.checksum) == 32 for file in list_source(url, [], []))
        output = run_download(download_step(url, urls.join(root, "step")))
        assert [part.path for part in output.partitions] == ["a.jsonl", "b/c.jsonl", "b/d/e.txt", "b/d/h.jsonl.gz"]
        for part in output.partitions:
            assert urls.read_bytes(urls.join(root, "step/raw", part.path)) == (tree / part.path).read_bytes()
            assert part.xxh3 == xxh3((tree / part.path).read_bytes())
