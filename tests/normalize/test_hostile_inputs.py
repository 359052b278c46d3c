"""Hostile inputs: nothing crashes, hangs or is lost uncounted, and each error names its file."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from datakit.errors import ColumnError, EmptyStageError, InputError, PartialError, UnreadableError
from tests.support.data import need_data
from tests.support.normalize.sources import Normalized, normalize

TOLERATED = 10_000


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated hostile files."""
    script = need_data() / "pathological" / "mk_pathological.py"
    folder = tmp_path_factory.mktemp("hostile")
    with patch.object(sys, "argv", [str(script), str(folder)]):
        runpy.run_path(str(script), run_name="__main__")
    return folder


# file -> rows written, and counters above zero other than records_in and records_out
OUTCOMES: dict[str, tuple[int, dict[str, int]]] = {
    "ok.jsonl": (5, {}),
    "no_final_newline.jsonl": (5, {}),
    "crlf.jsonl": (5, {}),
    "bom.jsonl": (5, {}),
    "latin1.jsonl": (6, {"invalid_utf8": 1}),
    "utf8_truncated_seq.jsonl": (6, {"invalid_utf8": 1}),
    "utf8_overlong.jsonl": (6, {"invalid_utf8": 1}),
    "utf8_surrogate_bytes.jsonl": (6, {"invalid_utf8": 1}),
    "utf8_beyond_10ffff.jsonl": (6, {"invalid_utf8": 1}),
    "utf8_lone_cont.jsonl": (6, {"invalid_utf8": 1}),
    "utf8_ff_fe.jsonl": (6, {"invalid_utf8": 1}),
    "lone_surrogate_escape.jsonl": (7, {"invalid_utf8": 2, "duplicates": 1}),
    "nul.jsonl": (6, {"nul": 1, "quarantined": 1}),
    "control_chars.jsonl": (5, {"quarantined": 1}),
    "wrong_types.jsonl": (6, {"quarantined": 6, "missing": 2}),
    "dup_keys.jsonl": (6, {}),
    "nan_inf.jsonl": (6, {"duplicates": 1}),
    "huge_numbers.jsonl": (6, {}),
    "half_line.jsonl": (5, {"quarantined": 1}),
    "garbage_between.jsonl": (5, {"quarantined": 1, "duplicates": 5}),
    "dup_ids.jsonl": (5, {"duplicates": 5}),
    "empty_texts.jsonl": (6, {"blank": 4}),
    "one_char.jsonl": (26, {"duplicates": 2974}),
    "deep_json.jsonl": (5, {"quarantined": 1}),
    "long_key.jsonl": (6, {}),
    "no_spaces_1mb.jsonl": (8, {}),
    "whitespace_1mb.jsonl": (6, {"blank": 4, "whitespace_runs": 1}),
    "punct_1mb.jsonl": (10, {}),
    "bidi_zalgo.jsonl": (8, {}),
    "special_tokens.jsonl": (7, {}),
    "ok.jsonl.gz": (5, {}),
    "concat.jsonl.gz": (6, {}),
    "zero_padded.jsonl.gz": (5, {}),
    "trailing_garbage.jsonl.gz": (5, {"quarantined": 1}),
    "no_trailer.jsonl.gz": (5000, {"quarantined": 1}),
    "bomb.jsonl.gz": (6, {}),
    "ok.jsonl.zst": (5, {}),
    "concat.jsonl.zst": (6, {}),
    "skippable.jsonl.zst": (5, {}),
    "long_window.jsonl.zst": (5, {}),
    "ok.parquet": (5, {}),
    "nulls.parquet": (2, {"missing": 2, "blank": 1}),
    "text_is_binary.parquet": (5, {"invalid_utf8": 1}),
    "large_string_dict.parquet": (5, {}),
    "many_row_groups.parquet": (2000, {}),
    "zero_columns_nested.parquet": (5, {}),
    "name with spaces & ünïcödé 🙂.jsonl": (5, {}),
    "-dash.jsonl": (5, {}),
    "new\nline.jsonl": (5, {}),
}


REFUSED: dict[str, tuple[type[InputError], str]] = {
    "cr_only.jsonl": (EmptyStageError, "1 quarantined"),
    "utf16le.jsonl": (UnreadableError, "UTF-16"),
    "not_gzip.jsonl.gz": (UnreadableError, "not a gzip file"),
    "gz_named_plain.jsonl": (UnreadableError, "contains gzip data"),
    "empty.jsonl.gz": (UnreadableError, "is empty"),
    "bad_crc.jsonl.gz": (EmptyStageError, "damaged"),
    "bad_checksum.jsonl.zst": (EmptyStageError, "damaged"),
    "bitflip.jsonl.gz": (EmptyStageError, "damaged"),
    "bitflip.jsonl.zst": (EmptyStageError, "damaged"),
    "empty.jsonl": (EmptyStageError, "became a document (the source is empty)"),
    "only_newlines.jsonl": (EmptyStageError, "became a document (the source is empty)"),
    "empty_stream.jsonl.gz": (EmptyStageError, "became a document (the source is empty)"),
    "zero_rows.parquet": (EmptyStageError, "became a document (the source is empty)"),
    "no_text_column.parquet": (ColumnError, "has no column 'text'; it has id, content"),
    "text_is_int.parquet": (ColumnError, "int64, not text"),
    "list_text.parquet": (ColumnError, "list<"),
    "truncated.parquet": (EmptyStageError, "footer"),
    "bad_magic.parquet": (UnreadableError, "not a parquet file"),
    "empty.parquet": (UnreadableError, "is empty"),
    "tiny.parquet": (EmptyStageError, "footer"),
    "footer_len_huge.parquet": (EmptyStageError, "footer"),
}


CUT = ("truncated.jsonl.gz", "truncated.jsonl.zst")


def check_conserved(result: Normalized) -> None:
    gone = sum(result[name] for name in ("missing", "blank", "duplicates", "quarantined"))
    assert result["records_in"] == result["records_out"] + gone


SLOW = ("bomb.jsonl.gz", "many_row_groups.parquet")


def test_bomb_is_skipped_at_the_limit(tmp_path: Path, hostile: Path) -> None:
    """64 MiB in one compressed line; `test_readable_content_is_read` reads it within the default limit."""
    result = normalize(tmp_path, hostile / "bomb.jsonl.gz", max_quarantined=1, max_document_bytes=8 << 20)
    assert result.manifest.totals.rows == 5
    assert result.quarantined() == [("bomb.jsonl.gz", 0)]
    check_conserved(result)


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=pytest.mark.soak) if file in SLOW else file for file in OUTCOMES]
)
def test_readable_content_is_read(tmp_path: Path, hostile: Path, file: str) -> None:
    rows, counted = OUTCOMES[file]
    result = normalize(tmp_path, hostile / file, max_quarantined=TOLERATED)
    assert result.manifest.totals.rows == rows
    counters = {name.removeprefix("normalize/"): count for name, count in result.manifest.counters.items() if count}
    assert {name: counters[name] for name in counters if not name.startswith(("records", "download"))} == counted
    assert all(row["text"] != "None" for row in result.rows())
    check_conserved(result)


@pytest.mark.parametrize("file", REFUSED)
def test_unreadable_file_is_refused_by_name(tmp_path: Path, hostile: Path, file: str) -> None:
    error, words = REFUSED[file]
    with pytest.raises(error) as caught:
        normalize(tmp_path, hostile / file, max_quarantined=TOLERATED)
    assert words in str(caught.value)
    assert not list(tmp_path.glob("normalize/**/*.parquet")), "no partial file is visible"


@pytest.mark.parametrize("file", CUT)
def test_truncated_stream_keeps_earlier_records(tmp_path: Path, hostile: Path, file: str) -> None:
    with pytest.raises(PartialError, match=f"{file}:[0-9]+: "):
        normalize(tmp_path / "strict", hostile / file)
    result = normalize(tmp_path / "tolerant", hostile / file, max_quarantined=TOLERATED)
    assert result.manifest.totals.rows > 1000
    assert result["quarantined"] >= 1
    check_conserved(result)


def test_flipped_bit_without_checksum_is_survived(tmp_path: Path, hostile: Path) -> None:
    """Parquet pages need no checksums; without them, whatever decodes is accepted."""
    result = normalize(tmp_path, hostile / "bitflip.parquet", max_quarantined=TOLERATED)
    check_conserved(result)


def test_every_hostile_file_has_an_expectation(hostile: Path) -> None:
    known = {*OUTCOMES, *REFUSED, *CUT, "bitflip.parquet", "manifest.tsv"}
    assert {path.name for path in hostile.iterdir() if path.is_file()} == known


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
