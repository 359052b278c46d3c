"""A file that cannot be read is a difference of that file, and hides no other damage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.errors import StorageError, UnreadableError
from datakit.storage import atomic
from datakit.validate.finding import Result
from datakit.validate.inside.described import DescribedFile
from datakit.validate.inside.files import compare_files
from datakit.validate.validation import validate
from tests.support.caches import make_cache
from tests.support.commands import run_command, run_json
from tests.support.partitions import words
from tests.support.small_shelf import step

FILES = ("tokenizer.json", "data/laws/shard-00000.lengths", "data/novels/shard-00001.docs.parquet")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cache(tmp_path_factory.mktemp("made"), {"novels": [*words(1, 60)], "laws": words(2, 30)}, bits=1)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("replace", [Path.mkdir, link_to_itself, os.mkfifo])
def test_file_that_is_no_file_hides_no_other_damage(
    cache: Path, tmp_path: Path, replace: Callable[[Path], object], file: str
) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "copy"))
    (copy / file).unlink()
    replace(copy / file)
    (other := copy / "data/laws/shard-00000.docs.parquet").unlink()
    found = {one.url: one.difference for one in validate(str(copy)).findings}
    assert found.keys() - {str(copy)} == {str(copy / file), str(other)}, "a link to itself prevents the listing"
    assert found[str(copy / file)].startswith("cannot be read: ") and found[str(other)].startswith("is missing")


def test_failing_store_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(url: str) -> tuple[str, int]:
        raise StorageError(f"cannot read {url}: the store does not answer")

    monkeypatch.setattr(atomic, "hash_url", unreachable)
    with pytest.raises(StorageError, match="does not answer"):
        compare_files([DescribedFile("s3://bucket/file", 1, "0" * 32)])
    (found,) = compare_files([DescribedFile("/local/file", 1, "0" * 32)])[1]
    assert "does not answer" in found.difference


def test_reading_says_why_a_file_is_unreadable() -> None:
    result = Result("check")
    with result.reading("/place"):
        raise UnreadableError("/place is a named pipe")
    assert [one.difference for one in result.findings] == ["cannot be used: /place is a named pipe"]


def test_source_that_is_read_in_place_is_not_compared(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    download = step(finished / "root", "sources/novels/download-*")
    checks = {one["check"]: one for one in run_json(capsys, "validate", str(download))["steps"][0]["checks"]}
    assert checks["files"]["skipped"] == ["the step holds no files: its source is read in place"]
    _, out, _ = run_command(capsys, "validate", str(download))
    (row,) = [line.split() for line in out.splitlines() if line.startswith("files ")]
    assert row[-1] == "-"
