"""States what becomes of each hostile file that `mk_pathological.py` writes, beside the expectation of its manifest.

`kept` counts the documents written, `present` the records in the file, `counted` everything else that was counted. The
file lies beside a sound one, so that a file without any document is no error (a source without any is one). `refused`
is the error and the words that describe it, for a file that a run refuses by name; then nothing is written. Without a
tolerance, a file with quarantined records ends the run with an error that names the file.

`note` explains every difference from the expectation, and every choice that it leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from datakit.errors import ColumnError, InputError, UnreadableError

REPAIRED = {"invalid_utf8": 1}
LOST = {"quarantined": 1}
NOTHING_OF_IT = "nothing of a damaged stream is used, since the damage began at an unknown place"


@dataclass(frozen=True)
class Hostile:
    """A hostile file and its outcome. present: None if it depends on the version of the library that compressed it."""

    file: str
    expectation: str
    kept: int = 0
    present: int | None = 0
    counted: dict[str, int] = field(default_factory=dict)
    refused: tuple[type[InputError], str] | None = None
    note: str = ""


def refused(file: str, expectation: str, error: type[InputError], words: str, note: str = "") -> Hostile:
    return Hostile(file, expectation, refused=(error, words), note=note)


def repaired(file: str, expectation: str) -> Hostile:
    """Six documents, one of them with U+FFFD in place of invalid bytes."""
    return Hostile(file, expectation, 6, 6, REPAIRED, note="replaced by U+FFFD")


TABLE = (
    Hostile("ok.jsonl", "5 docs", 5, 5),
    Hostile("empty.jsonl", "0 docs, no failure"),
    Hostile("only_newlines.jsonl", "0 docs, no failure"),
    Hostile("no_final_newline.jsonl", "5 docs", 5, 5),
    Hostile("crlf.jsonl", "5 docs, text unchanged", 5, 5),
    Hostile(
        "cr_only.jsonl",
        "1 bad line or refused; never 5 silently merged",
        0,
        1,
        LOST,
        note="the whole file is one bad line",
    ),
    Hostile("bom.jsonl", "5 docs (BOM skipped) or one named error at line 1", 5, 5, note="the mark is skipped"),
    refused("utf16le.jsonl", "refused, named", UnreadableError, "contains UTF-16"),
    repaired("latin1.jsonl", "line 1 = bad UTF-8 by policy (replace/drop/fail), counted; 5 others kept"),
    repaired("utf8_truncated_seq.jsonl", "line 1 by policy, counted; 5 others kept"),
    repaired("utf8_overlong.jsonl", "line 1 by policy, counted; 5 others kept"),
    repaired("utf8_surrogate_bytes.jsonl", "line 1 by policy, counted; 5 others kept"),
    repaired("utf8_beyond_10ffff.jsonl", "line 1 by policy, counted; 5 others kept"),
    repaired("utf8_lone_cont.jsonl", "line 1 by policy, counted; 5 others kept"),
    repaired("utf8_ff_fe.jsonl", "line 1 by policy, counted; 5 others kept"),
    Hostile(
        "lone_surrogate_escape.jsonl",
        "6 docs at least; no crash when writing UTF-8",
        7,
        8,
        {"duplicates": 1, "invalid_utf8": 2},
        note="each becomes U+FFFD, so two texts are equal",
    ),
    Hostile("nul.jsonl", "escaped NUL valid; raw NUL = bad line; 5 others kept", 6, 7, {"nul": 1, "quarantined": 1}),
    Hostile("control_chars.jsonl", "bad JSON by the standard; counted", 5, 6, LOST, note="the line is quarantined"),
    Hostile(
        "wrong_types.jsonl",
        'each named; never turned into the text "None"',
        6,
        14,
        {"missing": 2, "quarantined": 6},
        note="six lines are quarantined; two have no text",
    ),
    Hostile("dup_keys.jsonl", "one documented choice", 6, 6, note="the last value counts, as in Python's json"),
    Hostile(
        "nan_inf.jsonl",
        "refused or kept, documented",
        6,
        7,
        {"duplicates": 1},
        note="kept, as in Python's json; both texts are `x`",
    ),
    Hostile(
        "huge_numbers.jsonl",
        "no crash",
        6,
        6,
        note="kept; an integer that does not fit into 64 bits becomes a string of its digits",
    ),
    Hostile("half_line.jsonl", "5 docs + 1 bad line; not silent", 5, 6, LOST),
    Hostile(
        "garbage_between.jsonl",
        "10 docs + 1 bad line",
        5,
        11,
        {"duplicates": 5, "quarantined": 1},
        note="the ten documents have five texts",
    ),
    Hostile(
        "dup_ids.jsonl",
        "10 docs or named error; dedup ties are deterministic",
        5,
        10,
        {"duplicates": 5},
        note="the copies have equal texts; upstream ids need not be unique",
    ),
    Hostile(
        "empty_texts.jsonl",
        "no zero-length token document breaks packing",
        6,
        10,
        {"blank": 4},
        note="blank texts are counted; U+200B and U+FEFF are not white space in Unicode, so their text stays",
    ),
    Hostile(
        "one_char.jsonl",
        "shorter than any shingle; MinHash of an empty set must not cluster all of them unless equal",
        26,
        3000,
        {"duplicates": 2974},
        note="26 different texts",
    ),
    Hostile("deep_json.jsonl", "line 1 refused, no stack overflow; 5 kept", 5, 6, LOST),
    Hostile("long_key.jsonl", "6 docs", 6, 6),
    Hostile(
        "no_spaces_1mb.jsonl",
        "BPE must not go quadratic: < 10 s a document",
        8,
        8,
        note="the limit on time is checked by benchmarks/hostile_texts.py",
    ),
    Hostile(
        "whitespace_1mb.jsonl",
        "< 10 s a document",
        6,
        10,
        {"blank": 4, "whitespace_runs": 1},
        note="four are blank; a run inside a text is cut to `whitespace_run` characters",
    ),
    Hostile(
        "punct_1mb.jsonl",
        "< 10 s a document",
        10,
        10,
        note="the limit on time is checked by benchmarks/hostile_texts.py",
    ),
    Hostile("bidi_zalgo.jsonl", "text comes back byte for byte (no silent normalisation)", 8, 8),
    Hostile(
        "special_tokens.jsonl",
        "encoded as ordinary text, not as the control id (or documented)",
        7,
        7,
        note="the encoding is tested in tests/tokenize",
    ),
    Hostile("ok.jsonl.gz", "5 docs", 5, 5),
    Hostile("concat.jsonl.gz", "6 docs (readers that stop at the first member lose data)", 6, 6),
    Hostile(
        "truncated.jsonl.gz",
        "error named with the file; not a silent short read",
        0,
        None,
        LOST,
        note="what could be decoded is kept",
    ),
    Hostile(
        "no_trailer.jsonl.gz",
        "error or warning",
        5000,
        5001,
        LOST,
        note="like a file that was cut: the records are kept, the damage is one quarantined entry",
    ),
    Hostile("bitflip.jsonl.gz", "error (inflate or CRC)", 0, 1, LOST, note=NOTHING_OF_IT),
    Hostile("bad_crc.jsonl.gz", "error", 0, 1, LOST, note=NOTHING_OF_IT),
    Hostile(
        "trailing_garbage.jsonl.gz", "5 docs + warning, or error", 5, 6, LOST, note="the junk is one quarantined entry"
    ),
    Hostile("zero_padded.jsonl.gz", "5 docs", 5, 5),
    refused(
        "not_gzip.jsonl.gz",
        "5 docs by content or named error",
        UnreadableError,
        "is not a gzip file",
        note="refused, since the name or the download is wrong",
    ),
    refused("gz_named_plain.jsonl", "named error or read", UnreadableError, "contains gzip data", note="refused"),
    refused(
        "empty.jsonl.gz",
        "named error or 0 docs",
        UnreadableError,
        "is empty",
        note="refused, since a gzip file has at least 20 bytes",
    ),
    Hostile("empty_stream.jsonl.gz", "0 docs"),
    Hostile(
        "bomb.jsonl.gz",
        "bounded memory: over the line limit = dropped and counted; 5 kept",
        6,
        6,
        note="64 MiB are within the default limit of 256 MiB; a test sets it to 8 MiB",
    ),
    Hostile("ok.jsonl.zst", "5 docs", 5, 5),
    Hostile("concat.jsonl.zst", "6 docs (python-zstandard stops at frame 1 by default)", 6, 6),
    Hostile("skippable.jsonl.zst", "5 docs", 5, 5),
    Hostile(
        "truncated.jsonl.zst", "error, not a silent short read", 0, None, LOST, note="what could be decoded is kept"
    ),
    Hostile("bitflip.jsonl.zst", "error", 0, 1, LOST, note=NOTHING_OF_IT),
    Hostile("bad_checksum.jsonl.zst", "error", 0, 1, LOST, note=NOTHING_OF_IT),
    Hostile(
        "long_window.jsonl.zst",
        "read with window limit raised, or named error; no 2 GiB allocation",
        5,
        5,
        note="read; the memory is allocated as the window fills",
    ),
    Hostile("ok.parquet", "5 docs", 5, 5),
    Hostile("zero_rows.parquet", "0 docs"),
    Hostile(
        "nulls.parquet",
        '2 dropped and counted; not "None"',
        2,
        5,
        {"blank": 1, "missing": 2},
        note="and one text is empty",
    ),
    refused("no_text_column.parquet", "named error", ColumnError, "has no column 'text'; it has id, content"),
    Hostile("text_is_binary.parquet", "by policy", 5, 5, REPAIRED, note="invalid bytes become U+FFFD"),
    refused("text_is_int.parquet", "named error", ColumnError, "int64, not text"),
    Hostile("large_string_dict.parquet", "5 docs", 5, 5),
    Hostile("many_row_groups.parquet", "2000 docs in order", 2000, 2000),
    refused("list_text.parquet", "named error", ColumnError, "list<item: string>, not text"),
    Hostile("zero_columns_nested.parquet", "5 docs", 5, 5),
    Hostile("truncated.parquet", "named error", 0, 1, LOST, note="its footer is lost: one quarantined entry"),
    refused("bad_magic.parquet", "named error", UnreadableError, "is not a parquet file"),
    refused("empty.parquet", "named error", UnreadableError, "is empty"),
    Hostile("tiny.parquet", "named error", 0, 1, LOST, note="its footer is lost: one quarantined entry"),
    Hostile(
        "footer_len_huge.parquet",
        "named error, no allocation",
        0,
        1,
        LOST,
        note="its footer is lost: one quarantined entry",
    ),
    Hostile(
        "bitflip.parquet",
        "error where page CRC exists; else at least no crash",
        5,
        5,
        note="the page has no CRC, so the flipped bit is inside a text",
    ),
    Hostile("dir.jsonl/", "named error or walked", note="walked; a hidden file is no input"),
    Hostile("name with spaces & ünïcödé 🙂.jsonl", "5 docs", 5, 5),
    Hostile("-dash.jsonl", "5 docs", 5, 5),
    Hostile("new\\nline.jsonl", "5 docs", 5, 5),
)
BY_FILE = {row.file.replace("\\n", "\n"): row for row in TABLE}
