"""Web archives as sources: columns, what becomes a document, and every record counted."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import brotli
import pyarrow as pa
import pytest

from datakit.errors import ColumnError, EmptyStageError, UnreadableError, UsageError
from datakit.normalize.readers.web import columns as web_columns
from datakit.normalize.readers.web import messages
from datakit.normalize.record_counts import NOT_PAGES
from tests.support.data import need_data
from tests.support.normalize.readers import positions, read, reasons, rows
from tests.support.normalize.sources import Normalized, normalize
from tests.support.normalize.web_archives import DATE, HTTP, chunked, page, response, warc_record, write_archive

GZIP = "Content-Encoding: gzip"
PAGE = page("A page of some words, and of others.")


def http(status: str = "200 OK", kind: str = "text/html", *lines: str) -> bytes:
    head = [f"HTTP/1.1 {status}", *([f"Content-Type: {kind}"] if kind else []), *lines]
    return "".join(f"{line}\r\n" for line in head).encode()


def conserved(result: Normalized) -> bool:
    counters = result.manifest.counters
    names = ("missing", "blank", "duplicates", "where_dropped", "sample_dropped", "transform_dropped", "quarantined")
    gone = sum(result[name] for name in names) + sum(counters.get(name, 0) for name in NOT_PAGES)
    return result["records_in"] + result["transform_added"] == result["records_out"] + gone


def counted(result: Normalized) -> dict[str, int]:
    own = {name.removeprefix("normalize/"): count for name, count in result.manifest.counters.items() if count}
    return {name: count for name, count in own.items() if not name.startswith("records_")}


def test_columns_of_a_page(tmp_path: Path) -> None:
    header = http("200 OK", "text/html; charset=ISO-8859-1", "Content-Language: fr")
    records = [
        warc_record(b"software: x\r\n", "warcinfo"),
        response("<p>déjà</p>".encode("latin-1"), 7, header, WARC_Truncated="length"),
    ]
    places = write_archive(tmp_path / "a.warc.gz", records)
    chunks, counts = read(tmp_path, "a.warc.gz")
    assert rows(chunks) == [
        {
            "id": f"urn:uuid:{7:032x}", "text": "déjà".encode(), "url": "http://example.com/7", "date": DATE,
            "media_type": "text/html", "language": "fr", "status": 200, "charset": "cp1252",
            "offset": places[1][1], "truncated": "length",
        }
    ]  # fmt: skip
    assert positions(chunks) == [places[1][0]] and not counts.quarantined


def test_wet_text_is_taken_as_it_is(tmp_path: Path) -> None:
    text = "Ein Text,\nden ein anderer ausgezogen hat. <p>"
    record = warc_record(text.encode(), "conversion", 3, WARC_Identified_Content_Language="deu,eng")
    write_archive(tmp_path / "CC-MAIN.warc.wet.gz", [record])
    ((row,), _) = (rows(found := read(tmp_path, "CC-MAIN.warc.wet.gz")[0]), found)
    assert (row["text"].decode(), row["language"], row["charset"], row["status"]) == (text, "deu,eng", "utf-8", None)


@pytest.mark.parametrize(
    ("record", "counter"),
    [
        (warc_record(b"x", "warcinfo"), "other_record_type"),
        (warc_record(b"GET / HTTP/1.1\r\n\r\n", "request"), "other_record_type"),
        (warc_record(b"x", "metadata"), "other_record_type"),
        (warc_record(http() + b"\r\n", "revisit"), "other_record_type"),
        (warc_record(b"x", "continuation"), "other_record_type"),
        (warc_record(b"x", "no-such-type"), "other_record_type"),
        (response(PAGE, WARC_Segment_Number="1"), "other_record_type"),
        (warc_record(b"a log", "resource", WARC_Target_URI="<metadata://gnu.org/wget.log>"), "other_record_type"),
        (response(PAGE, http=http("404 Not Found")), "other_status"),
        (response(PAGE, http=http("301 Moved")), "other_status"),
        (response(PAGE, http=http("206 Partial Content")), "other_status"),
        (response(PAGE, http=http("abc")), "other_status"),
        (response(PAGE, http=http("200 OK", "image/png")), "other_media_type"),
        (response(PAGE, http=http("200 OK", "")), "other_media_type"),
        (response(PAGE, WARC_Identified_Payload_Type="application/pdf"), "other_media_type"),
        (warc_record(b"\0\1", "resource", Content_Type="image/png"), "other_media_type"),
        (warc_record(b"1.2.3.4", Content_Type="text/dns"), "other_media_type"),
        (warc_record(b"no status line", "response"), "quarantined"),
        (response(b"\x1f\x8b\x08 nothing", http=http("200 OK", "text/html", GZIP)), "quarantined"),
        (response(PAGE, WARC_Block_Digest="sha1:" + "A" * 32), "quarantined"),
        (response(b""), "blank"),
    ],
    ids=lambda value: value if isinstance(value, str) else "record",
)
def test_what_becomes_no_document_is_counted_by_its_reason(tmp_path: Path, record: bytes, counter: str) -> None:
    write_archive(tmp_path / "in" / "a.warc.gz", [record, response(PAGE, 1)])
    result = normalize(tmp_path, tmp_path / "in", max_quarantined=1)
    assert counted(result) == {counter: 1} and conserved(result)
    assert result.manifest.totals.rows == 1 and result["records_in"] == 2


@pytest.mark.parametrize(
    "record",
    [
        response(PAGE, http=http("201 Created", "text/html; charset=utf-8")),
        response(PAGE, http=http("200 OK", "application/xhtml+xml")),
        response(PAGE, http=http("200", "TEXT/HTML")),
        response(PAGE, http=http("200 OK", "image/png"), WARC_Identified_Payload_Type="text/html"),
        warc_record(PAGE, "resource", Content_Type="text/html"),
        response(
            chunked(gzip.compress(PAGE, mtime=0)), http=http("200 OK", "text/html", GZIP, "Transfer-Encoding: chunked")
        ),
        response(brotli.compress(PAGE), http=http("200 OK", "text/html", "Content-Encoding: br")),
        warc_record(b"HTTP/1.1 200 OK\nContent-Type: text/html\n\n" + PAGE).replace(b"\r\n", b"\n"),
    ],
    ids=lambda record: "record",
)  # fmt: skip
def test_what_becomes_a_document(tmp_path: Path, record: bytes) -> None:
    write_archive(tmp_path / "a.warc", [record])
    chunks, counts = read(tmp_path, "a.warc")
    assert [row["text"] for row in rows(chunks)] == [b"A page of some words, and of others."], reasons(counts)


def test_too_long_and_truncated_payloads_are_quarantined_with_their_offsets(tmp_path: Path) -> None:
    bomb = response(gzip.compress(bytes(9 << 20)), 1, http("200 OK", "text/html", GZIP))
    records = [
        bomb,
        response(b"x" * (5 << 20), 2),
        response(b"x" * (5 << 20), 3, http("404 Not Found")),
        response(PAGE, 4),
    ]
    places = write_archive(tmp_path / "a.warc.gz", records)
    chunks, counts = read(tmp_path, "a.warc.gz", max_document_bytes=4 << 20)
    assert [(position, why.partition(" (")[0]) for position, why in reasons(counts)] == [
        (places[0][0], "its decoded payload is longer than max_document_bytes"),
        (places[1][0], "longer than max_document_bytes"),
    ]
    assert f"at byte {places[1][1]} of the stored file" in reasons(counts)[1][1]
    assert len(rows(chunks)) == 1 and counts.counters["normalize/other_status"] == 1


def test_http_header_that_does_not_end_is_quarantined(tmp_path: Path) -> None:
    header = HTTP + b"Set-Cookie: x\r\n" * (messages.HTTP_HEADER_BYTES // 10)
    write_archive(tmp_path / "a.warc", [response(PAGE, 1, header), response(PAGE, 2)])
    chunks, counts = read(tmp_path, "a.warc")
    ((position, reason),) = reasons(counts)
    assert position == 0 and "HTTP header does not end" in reason and len(rows(chunks)) == 1


def test_invalid_bytes_are_counted(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.warc", [response(b"<p>a \xff b</p>")])
    chunks, counts = read(tmp_path, "a.warc")
    assert [row["text"].decode() for row in rows(chunks)] == ["a \ufffd b"]
    assert counts.counters["normalize/invalid_utf8"] == 1


def test_headers_with_odd_bytes_make_no_trouble(tmp_path: Path) -> None:
    record = response(PAGE, http=HTTP + b"Content-Language: \xff\xfe\r\nX: " + bytes(range(32, 256)) + b"\r\n")
    write_archive(tmp_path / "a.warc", [record.replace(b"example.com", b"ex\xffmple.com")])
    (row,) = rows(read(tmp_path, "a.warc")[0])
    assert row["url"] == "http://ex\ufffdmple.com/0" and "\ufffd" in row["language"]


def test_settings_of_the_source_apply(tmp_path: Path) -> None:
    records = [response(page(f"Words of page {number}."), number, http(f"20{number % 2} OK")) for number in range(20)]
    write_archive(tmp_path / "in" / "a.warc.gz", records)
    result = normalize(
        tmp_path, tmp_path / "in", where="status = 201 and url like '%example%' and \"offset\" > 0", id="url",
        drop=["charset", "truncated"],
    )  # fmt: skip
    found = result.rows()
    assert sorted(row["source_id"] for row in found) == sorted(
        f"http://example.com/{number}" for number in range(1, 20, 2)
    )
    assert "charset" not in found[0] and "truncated" not in found[0]
    assert result["where_dropped"] == 10 and conserved(result)
    with pytest.raises(ColumnError, match="no record has the column 'statsu'"):
        normalize(tmp_path / "again", tmp_path / "in", where="statsu = 1")


def only_second(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array([url.endswith("/1") for url in batch["url"].to_pylist()]))


def test_transform_receives_the_columns(tmp_path: Path) -> None:
    write_archive(tmp_path / "in" / "a.warc", [response(page(f"page {number}"), number) for number in range(3)])
    result = normalize(tmp_path, tmp_path / "in", transform=f"{__name__}:only_second", transform_version=1)
    assert [row["url"] for row in result.rows()] == ["http://example.com/1"] and conserved(result)


def test_archive_without_documents_is_an_error_that_says_why(tmp_path: Path) -> None:
    write_archive(tmp_path / "in" / "a.warc", [response(PAGE, http=http("404 Not Found")), warc_record(b"", "request")])
    with pytest.raises(EmptyStageError, match="1 other_record_type, 1 other_status"):
        normalize(tmp_path, tmp_path / "in")


@pytest.mark.parametrize(("suffix", "kind"), [("lz4", "lz4"), ("br", "brotli")])
def test_compressions_without_borders_are_refused(tmp_path: Path, suffix: str, kind: str) -> None:
    packed = pa.compress(warc_record(b"x"), kind, asbytes=True)
    (tmp_path / f"a.warc.{suffix}").write_bytes(packed)
    with pytest.raises(UnreadableError, match=f"compressed with {kind}, in which records .* no borders"):
        normalize(tmp_path / "out", tmp_path / f"a.warc.{suffix}")


def test_missing_library_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path / "in" / "a.warc", [response(PAGE)])
    monkeypatch.setattr(web_columns, "LIBRARIES", ("fastwarc", "no_such_library"))
    with pytest.raises(UsageError, match=r"need no_such_library; run pip install '\.\[web\]'"):
        normalize(tmp_path, tmp_path / "in")


def test_other_sources_need_none_of_the_libraries() -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in (*web_columns.LIBRARIES, "trafilatura"))
    subprocess.run([sys.executable, "-c", f"import sys; {blocked}import datakit.normalize.stage"], check=True)


def test_real_archives_add_up(tmp_path: Path) -> None:
    """All of them together: kept, duplicates, left out and quarantined are all that is present."""
    source = tmp_path / "in"
    source.mkdir()
    for path in (need_data() / "warc" / "warcio" / "test" / "data").iterdir():
        (source / path.name.removesuffix(".bad")).write_bytes(path.read_bytes())
    result = normalize(tmp_path, source, max_quarantined=10)
    assert conserved(result) and result["records_in"] == 64
    assert counted(result) == {
        "blank": 1, "duplicates": 7, "quarantined": 6, "other_record_type": 43, "other_status": 1,
        "other_media_type": 4,
    }  # fmt: skip
