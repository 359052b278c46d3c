"""The real web archives, record by record, with warcio as the reference."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trafilatura
from resiliparse.extract.html2text import extract_plain_text
from warcio.archiveiterator import ArchiveIterator

from datakit.normalize.formats import ARC, WARC
from datakit.normalize.readers.web.digests import check_digest
from datakit.normalize.readers.web.errors import BrokenRecordError, LeftOutError
from datakit.normalize.readers.web.messages import may_be_document, page_of
from datakit.normalize.readers.web.payloads import decoded
from datakit.normalize.readers.web.records import Broken, Record
from tests.support.data import need_data
from tests.support.normalize.readers import read, rows
from tests.support.normalize.web_archives import cut

# the files that warcio reads to the end
SOUND = (
    "example.warc", "example.warc.gz", "example.arc", "example.arc.gz", "example-digest.warc", "post-test.warc.gz",
    "example-iana.org-chunked.warc", "example-resource.warc.gz", "example-space-in-target-uri.warc.gz",
    "example-wget-bad-target-uri.warc.gz",
)  # fmt: skip
# the files whose gzip members do not hold a record each, which warcio refuses; it reads them once they are gunzipped
MEMBERS_WITHOUT_RECORDS = ("example-bad-non-chunked.warc.gz", "example-bad.warc.gz.bad", "example-wrong-chunks.warc.gz")
# what warcio reads with a warning, or as an empty record: the offsets of the records that are broken for datakit
BROKEN = {"bad.arc": [0, 134, 262], "example-space-in-url.arc": [151], "example-trunc.warc": [1197]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real archives, with names that tell their format."""
    target = tmp_path_factory.mktemp("real")
    for path in (need_data() / "warc" / "warcio" / "test" / "data").iterdir():
        shutil.copyfile(path, target / path.name.removesuffix(".bad"))
    return target


def kind_of(path: Path) -> str:
    return ARC if ".arc" in path.name else WARC


def by_warcio(path: Path) -> Iterator[tuple[int, str, bytes]]:
    """(offset, type, block) of each record. Reading the block comes first: the offset is known afterward."""
    with path.open("rb") as file:
        records = ArchiveIterator(file, no_record_parse=True)
        for record in records:
            block = record.raw_stream.read()
            yield records.get_record_offset(), record.rec_type, block


def by_datakit(path: Path) -> Iterator[tuple[int, str, bytes]]:
    for record in cut(path, kind_of(path)):
        assert isinstance(record, Record)
        yield record.stored, type_of(record, kind_of(path)), bytes(record.block)


def type_of(record: Record, kind: str) -> str:
    if kind == ARC:
        return "response" if may_be_document(record, kind) else "arc_header"
    lines = record.header.decode().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.lower().startswith("warc-type:"))


@pytest.mark.parametrize("name", SOUND)
def test_every_record_is_where_warcio_finds_it(folder: Path, name: str) -> None:
    ours, theirs = list(by_datakit(folder / name)), list(by_warcio(folder / name))
    assert len(ours) > 1
    # warcio reads no block of an ARC file's first record
    assert [one if one[1] != "arc_header" else (*one[:2], b"") for one in ours] == theirs


@pytest.mark.parametrize("name", MEMBERS_WITHOUT_RECORDS)
def test_archive_whose_members_hold_no_record_each_is_read(folder: Path, name: str, tmp_path: Path) -> None:
    packed = folder / name.removesuffix(".bad")
    plain = tmp_path / "plain.warc"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    records = list(cut(packed))
    assert [(one.position, one.block) for one in records if isinstance(one, Record)] == [
        (offset, block) for offset, _, block in by_warcio(plain)
    ]
    assert not any(isinstance(one, Broken) for one in records)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_record_is_named_and_the_others_are_those_of_warcio(folder: Path, name: str) -> None:
    records = list(cut(folder / name, kind_of(folder / name)))
    broken = [one.position for one in records if isinstance(one, Broken)]
    assert broken == BROKEN[name]
    theirs = [(offset, block) for offset, kind, block in by_warcio(folder / name) if offset not in broken]
    ours = [(one.position, one.block) for one in records if isinstance(one, Record)]
    assert [one if one[0] else (0, theirs[0][1]) for one in ours] == theirs


# bad.arc is left out: its only sound record has a block of one byte, which warcio takes for an HTTP header
@pytest.mark.parametrize("name", [*SOUND, *list(BROKEN)[1:], *MEMBERS_WITHOUT_RECORDS])
def test_pages_are_those_of_warcio(folder: Path, name: str, tmp_path: Path) -> None:
    """URL, date, status and decoded payload of each document."""
    path = folder / name.removesuffix(".bad")
    if name in MEMBERS_WITHOUT_RECORDS:
        (tmp_path / "plain.warc").write_bytes(gzip.decompress(path.read_bytes()))
        path = tmp_path / "plain.warc"
    theirs = {}
    with path.open("rb") as file:
        iterator = ArchiveIterator(file, arc2warc=True)
        for record in iterator:
            payload, headers = record.content_stream().read(), record.rec_headers
            status = record.http_headers and record.http_headers.get_statuscode()
            url, date = headers.get_header("WARC-Target-URI"), headers.get_header("WARC-Date")
            theirs[iterator.get_record_offset()] = payload, url, date, status
    found = 0
    for record in cut(path, kind_of(path)):
        if isinstance(record, Record):
            try:
                page = page_of(record, kind_of(path))
            except (LeftOutError, BrokenRecordError):
                continue
            payload, url, date, status = theirs[record.stored]
            assert decoded(page.payload, page.encodings, 1 << 20) == payload
            assert (page.url, str(page.status or "")) == (url, status or "")
            assert page.date == date
            found += 1
    assert found or name in NO_PAGES


NO_PAGES = (
    "example-digest.warc", "post-test.warc.gz", "example-space-in-target-uri.warc.gz", "example-space-in-url.arc",
    "example-trunc.warc", "example-wrong-chunks.warc.gz",
)  # fmt: skip


def test_block_digests_are_judged_as_by_warcio(folder: Path, tmp_path: Path) -> None:
    """For every record of the real archives: with a digest in base 32 or base 16, or without one."""
    wrong, ours, checked = [], [], 0
    for name in (*SOUND, *MEMBERS_WITHOUT_RECORDS):
        path = folder / name.removesuffix(".bad")
        if name in MEMBERS_WITHOUT_RECORDS:
            (tmp_path / f"{name}.warc").write_bytes(gzip.decompress(path.read_bytes()))
            path = tmp_path / f"{name}.warc"
        with path.open("rb") as file:
            iterator = ArchiveIterator(file, check_digests=True)
            for record in iterator:
                record.content_stream().read()
                if record.digest_checker and any("block" in one for one in record.digest_checker.problems):
                    wrong.append((name, iterator.get_record_offset()))
        for record in cut(path, kind_of(path)):
            assert isinstance(record, Record)
            stated = re.search(rb"(?im)^WARC-Block-Digest: *(\S+)", record.header)
            checked += stated is not None
            try:
                check_digest(stated and stated[1].decode(), record.block)
            except BrokenRecordError:
                ours.append((name, record.stored))
    ours.remove(("example-bad-non-chunked.warc.gz", 3370))  # a revisit record, whose block warcio does not check
    assert ours == wrong == [("example-wrong-chunks.warc.gz", 0)]
    assert checked > 20


@pytest.mark.parametrize("algorithm", ["sha1", "md5", "sha256", "SHA-512"])
@pytest.mark.parametrize("encode", [lambda raw: base64.b32encode(raw).decode(), bytes.hex])
def test_digests_of_all_usual_kinds_are_compared(algorithm: str, encode: Callable[[bytes], str]) -> None:
    digest = encode(hashlib.new(algorithm.lower().replace("-", ""), b"block").digest())
    check_digest(f"{algorithm}:{digest}", b"block")
    with pytest.raises(BrokenRecordError, match="digest"):
        check_digest(f"{algorithm}:{digest}", b"other")


@pytest.mark.parametrize("stated", [None, "", "sha1:", "sha1:xyz", "blake3:00", "sha1"])
def test_unknown_digests_are_not_compared(stated: str | None) -> None:
    check_digest(stated, b"block")


@pytest.mark.parametrize("extract", ["resiliparse", "trafilatura", "none"])
def test_texts_are_those_of_the_libraries(folder: Path, extract: str) -> None:
    """Payload and charset by the reference; the libraries are called directly."""
    functions = {
        "resiliparse": lambda html: extract_plain_text(html, main_content=True),
        "trafilatura": trafilatura.extract,
        "none": str,
    }
    for name in ("example.warc.gz", "example-iana.org-chunked.warc", "example.arc.gz"):
        chunks, counts = read(folder, name, extract=extract)
        (row,) = rows(chunks)
        with (folder / name).open("rb") as file:
            pages = [
                record.content_stream().read() for record in ArchiveIterator(file) if record.rec_type == "response"
            ]
        text = functions[extract](pages[0].decode(row["charset"]))
        assert row["text"].decode() == text and len(text) > 50
        assert not counts.quarantined
