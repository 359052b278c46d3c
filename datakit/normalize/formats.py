"""Determines a file's format and compression from its name or the recipe, and rejects a file whose first bytes show
that it is of another kind or contains UTF-16 text.

    .jsonl .ndjson .json     JSON Lines: one object per line; or one array of objects
    .parquet .pq             Parquet
    .arrow .feather .ipc     Arrow IPC files
    .csv .tsv                tables with a header
    .warc .wet               web archives: one document per page
    .arc                     the older format of web archives
    .txt .md .rst .py ...    one document per file; `format = "text"` applies to any extension

Four formats must be named by the source's `format`, since no extension implies them: `json-array` (also for an object
with one member that is an array), `mediawiki` (XML dumps of wikis), `webdataset` (tar archives of texts) and `dolma`
(documents with files of attributes). Files of every format may be compressed (.gz, .zst, .bz2, .xz, and .tgz for tar
archives; .lz4, .br), except Parquet and Arrow, which compress internally.

Any bytes may begin a Brotli stream (.br), so a file with this extension is never refused for its first bytes.
"""

from __future__ import annotations

import os

from datakit.errors import UnreadableError, suggestion
from datakit.printable import one_line

JSON, PARQUET, ARROW, CSV, TSV, TEXT = "json", "parquet", "arrow", "csv", "tsv", "text"
WARC, ARC = "warc", "arc"
WEB_ARCHIVES = (WARC, ARC)
JSON_ARRAY, MEDIAWIKI, WEBDATASET, DOLMA = "json-array", "mediawiki", "webdataset", "dolma"
FORMATS = (JSON, PARQUET, ARROW, CSV, TSV, TEXT, WARC, ARC, JSON_ARRAY, MEDIAWIKI, WEBDATASET, DOLMA)
# formats in which a record's columns are the members of a JSON object, so that each record may have other types
OF_JSON = (JSON, JSON_ARRAY, WEBDATASET, DOLMA)
# read in order, many records to a file
STREAMED = (JSON, CSV, TSV, WARC, ARC, JSON_ARRAY, MEDIAWIKI, WEBDATASET, DOLMA)
AUTO = "auto"

_BY_EXTENSION = {
    JSON: ".jsonl .ndjson .json",
    PARQUET: ".parquet .pq",
    ARROW: ".arrow .feather .ipc",
    CSV: ".csv",
    TSV: ".tsv .tab",
    WARC: ".warc .wet",
    ARC: ".arc",
    TEXT: ".txt .text .md .markdown .rst .adoc .org .tex .html .htm .xhtml .xml .log .srt .vtt "
    ".py .pyi .pyx .ipynb .c .h .cc .cpp .cxx .hpp .cu .m .java .kt .scala .go .rs .swift .js .mjs .jsx .ts .tsx .css "
    ".scss .rb .php .pl .pm .lua .r .jl .hs .ml .ex .exs .erl .clj .cs .fs .vb .dart .zig .nim .sql .sh .bash .zsh "
    ".ps1 .bat .cmake .mk .toml .yaml .yml .ini .cfg .conf .proto .tf .vim .el .lisp .scm .asm .s .f .f90 .v .vhd",
}
FORMAT_OF = {extension: name for name, extensions in _BY_EXTENSION.items() for extension in extensions.split()}

COMPRESSIONS = {
    ".lz4": "lz4", ".br": "brotli", ".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2", ".xz": "xz",
    ".tgz": "gzip", ".tbz2": "bzip2", ".txz": "xz",
}  # fmt: skip
MAGIC = {
    "gzip": b"\x1f\x8b",
    "zstd": b"\x28\xb5\x2f\xfd",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\0",
    "lz4": b"\x04\x22\x4d\x18",
    PARQUET: b"PAR1",
    ARROW: b"ARROW1\0\0",
}
UNMARKED = ("brotli",)  # streams without a mark
UTF16 = (b"\xff\xfe", b"\xfe\xff")
TAR = "a tar archive"
_TAR_ADVICE = 'set `format = "webdataset"` if that is what it holds, unpack it'
_UNPACK, _EXTRACT = "unpack it", "extract its texts to JSON Lines first"
# Kinds of files that datakit does not read: (name, first bytes, extensions, what to do instead)
FOREIGN = (
    ("a zip archive", b"PK\x03\x04", ".zip .jar", _UNPACK),
    ("a 7-Zip archive", b"7z\xbc\xaf\x27\x1c", ".7z", _UNPACK),
    ("a RAR archive", b"Rar!\x1a\x07", ".rar", _UNPACK),
    (TAR, None, ".tar .tgz .tbz2 .txz", _TAR_ADVICE),
    ("the metadata of a web archive (WAT)", None, ".wat", "read its WARC or WET files"),
    ("a PDF document", b"%PDF-", ".pdf", _EXTRACT),
    ("an office document", None, ".docx .odt .pptx .xlsx .epub .doc", _EXTRACT),
    ("an SQLite database", b"SQLite format 3\0", ".sqlite .sqlite3 .db", "export its table to Parquet or CSV"),
    ("an HDF5 file", b"\x89HDF\r\n\x1a\n", ".h5 .hdf5", _EXTRACT),
)
WARC_MARK = b"WARC/1."
TAR_MARK, TAR_OFFSET = b"ustar", 257


def compression_of(path: str) -> str | None:
    """Return the compression that a file's name implies, or None."""
    return COMPRESSIONS.get(os.path.splitext(path)[1].lower())


def format_of(path: str, configured: str = AUTO) -> str:
    """Return a file's format: the configured one, or the one its name implies (UnreadableError if it implies none)."""
    if configured != AUTO:
        return configured
    stem, last = os.path.splitext(path) if compression_of(path) else (path, "")
    extension = os.path.splitext(stem)[1].lower()
    for name, _, extensions, advice in FOREIGN:
        if extension in extensions.split() or last.lower() in extensions.split():
            raise UnreadableError(
                f"{one_line(path)} is {name}, judging by its name, and datakit {_reads(name)} such files; {advice}, or "
                "exclude it"
            )
    if extension not in FORMAT_OF:
        advice = suggestion(extension, FORMAT_OF) if extension else "it has no extension"
        advice = advice if advice.startswith(("did", "it has")) else "its extension is unknown"
        raise UnreadableError(
            f"{one_line(path)} has an unknown format ({advice}); set the source's `format` "
            f"({', '.join(FORMATS)}), or exclude "
            "the file"
        )
    return FORMAT_OF[extension]


def check_head(path: str, head: bytes, expected: str | None, allowed: str = "") -> None:
    """Raise UnreadableError if the first bytes of a file, `head`, show that it is not of the expected kind.

    expected: the name of a compression or of a binary format (`parquet`, `arrow`), or None for plain text. allowed: a
    kind of FOREIGN files that the caller can read. A truncated or damaged file passes, since its good records are worth
    keeping. A file of another kind is refused, and so is an empty one unless plain text is expected, since the recipe
    or the download must be wrong.
    """
    if head and expected in UNMARKED:
        return
    for name, magic, _, advice in FOREIGN:
        if name == allowed:
            continue
        tar = name == TAR and head[TAR_OFFSET:].startswith(TAR_MARK)
        if tar or (magic is not None and head.startswith(magic)):
            raise UnreadableError(
                f"{one_line(path)} is {name}, and datakit {_reads(name)} such files; {advice}, or exclude it"
            )
    if head.startswith(WARC_MARK):
        raise UnreadableError(
            f"{one_line(path)} is a web archive (WARC), but its name or the source's format implies another format; "
            'set the source\'s `format` to "warc", or exclude it'
        )
    if expected is None:
        found = kind_of(head)
        if found:
            raise UnreadableError(
                f"{one_line(path)} contains {found} data, but its name or the source's format implies plain text in "
                "UTF-8; correct the file's extension (e.g. .gz, .zst, .parquet), set the source's `format`, convert "
                "UTF-16 to UTF-8, or exclude the file"
            )
        return
    if not head:
        raise UnreadableError(
            f"{one_line(path)} is empty (0 bytes), so it is not {_a(expected)} file; download it again or exclude it"
        )
    magic = MAGIC[expected]
    if expected in ("zstd", "lz4") and is_skippable(head):
        return
    if head[: len(magic)] != magic[: len(head)]:
        found = kind_of(head)
        raise UnreadableError(
            f"{one_line(path)} is not {_a(expected)} file: its first bytes indicate "
            f"{found or 'plain text or an unknown kind'}; "
            "rename or exclude it, or set the source's `format`"
        )


def _reads(name: str) -> str:
    return "reads only the texts and JSON objects in" if name == TAR else "does not read"


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def is_skippable(head: bytes) -> bool:
    """Return True if these are the first bytes of a skippable frame of zstd (RFC 8878, 3.1.2) or lz4."""
    return head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50


def kind_of(head: bytes) -> str | None:
    """Return the kind of file that these first bytes identify, or None if they identify none."""
    if head.startswith(UTF16):
        return "UTF-16 text"
    kind = next((kind for kind, magic in MAGIC.items() if head.startswith(magic)), None)
    if (kind == PARQUET and head[4:5] >= b" ") or (kind == "bzip2" and head[4:8] != b"1AY&"):
        return None  # plain text that happens to start with "PAR1" or "BZh"
    return kind
