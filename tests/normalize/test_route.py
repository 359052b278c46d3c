"""Routing: samples, text rules and limits, applied to records and counted."""

from __future__ import annotations

from pathlib import Path

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
    some = normalize(tmp_path, tmp_path / "in.jsonl", sample=0.05, partition_bytes=6000)
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


def test_overlong_documents_are_quarantined(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "short"}, {"text": "x" * 101}, {"text": "y" * 100})
    result = normalize(tmp_path, tmp_path / "in.jsonl", max_document_bytes=100, max_quarantined=1)
    assert sorted(len(row["text"]) for row in result.rows()) == [5, 100]
    assert result.quarantined() == [("in.jsonl", 18)]
    check_contract(result)
