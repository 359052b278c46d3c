"""Archives, compressed files and files of other kinds, under true and under false names."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib

import zstandard

from tests.support.hostile.case import Case, done, partial, refused, texts

LINES = b"".join(b'{"text": "DOCUMENT number %d"}\n' % number for number in range(200))
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def zipped(member: str = "../../outside/new.jsonl") -> bytes:
    """Return a zip archive whose member leads out of the folder."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(member, LINES)
    return out.getvalue()


def tarred(mode: str = "w", member: str = "../../outside/new.jsonl") -> bytes:
    """Return a tar archive with a member and a link that lead out of the folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        entry = tarfile.TarInfo(member)
        entry.size = len(LINES)
        archive.addfile(entry, io.BytesIO(LINES))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../outside"
        archive.addfile(link)
    return out.getvalue()


def gzip_with_header(flags: int, header: bytes) -> bytes:
    """Return a gzip file with optional header fields."""
    body = zlib.compressobj(wbits=-15)
    data = body.compress(LINES) + body.flush()
    trailer = struct.pack("<II", zlib.crc32(LINES), len(LINES))
    return b"\x1f\x8b\x08" + bytes([flags]) + bytes(6) + header + data + trailer


def zstd(data: bytes = LINES, **options: int) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)  # type: ignore[arg-type]


def zstd_with_dictionary() -> bytes:
    """Return a zstd file that needs a dictionary."""
    dictionary = zstandard.ZstdCompressionDict(LINES * 2, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    trained = zstandard.train_dictionary(512, [b"DOCUMENT %d abc def" % number for number in range(3000)])
    del dictionary
    return zstandard.ZstdCompressor(dict_data=trained).compress(LINES)


def damaged(data: bytes) -> bytes:
    """Return the data with its middle byte inverted."""
    found = bytearray(data)
    found[len(found) // 2] ^= 0xFF
    return bytes(found)


FOREIGN = (
    ("zip-named-zip", "a.zip", zipped, "a zip archive"),
    ("zip-named-json-lines", "a.jsonl", zipped, "a zip archive"),
    ("zip-named-gz", "a.jsonl.gz", zipped, "a zip archive"),
    ("tar-named-tar", "a.tar", tarred, "a tar archive"),
    ("tar-named-text", "a.txt", tarred, "a tar archive"),
    ("tar-gz", "a.tar.gz", lambda: tarred("w:gz"), "a tar archive"),
    ("7z-named-json-lines", "a.jsonl", lambda: b"7z\xbc\xaf\x27\x1c" + bytes(100), "a 7-Zip archive"),
    ("rar-named-text", "a.txt", lambda: b"Rar!\x1a\x07\x01\x00" + bytes(100), "a RAR archive"),
    ("pdf-named-text", "a.txt", lambda: b"%PDF-1.7\n" + bytes(100), "a PDF document"),
    ("sqlite-named-csv", "a.csv", lambda: b"SQLite format 3\0" + bytes(4000), "an SQLite database"),
    ("office-document", "a.docx", zipped, "an office document"),
    ("pickle-named-pkl", "a.pkl", lambda: b"cposix\nsystem\n(S'touch ../ran/x'\ntR.", "unknown format"),
    ("yaml-with-objects", "a.npy", lambda: b"!!python/object/apply:os.system ['touch ../ran/x']", "unknown format"),
    ("gzip-named-json-lines", "a.jsonl", lambda: gzip.compress(LINES), "contains gzip data"),
    ("zstd-named-gz", "a.jsonl.gz", zstd, "not a gzip file"),
    ("parquet-named-csv", "a.csv", lambda: b"PAR1\x15\x04" + bytes(100) + b"PAR1", "contains parquet data"),
)
CASES = (
    *(Case(f"archive-{name}", texts((file, content)), refused(words, file)) for name, file, content, words in FOREIGN),
    Case("archive-tar-inside-gz-under-a-false-name", texts(("a.txt.gz", lambda: tarred("w:gz"))), done(1, nul=1)),
    Case(
        "gzip-name-in-header-leads-out",
        texts(("a.jsonl.gz", lambda: gzip_with_header(8, b"../../outside/x\0"))),
        done(200),
    ),
    Case(
        "gzip-comment-with-escapes",
        texts(("a.jsonl.gz", lambda: gzip_with_header(16, b"\x1b]0;owned\x07\0"))),
        done(200),
    ),
    Case(
        "gzip-name-never-ends",
        texts(("a.jsonl.gz", lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 100_000)),
        refused("a.jsonl.gz", code=(2, 3)),
    ),
    Case("gzip-cut-in-the-middle", texts(("a.jsonl.gz", lambda: gzip.compress(LINES)[:150])), refused(code=(0, 2))),
    Case(
        "gzip-cut-in-the-middle-strictly",
        texts(("a.jsonl.gz", lambda: gzip.compress(LINES)[:-9]), more=""),
        partial("a.jsonl.gz"),
    ),
    Case(
        "gzip-wrong-checksum", texts(("a.jsonl.gz", lambda: gzip.compress(LINES)[:-8] + bytes(8))), refused("damaged")
    ),
    Case(
        "gzip-garbage-behind",
        texts(("a.jsonl.gz", lambda: gzip.compress(LINES) + b"garbage")),
        done(200, quarantined=1),
    ),
    Case(
        "gzip-1000-empty-members",
        texts(("a.jsonl.gz", lambda: gzip.compress(b"") * 1000 + gzip.compress(LINES))),
        done(200),
    ),
    Case("gzip-inside-gzip", texts(("a.jsonl.gz", lambda: gzip.compress(gzip.compress(LINES)))), refused("a.jsonl.gz")),
    Case("zstd-needs-a-dictionary", texts(("a.jsonl.zst", zstd_with_dictionary)), refused("a.jsonl.zst", code=(2, 3))),
    Case(
        "zstd-claims-an-exbibyte",
        texts(("a.jsonl.zst", ZSTD_MAGIC + b"\xc0\x58" + struct.pack("<Q", 1 << 60) + b"\x01\0\0")),
        refused("became a document"),
    ),
    Case(
        "zstd-window-of-2-gib",
        texts(("a.jsonl.zst", ZSTD_MAGIC + b"\x00" + bytes([21 << 3]) + b"\x01\0\0")),
        refused(code=(2, 3)),
    ),
    Case("zstd-damaged", texts(("a.jsonl.zst", lambda: damaged(zstd()))), refused("a.jsonl.zst", code=(2, 3))),
    Case(
        "zstd-skippable-frames-only", texts(("a.jsonl.zst", b"\x50\x2a\x4d\x18\x04\0\0\0abcd" * 1000)), refused("empty")
    ),
    Case(
        "bzip2-damaged",
        texts(("a.jsonl.bz2", lambda: damaged(bz2.compress(LINES)))),
        refused("a.jsonl.bz2", code=(2, 3)),
    ),
    Case(
        "xz-damaged", texts(("a.jsonl.xz", lambda: damaged(lzma.compress(LINES)))), refused("a.jsonl.xz", code=(2, 3))
    ),
    Case(
        "xz-dictionary-of-1-gib",
        texts(
            (
                "a.jsonl.xz",
                lambda: lzma.compress(LINES, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]),
            )
        ),
        refused(code=(0, 2, 3)),
    ),
)
