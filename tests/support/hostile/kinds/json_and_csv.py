"""JSON Lines, CSV and plain text that no honest program writes."""

from __future__ import annotations

from tests.support.hostile.case import Case, done, partial, refused, texts

GOOD = b'{"text": "DOCUMENT one"}\n{"text": "DOCUMENT two"}\n'
ESCAPES = "\x1b]0;owned\x07\u202e".encode()

CASES = (
    Case(
        "json-nested-100000-deep",
        texts(("a.jsonl", GOOD + b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")),
        done(2, quarantined=1),
    ),
    Case(
        "json-nested-deep-beside-text",
        texts(("a.jsonl", GOOD + b'{"text": "DOCUMENT", "x": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}\n")),
        done(2, quarantined=1),
    ),
    Case(
        "json-strict-about-bad-line",
        texts(("a.jsonl", GOOD + b'{"text": "DOCUMENT\n'), more=""),
        partial("a.jsonl:114: not JSON", "max_quarantined"),
    ),
    Case(
        "json-number-of-10000-digits",
        texts(("a.jsonl", GOOD + b'{"text": "DOCUMENT", "n": ' + b"9" * 10_000 + b"}\n")),
        done(3),
    ),
    Case("json-exponent-bomb", texts(("a.jsonl", GOOD + b'{"text": "DOCUMENT", "n": 1e999999999}\n')), done(3)),
    Case("json-lines-that-are-arrays", texts(("a.jsonl", GOOD + b"[1]\n[]\nnull\n1\n")), done(2, quarantined=4)),
    Case("json-lone-surrogates", texts(("a.jsonl", GOOD + b'{"text": "DOCUMENT \\ud800"}\n')), done(3, invalid_utf8=1)),
    Case(
        "json-nul-bytes-between-lines",
        texts(("a.jsonl", GOOD + bytes(5000) + b"\n" + GOOD)),
        done(2, duplicates=2, quarantined=1),
    ),
    Case(
        "json-text-of-every-type",
        texts(
            ("a.jsonl", GOOD + b'{"text": 1}\n{"text": {"a": 1}}\n{"text": [1]}\n{"text": true}\n{"text": null}\n{}\n')
        ),
        done(2, missing=2, quarantined=4),
    ),
    Case(
        "json-types-change-by-line",
        texts(
            (
                "a.jsonl",
                b"".join(
                    b'{"text": "DOCUMENT %d", "x": %s}\n' % (n, v)
                    for n, v in enumerate((b"1", b'"a"', b"[1]", b'{"y": 1}', b"null", b"1.5", b"true"))
                ),
            )
        ),
        refused("column 'x' holds arrays and", "drop = ['x']"),
    ),
    Case(
        "json-20000-columns",
        texts(
            ("a.jsonl", GOOD + b'{"text": "DOCUMENT", ' + b", ".join(b'"c%d": 1' % n for n in range(20_000)) + b"}\n")
        ),
        refused("columns above 2000"),
    ),
    Case(
        "json-key-of-one-megabyte",
        texts(("a.jsonl", GOOD + b'{"text": "DOCUMENT", "' + b"k" * (1 << 20) + b'": 1}\n')),
        done(3),
    ),
    Case(
        "json-keys-of-objects-in-python",
        texts(
            (
                "a.jsonl",
                b'{"text": "DOCUMENT", "__class__": "os.system", '
                b'"__reduce__": ["os.system", "touch x"], "py/object": "planted_module.X"}\n',
            )
        ),
        done(1),
    ),
    Case("json-repeated-keys", texts(("a.jsonl", b'{"text": "DOCUMENT one", "text": "DOCUMENT two"}\n')), done(1)),
    Case(
        "json-column-names-with-control-characters",
        texts(("a.jsonl", b'{"body": "DOCUMENT", "' + ESCAPES + b'": 1}\n')),
        refused("Invalid control character"),
    ),
    Case(
        "json-column-names-with-escapes",
        texts(("a.jsonl", b'{"body": "DOCUMENT", "\\u001b[31m\\u202e": 1}\n')),
        refused("has no column 'text'", r"\x1b[31m\u202e"),
    ),
    Case("json-in-utf-16", texts(("a.jsonl", '{"text": "DOCUMENT"}\n'.encode("utf-16"))), refused("UTF-16", "a.jsonl")),
    Case("json-with-byte-order-mark", texts(("a.jsonl", b"\xef\xbb\xbf" + GOOD)), done(2)),
    Case("json-with-carriage-returns-only", texts(("a.jsonl", GOOD.replace(b"\n", b"\r"))), refused("1 quarantined")),
    Case(
        "json-invalid-utf-8",
        texts(("a.jsonl", GOOD + b'{"text": "DOCUMENT \xff\xc0\x80\xed\xa0\x80"}\n')),
        done(3, invalid_utf8=1),
    ),
    Case(
        "json-one-array-in-the-file",
        texts(("a.json", b"[" + GOOD.replace(b"\n", b",\n") + b"{}]")),
        refused("a.json", code=(2, 3)),
    ),
    Case("json-of-line-feeds-only", texts(("a.jsonl", b"\n" * 1_000_000)), refused("became a document")),
    Case(
        "json-identifier-with-escapes",
        texts(("a.jsonl", GOOD + b'{"text": "DOCUMENT", "id": "\\u001b[2J\\u202e"}\n')),
        done(3),
    ),
    Case(
        "csv-quote-never-closed",
        texts(("a.csv", b'text,n\n"DOCUMENT one",1\n"DOCUMENT two,2\nDOCUMENT three,3\n')),
        done(1, quarantined=1),
    ),
    Case(
        "csv-rows-of-other-lengths",
        texts(("a.csv", b"text,n\nDOCUMENT one,1\nDOCUMENT two\nDOCUMENT three,3,4,5\n")),
        done(1, quarantined=2),
    ),
    Case("csv-nul-bytes", texts(("a.csv", b"text,n\nDOCUMENT \0one,1\nDOCUMENT two,2\n")), done(2, nul=1)),
    Case("csv-repeated-names", texts(("a.csv", b"text,text\nDOCUMENT one,DOCUMENT two\n")), refused("a.csv", "text")),
    Case("csv-empty-names", texts(("a.csv", b",,\n1,2,3\n")), refused("a.csv")),
    Case(
        "csv-names-with-escapes",
        texts(("a.csv", b"body," + ESCAPES + b"\nDOCUMENT,2\n")),
        refused("has no column 'text'"),
    ),
    Case(
        "csv-20000-columns",
        texts(
            ("a.csv", b"text," + b",".join(b"c%d" % n for n in range(20_000)) + b"\nDOCUMENT" + b",1" * 20_000 + b"\n")
        ),
        refused("columns above 2000"),
    ),
    Case(
        "csv-quotes-only",
        texts(("a.csv", b"text\n" + b'"' * 100_001 + b"\nDOCUMENT\n")),
        refused("the quote at byte 5 is not closed"),
    ),
    Case("csv-field-with-formula", texts(("a.csv", b"text\n\"=cmd|' /C calc'!A0 DOCUMENT\"\n")), done(1)),
    Case(
        "tsv-quote-inside-field",
        texts(("a.tsv", b'text\tn\nDOC"UMENT\t1\n"DOCUMENT\t2\n'), source='quoting = "none"'),
        done(2),
    ),
    Case("text-invalid-utf-8", texts(("a.txt", b"DOCUMENT \xff\xfe\xfd")), done(1, invalid_utf8=1)),
    Case("text-in-utf-16", texts(("a.txt", "DOCUMENT".encode("utf-16"))), refused("UTF-16", "a.txt")),
    Case("text-of-nul-bytes", texts(("a.txt", bytes(10_000)), ("b.txt", b"DOCUMENT")), done(1, blank=1, nul=1)),
    Case(
        "text-of-formatting-characters",
        texts(("a.txt", ("\u202e\u2066\u200b" * 50_000).encode()), ("b.txt", b"DOCUMENT")),
        done(2),
    ),
    Case("text-of-combining-characters", texts(("a.txt", ("a" + "\u0301" * 200_000).encode())), done(1)),
)
