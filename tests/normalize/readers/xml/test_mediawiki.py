"""MediaWiki dumps: every page with its latest revision, against the standard library's tree of the whole file."""

from __future__ import annotations

import bz2
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import UnreadableError
from datakit.normalize.readers import base
from datakit.normalize.readers.base import Chunk
from datakit.normalize.readers.xml import mediawiki
from datakit.normalize.readers.xml.pages import PROLOG_BYTES
from datakit.normalize.record_counts import RecordCounts
from tests.support.normalize.readers import positions, read, reasons, rows
from tests.support.normalize.sources import normalize

HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">\n'
    "  <siteinfo>\n    <sitename>Wiki</sitename>\n    <namespaces><namespace key='0'/></namespaces>\n  </siteinfo>\n"
)
TAIL = "</mediawiki>\n"
SPACE = "{http://www.mediawiki.org/xml/export-0.11/}"
COLUMNS = ["id", "text", "title", "namespace", "revision", "timestamp", "redirect", "model"]

# what XML can hold: no control characters but tab and line feed, no surrogates, no U+FFFE and U+FFFF
characters = st.characters(min_codepoint=32, exclude_categories=["Cs"], exclude_characters="\ufffe\uffff")
texts = st.text(st.one_of(characters, st.sampled_from("\n\t<>&\"'")), max_size=30)


def revision(number: int, day: int, text: str | None, model: str = "wikitext") -> str:
    body = (
        '<text deleted="deleted" />' if text is None else f'<text bytes="9" xml:space="preserve">{escape(text)}</text>'
    )
    return (
        f"<revision><id>{number}</id><parentid>7</parentid><timestamp>2024-01-{day:02d}T00:00:00Z</timestamp>"
        f"<contributor><username>u</username><id>99</id></contributor><comment>&lt;page&gt;</comment>"
        f"<model>{model}</model><format>text/x-wiki</format>{body}<sha1>x</sha1></revision>"
    )


def page(number: int, title: str, revisions: list[str], namespace: int = 0, redirect: str | None = None) -> str:
    to = "" if redirect is None else f"<redirect title={quoteattr(redirect)} />"
    return (
        f"<page>\n<title>{escape(title)}</title><ns>{namespace}</ns><id>{number}</id>{to}{''.join(revisions)}</page>\n"
    )


revisions = st.builds(revision, st.integers(1, 99), st.integers(1, 28), st.one_of(st.none(), texts))
pages = st.builds(
    page,
    st.integers(1, 10**9),
    texts,
    st.lists(revisions, min_size=1, max_size=3),
    st.integers(-2, 15),
    st.one_of(st.none(), texts),
)  # fmt: skip


def read_dump(directory: Path, data: bytes, name: str = "in.xml", **config: Any) -> tuple[list[Chunk], RecordCounts]:
    (directory / name).write_bytes(data)
    return read(directory, name, format="mediawiki", **config)


def oracle(data: bytes) -> list[dict[str, Any]]:
    """The rows according to a tree of the whole file."""
    found = []
    for one in ElementTree.fromstring(data).iter(f"{SPACE}page"):
        revisions = one.findall(f"{SPACE}revision")
        latest = max(revisions, key=lambda entry: (_text(entry, "timestamp"), int(_text(entry, "id") or 0)))
        body, to = latest.find(f"{SPACE}text"), one.find(f"{SPACE}redirect")
        content = None if body is None or "deleted" in body.attrib else body.text or ""
        values = [
            _text(one, "id"), content, _text(one, "title"), int(_text(one, "ns") or 0),
            int(_text(latest, "id") or 0), _text(latest, "timestamp"), None if to is None else to.attrib["title"],
            _text(latest, "model"),
        ]  # fmt: skip
        found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(f"{SPACE}{name}") or ""


@settings(max_examples=40, deadline=None)
@given(content=st.lists(pages, max_size=6), chunk=st.integers(1, 2000), cut=st.sampled_from([1, 7, 100, 1000]))
def test_rows_equal_the_tree(
    tmp_path_factory: pytest.TempPathFactory, content: list[str], chunk: int, cut: int
) -> None:
    data = (HEAD + "".join(content) + TAIL).encode()

    def in_parts(file: Any, *_: Any, **__: Any) -> Any:
        return iter(lambda: file.read(cut), b"")

    with patch.object(base, "CHUNK_BYTES", chunk), patch.object(mediawiki, "decompressed", in_parts):
        found, counts = read_dump(tmp_path_factory.mktemp("wiki"), data)
    expected = oracle(data)
    # of equally new revisions, the first one counts
    assert [{**row, "text": None} for row in rows(found)] == [{**row, "text": None} for row in expected]
    assert [row["text"] for row in rows(found)] == [row["text"] for row in expected]
    assert positions(found) == [match.start() for match in re.finditer(b"<page>", data)]
    assert not counts.quarantined and counts.counters["normalize/records_in"] == len(expected)


BROKEN = (
    ("<page><title>a</title><id>1</id><revision><id>1</id><text>a & b</text></revision></page>", "not XML"),
    ("<page><title>a</title><id>1</id><revision><id>1</id><text>&lol;</text></revision></page>", "undefined entity"),
    ("<page><title>a</title><id>1</id></page>", "no revision"),
    ("<page><title>a</title><id>1</id><revision><text>x</text></revision></page>", "the revision has no id"),
    ("<page><id>1</id><revision><id>1</id></revision></page>", "no title"),
    ("<page><title>a</title><revision><id>1</id></revision></page>", "the page has no id"),
    ("<page><title>a</title><id>one</id><revision><id>1</id></revision></page>", "not a number"),
    ("<page><title>a</title><title>b</title><id>1</id><revision><id>1</id></revision></page>", "two elements <title>"),
    ("<page>" + "<a>" * 40 + "</a>" * 40 + "</page>", "nested deeper"),
    ("<page><title>a</title><id>1</id>", "the page has no end"),
    ("garbage", "something other than a page"),
)


@pytest.mark.parametrize(("broken", "words"), BROKEN)
def test_broken_page_costs_one_page(tmp_path: Path, broken: str, words: str) -> None:
    first, last = page(1, "first", [revision(1, 1, "one")]), page(2, "last", [revision(2, 1, "two")])
    data = (HEAD + first + broken + last + TAIL).encode()
    found, counts = read_dump(tmp_path, data)
    assert [row["title"] for row in rows(found)] == ["first", "last"]
    ((place, reason),) = reasons(counts)
    assert place == data.index(broken.encode())
    assert words in reason
    assert "lol" not in reason, "reasons do not quote"
    assert counts.counters["normalize/records_in"] == 3


def test_page_over_the_limit_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    long = page(1, "long", [revision(1, 1, "x" * (9 << 20))])
    data = (HEAD + long + page(2, "short", [revision(2, 1, "two")]) + TAIL).encode()
    found, counts = read_dump(tmp_path, data, max_document_bytes=1 << 20)
    assert [row["title"] for row in rows(found)] == ["short"]
    assert [place for place, _ in reasons(counts)] == [data.index(b"<page>")]


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ('<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><mediawiki>', "declares a document type"),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><mediawiki>', "declares a document type"),
        ('<?xml version="1.0" encoding="utf-16"?><mediawiki>', "not in UTF-8"),
        ("<rss>", "not a MediaWiki dump"),
        ("", "not a MediaWiki dump"),
    ],
)
def test_other_xml_is_refused(tmp_path: Path, start: str, words: str) -> None:
    with pytest.raises(UnreadableError, match=f"in.xml .*{words}"):
        read_dump(tmp_path, (start + page(1, "a", [revision(1, 1, "b")])).encode())


def test_file_without_pages_is_refused_before_it_is_held_in_memory(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no page in its first"):
        read_dump(tmp_path, b"<mediawiki>" + b"x" * (3 * PROLOG_BYTES))


@pytest.mark.parametrize(("tail", "reported"), [("", 1), ("</mediawiki>", 0), ("</mediawiki>\nmore and more \n", 1)])
def test_end_of_the_dump_is_checked(tmp_path: Path, tail: str, reported: int) -> None:
    found, counts = read_dump(tmp_path, (HEAD + page(1, "a", [revision(1, 1, "b")]) + tail).encode())
    assert (len(rows(found)), len(counts.quarantined)) == (1, reported)


def test_dump_of_several_streams_is_read_to_its_end(tmp_path: Path) -> None:
    """As in pages-articles-multistream.xml.bz2: the head, a hundred pages per stream, and the tail."""
    parts = [HEAD, *(page(number, f"t{number}", [revision(1, 1, f"text {number}")]) for number in range(5)), TAIL]
    data = b"".join(bz2.compress(part.encode()) for part in parts)
    found, counts = read_dump(tmp_path, data, "in.xml.bz2")
    assert [row["id"] for row in rows(found)] == list("01234")
    assert not counts.quarantined
    cut, counted = read_dump(tmp_path, data[:-20], "cut.xml.bz2")
    assert len(rows(cut)) == 5 and len(counted.quarantined) == 1


def test_invalid_utf8_is_replaced_and_counted(tmp_path: Path) -> None:
    found, counts = read_dump(
        tmp_path, (HEAD + page(1, "a", [revision(1, 1, "b#c")]) + TAIL).encode().replace(b"#", b"\xff")
    )
    assert rows(found)[0]["text"] == "b\ufffdc"
    assert counts.counters["normalize/invalid_utf8"] == 1


def test_namespaces_are_chosen_by_where(tmp_path: Path) -> None:
    content = [page(number, f"t{number}", [revision(1, 1, f"text {number}")], number % 3) for number in range(9)]
    (tmp_path / "in.xml").write_text(HEAD + "".join(content) + page(9, "gone", [revision(1, 1, None)]) + TAIL)
    result = normalize(tmp_path / "out", tmp_path / "in.xml", format="mediawiki", where="namespace = 0")
    assert sorted(row["source_id"] for row in result.rows()) == ["0", "3", "6"]
    assert (result["where_dropped"], result["missing"], result["records_in"]) == (6, 1, 10)
