"""Taking the texts out of JSON Lines changes nothing: the parser yields the same records, and the reader reports the
same lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datakit.normalize.readers import json as reader
from datakit.normalize.readers.json_columns import ColumnParser
from datakit.normalize.readers.json_lines import find_lines
from datakit.normalize.readers.taken_texts.take import LONGEST_DATE, take_texts
from tests.support.normalize.readers import read_json

LONG = "x" * (LONGEST_DATE + 1)
LINE = b'{"id": "a", "text": "%s"}\n'
TEXTS = st.text() | st.text('"\\/\n\t{}[]:, \x7fäあ😀', min_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["text", "b"]), inner, max_size=2),
    max_leaves=4,
)
DEEP = b'{"a": ' + b"[" * 60 + b"]" * 60 + b', "text": "' + LONG.encode() + b'"}\n'


@st.composite
def chunks(draw: st.DrawFn) -> bytes:
    """Return lines of which most hold a text, and of which a few bytes may be damaged."""
    data = b""
    for _ in range(draw(st.integers(1, 4))):
        before = draw(st.dictionaries(st.sampled_from(["id", "a", "texts", 'te"xt']), VALUES, max_size=2))
        after = draw(st.dictionaries(st.sampled_from(["z", "y"]), VALUES, max_size=2))
        text = draw(TEXTS) + draw(st.sampled_from(["", LONG])) + draw(TEXTS)
        spaces = draw(st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", "\t: ")]))
        record = before | {"text": draw(st.one_of(st.just(text), st.just(text), VALUES))} | after
        line = json.dumps(record, ensure_ascii=draw(st.booleans()), separators=spaces)
        data += line.encode("utf-8", "surrogatepass") + draw(st.sampled_from([b"\n", b"\r\n", b"\n \n", b" \n"]))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(data) - 1))
        data = data[:place] + draw(st.binary(max_size=2)) + data[place + draw(st.integers(0, 2)) :]
    return data.removesuffix(b"\n") if draw(st.booleans()) else data


@given(chunks())
@example(LINE % LONG.encode() + LINE % b"\xff")
@example(LINE % (LONG.encode() + rb"\ud83d\ude00 \u00e4 \u20AC \n \/"))
@example(LINE % (LONG.encode() + rb"\ud83d") + LINE % rb"\ude00" + LINE % rb"\u0000")
@example((LINE % LONG.encode()).replace(b"a", b"a\0"))
@example(b'{"text": "%s", "text": "b"}\n' % LONG.encode())
@example(b'{"te\\u0078t": "%s", "text": "%s"}\n' % (LONG.encode(), LONG.encode()))
@example(b'{"text": "%s"}{"text": "b"}\n\n' % LONG.encode())
@example(LINE % b"a" + b'{"a": "x\\\ny", "text": "%s"}\n' % LONG.encode() + LINE % b"b")
@example(DEEP)
def test_reader_yields_the_same(data: bytes) -> None:
    """Compare records, positions, counters and quarantined lines with those of a reader that takes no texts out."""
    with TemporaryDirectory() as folder:
        with mock.patch.object(reader, "take_texts", lambda *_: None):
            expected = _seen(Path(folder), data)
        assert _seen(Path(folder), data) == expected


def _seen(folder: Path, data: bytes) -> Any:
    try:
        found, counts = read_json(folder, data)
    except Exception as error:  # noqa: BLE001 - any error must be the same
        return type(error), str(error)
    tables = [(str(chunk.table.schema), chunk.table.to_pylist(), chunk.positions.tolist()) for chunk in found]
    return repr(tables), dict(counts.counters), repr(counts.quarantined)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), st.booleans())
def test_texts_are_taken_out(pairs: list[tuple[str, str]], escaped: bool) -> None:
    """All strings but those with NUL are taken, and the records are those of the parser."""
    pairs = [(name.replace("\0", ""), text.replace("\0", "") + LONG) for name, text in pairs]
    records = [{"id": name, "n": {"text": [1]}, "text": text, "z": number} for number, (name, text) in enumerate(pairs)]
    data = b"".join(json.dumps(record, ensure_ascii=escaped).encode() + b"\n" for record in records)
    taken, lines = take_texts(data, "text"), find_lines(data)
    assert taken is not None
    assert taken.line_ends == len(records)
    assert taken.texts.to_pylist() == [text for _, text in pairs]
    assert [one.tolist() for one in (taken.lines.starts, taken.lines.ends, taken.lines.kinds)] == [
        one.tolist() for one in (lines.starts, lines.ends, lines.kinds)
    ]
    table = ColumnParser("id").parse(data, len(lines), taken)
    assert table is not None
    assert table.equals(ColumnParser("id").parse(data, len(lines)))
    assert table.schema.field("text").type == pa.string()


@pytest.mark.parametrize(
    "line",
    [
        LINE % b"2020-01-01",
        LINE % (LONG.encode() + b"\x01"),
        LINE % (LONG.encode() + b"\\x"),
        LINE % (LONG.encode() + rb"\u00g0"),
        LINE % (LONG.encode() + rb"\udc00"),
        LINE % (LONG.encode() + rb"\u0000"),
        LINE % (LONG.encode() + b"\xff"),
        b'{"id": "\xff", "text": "%s"}\n' % LONG.encode(),
        b'{"id": "a"}\n',
        b'{"text": null}\n',
        b'["text"]\n',
        b'{"text": "%s"\n' % LONG.encode(),
        DEEP,
    ],
)
def test_other_chunks_are_left_to_the_parser(line: bytes) -> None:
    """One such line suffices."""
    sound = LINE % LONG.encode() if b"2020" not in line else b""
    assert take_texts(sound + line, "text") is None
    assert take_texts(line + sound, "text") is None


def test_names_are_compared_as_they_are_written() -> None:
    """A name with a backslash may be that of another member in JSON."""
    assert take_texts(b'{"a\\b": "%s"}\n' % LONG.encode(), "a\\b") is None
    taken = take_texts('{"größe": "{}"}\n'.replace("{}", LONG).encode(), "größe")
    assert taken is not None
    assert taken.texts.to_pylist() == [LONG]


def test_ends_of_chunks_are_read() -> None:
    """The last bytes of a chunk, which are fewer than a vector, are read one by one."""
    for spare in range(70):
        text = LONG + 'a"\\' + "b" * spare
        data = b'{"text": ' + json.dumps(text).encode() + b"}"
        taken = take_texts(data, "text")
        assert taken is not None
        assert taken.texts.to_pylist() == [text]
        assert bytes(taken.rest) == b'{"text": ""}\n'
        for stop in range(1, len(data)):
            assert take_texts(data[:stop], "text") is None
