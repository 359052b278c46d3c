"""Large web archives are cut into slices, which are read as the whole file would be."""

from __future__ import annotations

import gzip
from pathlib import Path
from unittest.mock import patch

import pytest

from datakit.normalize.archives import index
from datakit.normalize.readers import slices
from tests.support.normalize.sources import Normalized, check_contract, normalize
from tests.support.normalize.web_archives import page, response, warc_record, write_archive

SMALL = 20_000


def pages(count: int) -> list[bytes]:
    """Records of pages and requests, with broken ones among them."""
    found = []
    for number in range(count):
        found += [
            warc_record(b"GET / HTTP/1.1\r\n\r\n", "request", number),
            response(page(f"Page {number}. " * 40), number),
        ]
        found += [warc_record(b"lost", length=999_999)] if number % 17 == 5 else []
        found += (
            [response(page(f"lost {number}"), number, WARC_Block_Digest="sha1:" + "B" * 32)] if number % 23 == 7 else []
        )
    return found


def small_normalize(root: Path, source: Path) -> Normalized:
    with (
        patch.object(slices, "SLICE_BYTES", SMALL),
        patch.object(index, "SLICE_BYTES", SMALL),
        patch.object(index, "EXPANSION", 50),
    ):
        return normalize(root, source, max_quarantined=100)


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
def test_slices_give_the_bytes_of_the_whole_file(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "in" / f"a.warc{compression}"
    places = write_archive(path, pages(120))
    if compression:
        whole = bytearray(path.read_bytes())
        for number in (30, 31, 100):  # damaged members, two of them next to each other
            stored = places[number][1]
            whole[stored + 40 : stored + 44] = b"\xff\xff\xff\xff"
        path.write_bytes(whole)
    whole_file = normalize(tmp_path / "whole", tmp_path / "in", max_quarantined=100)
    cut = small_normalize(tmp_path / "cut", tmp_path / "in")
    assert whole_file.files() == cut.files()
    assert whole_file.manifest.counters == cut.manifest.counters
    assert whole_file.quarantined() == cut.quarantined() and len(cut.quarantined()) > 10
    routed = [result for result in cut.results if "runs" in result.details]
    assert len(routed) > 3 and sum("runs" in result.details for result in whole_file.results) == 1
    check_contract_of_archives(cut)


def check_contract_of_archives(result: Normalized) -> None:
    counters = result.manifest.counters
    left = sum(counters.get(f"normalize/{name}", 0) for name in ("quarantined", "other_record_type", "duplicates"))
    assert counters["normalize/records_in"] == counters["normalize/records_out"] + left


def test_arc_files_are_cut_too(tmp_path: Path) -> None:
    lines = [
        b"http://example.com/%d 1.2.3.4 20140216050221 text/plain 800\n%s\n" % (n, b"%0800d" % n) for n in range(90)
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.arc.gz").write_bytes(b"".join(gzip.compress(line) for line in lines))
    cut, whole_file = small_normalize(tmp_path / "cut", tmp_path / "in"), normalize(tmp_path / "whole", tmp_path / "in")
    assert cut.files() == whole_file.files() and cut.manifest.totals.rows == 90
    assert sum("runs" in result.details for result in cut.results) > 2
    check_contract(cut)


def test_file_of_one_member_is_one_slice(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.warc.gz").write_bytes(gzip.compress(b"".join(pages(60))))
    cut = small_normalize(tmp_path / "cut", tmp_path / "in")
    assert sum("runs" in result.details for result in cut.results) == 1
    assert cut.files() == normalize(tmp_path / "whole", tmp_path / "in", max_quarantined=100).files()


def test_other_files_of_the_source_are_cut_as_ever(tmp_path: Path) -> None:
    write_archive(tmp_path / "in" / "b.warc.gz", pages(60))
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "in" / "c.txt").write_text("c")
    result = small_normalize(tmp_path / "cut", tmp_path / "in")
    assert {"a", "c"} < {row["text"] for row in result.rows()}
    assert not reasons_of_files(result, "a.jsonl")


def reasons_of_files(result: Normalized, name: str) -> list[int]:
    return [position for file, position in result.quarantined() if file == name]
