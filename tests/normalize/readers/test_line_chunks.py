"""Cutting a stream into chunks of whole lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.normalize.readers import line_chunks
from datakit.normalize.readers.line_chunks import LineCutter
from tests.support.normalize.readers import RECORDS, lines, read, reasons, rows


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"bcd", b"e" * 20, b"\r\n"]), max_size=60).map(b"".join),
    chunk=st.integers(1, 30),
    block=st.integers(4, 24),
    cut=st.integers(1, 40),
)
def test_chunks_do_not_depend_on_read_sizes(data: bytes, chunk: int, block: int, cut: int) -> None:
    """Ranges of a file give each of its lines once, in chunks that do not depend on the size of reads."""

    def blocks_of(start: int, stop: int | None, size: int) -> list[tuple[int, bytes]]:
        def pieces(position: int) -> Iterator[bytes]:
            yield from (data[i : i + size] for i in range(position, len(data), size))

        cutter = LineCutter(max(0, start - 1), stop, 1000, lambda _: None, inside=start > 0)
        return list(cutter.chunks(pieces(cutter.position)))

    with patch.object(line_chunks, "CHUNK_BYTES", block):
        ranges = [(start, start + cut) for start in range(0, max(1, len(data)), cut)]
        found = [piece for start, stop in ranges for piece in blocks_of(start, stop, chunk)]
        assert found == [piece for start, stop in ranges for piece in blocks_of(start, stop, 1000)]
    assert b"".join(piece for _, piece in found) == data
    assert all(data[offset : offset + len(piece)] == piece for offset, piece in found)
    assert all(offset == 0 or data[offset - 1 : offset] == b"\n" for offset, _ in found)


def test_overlong_line_is_skipped(tmp_path: Path) -> None:
    with patch.object(line_chunks, "CHUNK_BYTES", 1000), patch("datakit.normalize.readers.streams.OUTPUT_BYTES", 100):
        for length in (1990, 2001, 50_000):
            middle = json.dumps({"text": "x" * (length - 12)}).encode() + b"\n"
            (tmp_path / "in.jsonl").write_bytes(lines(RECORDS[:3]) + middle + lines(RECORDS[3:6]))
            found, counts = read(tmp_path, "in.jsonl", max_document_bytes=2000)
            reason = "longer than max_document_bytes (2000) (line 4)"
            expected = [] if length == 1990 else [(len(lines(RECORDS[:3])), reason)]
            assert reasons(counts) == expected
            assert [row["text"] for row in rows(found) if row.get("id")] == [record["text"] for record in RECORDS[:6]]
