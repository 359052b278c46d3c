"""Files that are documents."""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.support.normalize.sources import check_contract, normalize


def test_each_file_is_a_document(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deep").mkdir(parents=True)
    (source / "a.md").write_text("# A\n")
    (source / "deep" / "b.py").write_bytes(b"\xef\xbb\xbfprint()\r\n")
    (source / "c.txt").write_bytes(b"caf\xe9")
    (source / "empty.txt").write_bytes(b"")
    (source / "d.txt.gz").write_bytes(gzip.compress(b"packed"))
    result = normalize(tmp_path, source)
    assert {row["source_id"]: row["text"] for row in result.rows()} == {
        "a.md": "# A\n", "deep/b.py": "print()\r\n", "c.txt": "caf\ufffd", "d.txt.gz": "packed",
    }  # fmt: skip
    assert result["blank"] == 1 and result["invalid_utf8"] == 1
    check_contract(result)


DUMP = b"<?xml version='1.0'?>\n<mediawiki xml:lang='en'>\n  <page><title>A</title></page>\n</mediawiki>\n"


def test_a_dump_of_a_wiki_is_not_one_document(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "dump.xml").write_bytes(DUMP)
    (source / "list.xml").write_bytes(b"<feed><mediawiki/></feed>")
    result = normalize(tmp_path, source, max_quarantined=1)
    assert [row["source_id"] for row in result.rows()] == ["list.xml"]
    assert result.quarantined() == [("dump.xml", 0)]
    (lost,) = (record for task in result.results for record in task.quarantined)
    assert 'format = "mediawiki"' in lost.reason


def test_a_dump_is_one_document_on_demand(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "dump.xml").write_bytes(DUMP)
    (row,) = normalize(tmp_path, source, format="text").rows()
    assert row["text"] == DUMP.decode()
