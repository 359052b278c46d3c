"""Messages about a record of JSON Lines name its line beside its offset."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from datakit.engine.task import Tolerance
from datakit.normalize.config import Config
from datakit.normalize.readers import line_chunks, line_numbers
from datakit.normalize.readers.base import ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.json import read_json
from datakit.normalize.record_counts import RecordCounts

LINES = st.lists(st.sampled_from([b'{"text": "good"}', b"bad", b"", b"[5]", b"\xff", b"x" * 90]), max_size=40)


def named(folder: Path, name: str, start: int = 0, stop: int | None = None) -> list[tuple[int, int | None]]:
    """(offset, line number) of each unusable record; lines above 64 bytes are too long."""
    counts = RecordCounts(Tolerance(1000))
    with patch.object(line_chunks, "CHUNK_BYTES", 64), patch.object(line_numbers, "BLOCK_BYTES", 7):
        for _ in read_json(ReadContext(Inputs(str(folder)), Config(max_document_bytes=64), counts), name, start, stop):
            pass
    found = [(record.position, re.search(r" \(line (\d+)\)$", record.reason)) for record in counts.quarantined]
    return sorted((position, int(match[1]) if match else None) for position, match in found)


@given(lines=LINES, cut=st.integers(0, 400))
def test_line_is_that_of_the_offset(tmp_path_factory, lines: list[bytes], cut: int) -> None:
    folder, data = tmp_path_factory.mktemp("in"), b"\n".join(lines)
    (folder / "in.jsonl").write_bytes(data)
    (folder / "in.jsonl.gz").write_bytes(gzip.compress(data))
    whole = named(folder, "in.jsonl")
    assert [(place, data[:place].count(b"\n") + 1) for place, _ in whole] == whole
    assert whole == named(folder, "in.jsonl.gz")
    parts = named(folder, "in.jsonl", 0, cut) + named(folder, "in.jsonl", cut) if 0 < cut < len(data) else whole
    assert sorted(parts) == whole, "a task that reads the second part of a file counts the lines of the first"


def test_lines_far_into_a_file_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "good"}\n' * 20 + b"bad\n")
    with patch.object(line_numbers, "MOST_BYTES", 100):
        assert named(tmp_path, "in.jsonl", 200) == [(340, None)]
