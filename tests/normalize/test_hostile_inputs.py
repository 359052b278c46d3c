"""Hostile inputs: nothing crashes, hangs or is lost uncounted, and each error names its file."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from datakit.errors import EmptyStageError, PartialError
from datakit.printable import one_line
from tests.support.data import need_data
from tests.support.normalize.hostile_table import BY_FILE, TABLE
from tests.support.normalize.sources import normalize, write_lines

TOLERATED = 10_000


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated hostile files."""
    return write_hostile(tmp_path_factory.mktemp("hostile"))


def write_hostile(folder: Path, *options: str) -> Path:
    """Write the hostile files to a folder."""
    script = need_data() / "pathological" / "mk_pathological.py"
    with patch.object(sys, "argv", [str(script), str(folder), *options]):
        runpy.run_path(str(script), run_name="__main__")
    return folder


SLOW = ("bomb.jsonl.gz", "many_row_groups.parquet")
ADDED = ("missing", "blank", "duplicates", "quarantined")
CUT_AT_LEAST = 1000  # records before the cut; how many exactly depends on the library that compressed them


def beside_a_sound_file(tmp_path: Path, hostile: Path, file: str) -> Path:
    """A folder with the hostile file and a sound one."""
    folder = tmp_path / "in"
    folder.mkdir()
    if file.endswith("/"):
        shutil.copytree(hostile / file, folder / file)
    else:
        (folder / file).write_bytes((hostile / file).read_bytes())
    write_lines(folder / "sound.jsonl", {"id": "sound", "text": "A sound file."})
    return folder


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=pytest.mark.soak) if file in SLOW else file for file in BY_FILE]
)
def test_outcome_is_the_one_in_the_table(tmp_path: Path, hostile: Path, file: str) -> None:
    """Every record is kept, or counted under the reason why it was not; or the file is refused by name."""
    row, folder = BY_FILE[file], beside_a_sound_file(tmp_path, hostile, file)
    if row.refused is not None:
        error, words = row.refused
        with pytest.raises(error, match=re.escape(one_line(file)) + ".*" + re.escape(words)):
            normalize(tmp_path / "out", folder, max_quarantined=TOLERATED)
        assert not list((tmp_path / "out").glob("normalize/**/*.parquet")), "no partial file is visible"
        return
    result = normalize(tmp_path / "out", folder, max_quarantined=TOLERATED)
    counted = {name.removeprefix("normalize/"): count for name, count in result.manifest.counters.items() if count}
    assert {name: counted[name] for name in counted if not name.startswith(("records", "download"))} == row.counted
    kept, present = result.manifest.totals.rows - 1, result["records_in"] - 1
    assert present == kept + sum(row.counted.get(name, 0) for name in ADDED)
    if row.present is None:
        assert kept > CUT_AT_LEAST
    else:
        assert (kept, present) == (row.kept, row.present)
    assert all(document["text"] != "None" for document in result.rows())
    assert {name for name, _ in result.quarantined()} <= {file}
    if "quarantined" in row.counted:
        with pytest.raises(PartialError, match=f"{re.escape(one_line(file))}:[0-9]+: "):
            normalize(tmp_path / "strict", folder)


def test_every_row_of_the_manifest_is_in_the_table(hostile: Path) -> None:
    rows = [line.split("\t") for line in (hostile / "manifest.tsv").read_text().splitlines()[1:]]
    assert {file: expectation for file, _, _, expectation in rows} == {row.file: row.expectation for row in TABLE}
    assert len(rows) == 74
    assert {path.name for path in hostile.iterdir() if path.is_file()} == {
        "manifest.tsv", *(file for file in BY_FILE if not file.endswith("/")),
    }  # fmt: skip


@pytest.mark.parametrize("file", ["empty.jsonl", "only_newlines.jsonl", "empty_stream.jsonl.gz", "zero_rows.parquet"])
def test_source_without_any_document_is_an_error(tmp_path: Path, hostile: Path, file: str) -> None:
    with pytest.raises(EmptyStageError, match=r"became a document \(the source is empty\)"):
        normalize(tmp_path, hostile / file, max_quarantined=TOLERATED)


def test_bomb_is_skipped_at_the_limit(tmp_path: Path, hostile: Path) -> None:
    """64 MiB in one compressed line."""
    result = normalize(tmp_path, hostile / "bomb.jsonl.gz", max_quarantined=1, max_document_bytes=8 << 20)
    assert (result.manifest.totals.rows, result["records_in"]) == (5, 6)
    assert result.quarantined() == [("bomb.jsonl.gz", 0)]


BIG = {  # file: (documents, quarantined, duplicates)
    "BIG_whitespace_64mb.jsonl": (5, 0, 0),
    "BIG_line_512mb.jsonl.gz": (5, 1, 0),
    "BIG_lines_5m.jsonl.gz": (1, 0, 4_999_999),
}
NORMALIZE_ONE = """
import re, sys
from tests.support.normalize.sources import normalize

result = normalize(sys.argv[1], sys.argv[2], max_quarantined=1)
# not `ru_maxrss`, which includes the memory of the process that started this one
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) << 10
names = ("quarantined", "duplicates", "records_in", "blank")
print(result.manifest.totals.rows, *(result[name] for name in names), peak)
"""
MOST_MEMORY = 1 << 30  # what a routing task may use; the longest line has 384 MiB


@pytest.mark.soak
def test_big_files_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """In a process each, whose largest size is measured."""
    write_hostile(tmp_path / "big", "--big")
    for file, (documents, quarantined, duplicates) in BIG.items():
        command = [sys.executable, "-c", NORMALIZE_ONE, str(tmp_path / f"out-{file}"), str(tmp_path / "big" / file)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        *counts, records, blank, peak = map(int, done.stdout.split())
        assert counts == [documents, quarantined, duplicates], file
        assert records == sum(counts) + blank, file
        assert peak < MOST_MEMORY, (file, peak)


NORMALIZE_ALL = """
import sys
from datakit.errors import ColumnError, EmptyStageError
from tests.support.normalize.sources import normalize

for number, file in enumerate(sys.argv[2:]):
    try:
        normalize(f"{sys.argv[1]}/{number}", file, max_quarantined=2000)
        print("nothing was raised", flush=True)
    except (ColumnError, EmptyStageError) as error:
        print(type(error).__name__, " ".join(str(error).split()), flush=True)
"""
BAD_PARQUET = (
    "PARQUET-1481", "ARROW-RS-GH-6229-DICTHEADER", "ARROW-RS-GH-6229-LEVELS", "ARROW-GH-41317", "ARROW-GH-41321",
    "ARROW-GH-43605", "ARROW-GH-45185", "ARROW-GH-47662",
)  # fmt: skip


def test_corrupt_parquet_files_crash_nothing(tmp_path: Path) -> None:
    """In another process, since these files have crashed readers."""
    folder = need_data() / "pathological" / "parquet-bad_data"
    files = [str(folder / f"{name}.parquet") for name in BAD_PARQUET]
    command = [sys.executable, "-c", NORMALIZE_ALL, str(tmp_path), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcomes = done.stdout.splitlines()
    assert done.returncode == 0 and len(outcomes) == len(BAD_PARQUET), done.stderr
    for name, outcome in zip(BAD_PARQUET, outcomes, strict=True):
        assert outcome.startswith(("EmptyStageError", "ColumnError")), outcome
        assert f"{name}.parquet" in outcome or "quarantined" in outcome
