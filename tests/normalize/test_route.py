"""Routing: samples, text rules and limits, applied to records and counted."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard

from datakit.engine.exchange import exchange
from datakit.normalize import route
from datakit.normalize.readers import line_chunks, streams
from datakit.storage import removal
from tests.support.normalize.sources import check_contract, normalize, write_lines


def test_sample_is_selected_by_id(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"text": f"document {n}"} for n in range(2000)))
    everything = normalize(tmp_path / "all", tmp_path / "in.jsonl")
    some = normalize(tmp_path / "some", tmp_path / "in.jsonl", sample=0.25)
    check_contract(some)
    quarter = [row["id"] for row in everything.rows() if int(row["id"][16:], 16) < 1 << 62]
    assert [row["id"] for row in some.rows()] == quarter
    assert some["sample_dropped"] == 2000 - len(quarter)


def test_sample_fills_partitions_evenly(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"text": f"document {n} {'x' * 40}"} for n in range(8000)))
    some = normalize(tmp_path, tmp_path / "in.jsonl", sample=0.05, partition_bytes=8000)
    check_contract(some)
    rows = [partition.rows for partition in some.manifest.partitions]
    assert len(rows) == 4
    assert min(rows) > sum(rows) / len(rows) / 2, "a sample by the bits that choose the partition leaves some empty"


def test_text_rules_are_applied_and_counted(tmp_path: Path) -> None:
    lines = [
        b'{"text": "a\\u0000b"}',
        b'{"text": "one' + b" " * 200 + b'two"}',
        b'{"text": "caf\xe9"}',
        b'{"text": "\\ud800"}',
        '{"text": "\u2003\u00a0"}'.encode(),
        b'{"text": "plain"}',
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    result = normalize(tmp_path, tmp_path / "in.jsonl")
    assert {row["text"] for row in result.rows()} == {"ab", "one" + " " * 128 + "two", "caf\ufffd", "\ufffd", "plain"}
    counted = {name: result[name] for name in ("nul", "whitespace_runs", "invalid_utf8", "blank")}
    assert counted == {"nul": 1, "whitespace_runs": 1, "invalid_utf8": 2, "blank": 1}
    check_contract(result)


def test_missing_texts_are_counted_apart_from_blank_ones(tmp_path: Path) -> None:
    """A null or an absent text is missing; an empty or white one is blank."""
    texts = [{"text": text} for text in (None, "", " \n", "\0", "a")]
    write_lines(tmp_path / "in.jsonl", {"x": 1}, *texts)
    result = normalize(tmp_path, tmp_path / "in.jsonl")
    assert (result["missing"], result["blank"], result["records_out"]) == (2, 3, 1)
    check_contract(result)
    pq.write_table(pa.table({"text": pa.array([None, "", "b"]), "n": [1, 2, 3]}), tmp_path / "in.parquet")
    result = normalize(tmp_path / "2", tmp_path / "in.parquet")
    assert (result["missing"], result["blank"]) == (1, 1)


def test_overlong_documents_are_quarantined(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "short"}, {"text": "x" * 101}, {"text": "y" * 100})
    result = normalize(tmp_path, tmp_path / "in.jsonl", max_document_bytes=100, max_quarantined=1)
    assert sorted(len(row["text"]) for row in result.rows()) == [5, 100]
    assert result.quarantined() == [("in.jsonl", 18)]
    check_contract(result)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, compresslevel=0),  # stored, so that only the checksum reveals a changed byte
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
SMALL_READS: dict[str, Any] = {"INPUT_BYTES": 1 << 10, "ZSTD_INPUT_BYTES": 1 << 10, "OUTPUT_BYTES": 4096}


def json_lines(first: int, count: int) -> bytes:
    records = ({"text": f"{n}: {xxhash.xxh3_128_hexdigest(b'%d' % n) * 4}"} for n in range(first, first + count))
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.999])
def test_nothing_of_a_damaged_stream_is_published(tmp_path: Path, suffix: str, share: float) -> None:
    """Runs are small, so that most would be committed before the damage is noticed."""
    pack, good = PACKERS[suffix], json_lines(0, 500)
    packed = bytearray(pack(json_lines(500, 3000)))
    packed[int((len(packed) - 1) * share)] ^= 0x10
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a.jsonl.{suffix}").write_bytes(pack(good) + bytes(packed) + pack(json_lines(4000, 10)))
    (tmp_path / "in" / "b.jsonl").write_bytes(json_lines(5000, 20))
    small = patch.multiple(streams, **SMALL_READS)
    with small, patch.object(line_chunks, "CHUNK_BYTES", 4096), patch.object(route, "BUDGET_BYTES", 9_000):
        result = normalize(tmp_path, tmp_path / "in", max_quarantined=1)
    kept = sorted(int(row["text"].partition(":")[0]) for row in result.rows())
    assert kept == [*range(500), *range(5000, 5020)]
    assert result.quarantined() == [(f"a.jsonl.{suffix}", len(good))]
    assert not list(tmp_path.rglob(".tmp-*"))
    check_contract(result)


def test_bad_records_of_a_damaged_stream_do_not_count(tmp_path: Path) -> None:
    """All lines of the damaged stream are bad, but only the stream as a whole is quarantined."""
    packed = gzip.compress(json_lines(0, 10)) + gzip.compress(b"not a record\n" * 100_000)[:-8] + bytes(8)
    (tmp_path / "in.jsonl.gz").write_bytes(packed)
    result = normalize(tmp_path, tmp_path / "in.jsonl.gz", max_quarantined=1)
    assert result.manifest.totals.rows == 10
    assert result.quarantined() == [("in.jsonl.gz", len(json_lines(0, 10)))]


def test_every_damaged_file_of_a_slice_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(8):
        packed = gzip.compress(json_lines(1000 * number, 1000), compresslevel=0)
        (tmp_path / "in" / f"{number}.jsonl.gz").write_bytes(packed[:-8] + bytes(8) if number % 2 else packed)
    with patch.object(streams, "OUTPUT_BYTES", 4096), patch.object(route, "_route", wraps=route._route) as routed:
        result = normalize(tmp_path, tmp_path / "in", max_quarantined=4)
    assert routed.call_count == 2
    assert result.manifest.totals.rows == 4000
    assert result.quarantined() == [(f"{number}.jsonl.gz", 0) for number in (1, 3, 5, 7)]


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("damaged", [False, True])
def test_runs_of_a_stream_do_not_fill_the_temporary_directory(tmp_path: Path, suffix: str, damaged: bool) -> None:
    """In an object store, runs are committed before a stream ends, once the rest of it was read ahead."""
    packed = bytearray(PACKERS[suffix](json_lines(500, 3000)))
    if damaged:
        packed[int(len(packed) * 0.9)] ^= 0x10
    (tmp_path / f"in.jsonl.{suffix}").write_bytes(PACKERS[suffix](json_lines(0, 500)) + bytes(packed))
    staged: list[int] = []
    measure = exchange.ExchangeWriter._staged_bytes

    def measured(writer: exchange.ExchangeWriter) -> int:
        staged.append(measure(writer))
        return staged[-1]

    small = patch.multiple(streams, **SMALL_READS)
    limits = (patch.object(exchange, "STAGED_BYTES", 40_000), patch.object(route, "BUDGET_BYTES", 9_000))
    chunks = patch.object(line_chunks, "CHUNK_BYTES", 4096)
    watch = patch.object(exchange.ExchangeWriter, "_staged_bytes", measured)
    root = f"memory://staged-{suffix}-{damaged}"
    try:
        with small, limits[0], limits[1], chunks, watch:
            result = normalize(root, tmp_path / f"in.jsonl.{suffix}", max_quarantined=1)
        assert result.manifest.totals.rows == (500 if damaged else 3500)
        assert 40_000 < max(staged) < 60_000
        assert 1 <= sum(size > 40_000 for size in staged) <= 1 + damaged, "each pass reads the file ahead once"
    finally:
        removal.remove_tree(root)
