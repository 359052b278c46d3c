"""Records of web archives: all are found where they lie, and a broken one does not take others with it."""

from __future__ import annotations

import gzip
import itertools
import random
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from datakit.errors import UnreadableError
from datakit.normalize.formats import ARC, FOREIGN, WARC, kind_of
from datakit.normalize.readers.web import members, records, window
from datakit.normalize.readers.web.headers import header_end
from datakit.normalize.readers.web.records import Broken, Record
from tests.support.normalize.web_archives import COMPRESSIONS, cut, page, response, warc_record, write_archive

BLOCKS = st.lists(
    st.one_of(
        st.binary(max_size=200),
        st.sampled_from(
            [
                b"",
                b"\r\n",
                b"\r\n\r\nWARC/1.0\r\n",
                b"WARC/1.0\r\nContent-Length: 9\r\n\r\n",
                b"\x1f\x8b\x08",
                b"\n" * 9,
            ]
        ),
    ),
    min_size=1,
    max_size=8,
)


def sound(found: list[Record | Broken]) -> list[tuple[int, int, bytes]]:
    return [(one.position, one.stored, bytes(one.block)) for one in found if isinstance(one, Record)]


def broken(found: list[Record | Broken]) -> list[tuple[int, str]]:
    return [(one.position, one.reason) for one in found if isinstance(one, Broken)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives")


@settings(deadline=None, max_examples=60)
@given(
    BLOCKS, st.sampled_from(list(COMPRESSIONS)), st.sampled_from([1, 7, 100, 1 << 20]), st.sampled_from([64, 1 << 20])
)
def test_all_records_are_found_whatever_they_hold(
    folder: Path, blocks: list[bytes], compression: str, piece: int, held: int
) -> None:
    """Blocks may hold what looks like records, and pieces may end anywhere."""
    path = folder / f"a.warc{compression}"
    places = write_archive(path, [warc_record(block, number=number) for number, block in enumerate(blocks)])
    with (
        patch.object(members, "OUTPUT_BYTES", piece),
        patch.object(members, "INPUT_BYTES", max(piece, 64)),
        patch.object(members, "HELD_BYTES", held),
    ):
        found = list(cut(path))
    expected = [
        (place[0], place[1] if compression else place[0], block) for place, block in zip(places, blocks, strict=True)
    ]
    assert sound(found) == expected and not broken(found)


@settings(deadline=None, max_examples=60)
@given(BLOCKS, st.lists(st.sampled_from([b"", b"\n", b"\r\n", b"x"]), min_size=8, max_size=8), st.integers(100, 2000))
def test_records_alone_in_their_members_are_those_of_the_general_case(
    folder: Path, blocks: list[bytes], ends: list[bytes], longest: int
) -> None:
    path = folder / "e.warc.gz"
    write_archive(path, [warc_record(block, number=n) + ends[n] for n, block in enumerate(blocks)])
    found = list(cut(path, max_document_bytes=longest))
    with patch.object(records.RecordCutter, "_lone_record", lambda self: None):
        assert list(cut(path, max_document_bytes=longest)) == found


def test_small_block_does_not_keep_its_window_in_memory(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(GOOD[0] + response(b"x" * 5000))
    small, large = (one for one in cut(tmp_path / "a.warc") if isinstance(one, Record))
    assert len(small.block.obj) == len(b"one") and len(large.block.obj) > 5000  # pyright: ignore[reportArgumentType]


@given(st.text("\r\na", max_size=12), st.integers(0, 4), st.integers(0, 14))
def test_a_header_ends_at_its_first_blank_line(text: str, start: int, stop: int) -> None:
    data = text.encode()
    found = re.compile(rb"\r?\n\r?\n").search(data, start, stop)
    assert header_end(data, start, stop) == (found and found.span())


@settings(deadline=None, max_examples=60)
@given(BLOCKS, st.sampled_from(["", ".gz", ".zst"]))
def test_reading_may_begin_at_each_record(folder: Path, blocks: list[bytes], compression: str) -> None:
    """A place that may be cut is enough to go on from there, without what lies before it."""
    path = folder / f"b.warc{compression}"
    write_archive(path, [warc_record(block, number=number) for number, block in enumerate(blocks)])
    found = list(cut(path))
    assert all(isinstance(one, Record) and one.may_be_cut for one in found)
    for number, one in enumerate(found):
        assert list(cut(path, start=one.stored, origin=one.position)) == found[number:]


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_damaged_byte_costs_one_record(folder: Path, data: st.DataObject) -> None:
    """In an archive compressed record by record, all others are read, at the right places in the stored file."""
    compression = data.draw(st.sampled_from([".gz", ".zst"]))
    blocks = [f"block {number} ".encode() * 20 for number in range(6)]
    path = folder / f"c.warc{compression}"
    places = write_archive(path, [warc_record(block, number=number) for number, block in enumerate(blocks)])
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    damaged = max(number for number, (_, stored) in enumerate(places) if stored <= at)
    if damaged == 0 and at < 8:
        return  # then the file is of another kind, and is refused
    found = list(cut(path))
    expected = [
        (stored, block)
        for number, ((_, stored), block) in enumerate(zip(places, blocks, strict=True))
        if number != damaged
    ]
    kept = [(one.stored, one.block) for one in found if isinstance(one, Record)]
    assert [one for one in kept if one[0] != places[damaged][1]] == expected
    assert len(found) == len(blocks), "the damaged member counts as one record"


def begins_like_another_file(data: bytes) -> bool:
    """Return True if the first bytes are those of a compressed file, an archive or the like."""
    return kind_of(data) is not None or any(magic and data.startswith(magic) for _, magic, _, _ in FOREIGN)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_damage_to_a_plain_archive_leaves_the_later_records(folder: Path, data: st.DataObject) -> None:
    blocks = [f"block {number} ".encode() * 20 for number in range(5)]
    wholes = [warc_record(block, number=number) for number, block in enumerate(blocks)]
    hit = data.draw(st.integers(0, 4))
    whole = bytearray(wholes[hit])
    at = data.draw(
        st.integers(0, len(whole) - 3)
    )  # the last line end stays: a record begins at the beginning of a line
    whole[at : min(len(whole) - 2, at + data.draw(st.integers(0, 30)))] = data.draw(
        st.binary(max_size=30).filter(lambda some: b"WARC/" not in some)
    )
    path = folder / "d.warc"
    path.write_bytes(b"".join([*wholes[:hit], bytes(whole), *wholes[hit + 1 :]]))
    assume(not begins_like_another_file(path.read_bytes()))  # such a file is refused as a whole
    kept = [one.block for one in cut(path) if isinstance(one, Record)]
    assert [block for number, block in enumerate(blocks) if number < hit] == kept[:hit]
    assert all(block in kept for number, block in enumerate(blocks) if number > hit)


GOOD = [warc_record(b"one", number=1), warc_record(b"two", number=2)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (warc_record(b"x" * 50, length=10), "its length, 10 bytes, is wrong"),
        (warc_record(b"x" * 50, length=60), "its length, 60 bytes, is wrong"),
        (warc_record(b"x" * 50, length=10**9), "its length, 1000000000 bytes, is wrong"),
        (warc_record(b"x", Content_Length=""), "it states no Content-Length"),
        (warc_record(b"x", Content_Length="-1"), "its length is not a number"),
        (warc_record(b"x", Content_Length="1\r\nContent-Length: 2"), "it states several values"),
        (b"garbage\r\nof two lines\r\n\r\n", "no record begins here"),
        (b"WARC/1.0\r\n" + b"Header: x\r\n" * (records.HEADER_BYTES // 8), "its header does not end within"),
    ],
    ids=["short", "long", "huge", "missing", "negative", "several", "garbage", "header"],
)
@pytest.mark.parametrize("compression", ["", ".gz"])
def test_broken_record_is_one_and_the_next_is_read(tmp_path: Path, bad: bytes, reason: str, compression: str) -> None:
    places = write_archive(tmp_path / f"a.warc{compression}", [GOOD[0], bad, GOOD[1]])
    found = list(cut(tmp_path / f"a.warc{compression}", max_document_bytes=1 << 30))
    assert [one.block for one in found if isinstance(one, Record)] == [b"one", b"two"]
    ((position, why),) = broken(found)
    assert position == places[1][0] and reason in why


def test_lines_may_end_with_line_feeds_alone(tmp_path: Path) -> None:
    record = warc_record(b"block")
    (tmp_path / "a.warc").write_bytes(record.replace(b"\r\n", b"\n") + record)
    assert [one.block for one in cut(tmp_path / "a.warc") if isinstance(one, Record)] == [b"block"] * 2


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_file_that_ends_inside_a_record_loses_only_this_record(tmp_path: Path, compression: str) -> None:
    path = tmp_path / f"a.warc{compression}"
    wholes = [warc_record(bytes(range(256)) * 4, number=number) for number in range(3)]
    last, stored = write_archive(path, wholes)[-1]
    whole = path.read_bytes()
    for end in range(stored + 12, len(whole) - 12, 40):
        path.write_bytes(whole[:end])
        found = list(cut(path))
        assert len(sound(found)) == 2
        ((position, reason),) = broken(found)
        assert position == last and "the file ends inside" in reason


def test_one_member_of_many_records_is_read_but_not_cut(tmp_path: Path) -> None:
    """The archive is one gzip stream, as `gzip archive.warc` makes it. If it is damaged, nothing of it is used."""
    wholes = [warc_record(bytes([number]) * 3000, number=number) for number in range(50)]
    whole = gzip.compress(b"".join(wholes), mtime=0)
    (tmp_path / "a.warc.gz").write_bytes(whole)
    with patch.object(members, "HELD_BYTES", 10_000):
        found = list(cut(tmp_path / "a.warc.gz"))
        assert [one.position for one in found] == [0, *itertools.accumulate(map(len, wholes[:-1]))]
        assert [one.may_be_cut for one in found if isinstance(one, Record)] == [True] + [False] * 49
        (tmp_path / "a.warc.gz").write_bytes(whole[:-5] + b"\0\0\0\0\0" + gzip.compress(GOOD[0]))
        found = list(cut(tmp_path / "a.warc.gz"))
    assert [one[2] for one in sound(found)] == [b"one"]
    assert ["damaged" in why for _, why in broken(found)] == [True]


def test_page_that_holds_an_archive_is_one_record(tmp_path: Path) -> None:
    inner = b"".join(COMPRESSIONS[".gz"](record) for record in GOOD)
    stored = gzip.compress(warc_record(inner, number=7), 0)  # the archive inside is stored byte for byte
    (tmp_path / "a.warc.gz").write_bytes(COMPRESSIONS[".gz"](GOOD[0]) + stored + COMPRESSIONS[".gz"](GOOD[1]))
    found = list(cut(tmp_path / "a.warc.gz"))
    assert [one[2] for one in sound(found)] == [b"one", inner, b"two"] and not broken(found)


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_block_that_is_too_long_is_passed_over(tmp_path: Path, compression: str) -> None:
    path, size = tmp_path / f"a.warc{compression}", 3 << 20
    write_archive(path, [GOOD[0], response(b"x" * size), GOOD[1]])
    one, long, two = cut(path, max_document_bytes=1 << 20)
    assert isinstance(long, Record) and not long.whole and len(long.block) == records.BEGINNING_BYTES
    assert isinstance(one, Record) and isinstance(two, Record) and (one.block, two.block) == (b"one", b"two")


LONGEST = 2000
FOLLOWING = [warc_record(b"x" * 300, number=number) for number in range(3, 23)]


@pytest.mark.parametrize("length", [LONGEST + 1, 5000, 10**12, 10**18 - 1])
@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
def test_wrong_length_over_the_limit_costs_one_record(tmp_path: Path, length: int, compression: str) -> None:
    """It swallows none of the records behind it, be they within it or not."""
    path = tmp_path / f"a.warc{compression}"
    bad = warc_record(b"x" * 50, number=2, length=length)
    places = write_archive(path, [GOOD[0], bad, *FOLLOWING])
    for held in (members.HELD_BYTES, 100):
        with patch.object(members, "HELD_BYTES", held), patch.object(members, "OUTPUT_BYTES", 777):
            found = list(cut(path, max_document_bytes=LONGEST))
        assert [one.position for one in found if isinstance(one, Record)] == [
            places[0][0], *(place for place, _ in places[2:]),
        ]  # fmt: skip
        assert all(one.whole for one in found if isinstance(one, Record))
        ((position, why),) = broken(found)
        assert position == places[1][0] and f"its length, {length} bytes, is wrong" in why


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_length_that_covers_whole_records_swallows_none(tmp_path: Path, compression: str) -> None:
    """It ends where a record ends, so what follows the block looks right; only the members tell."""
    path = tmp_path / f"a.warc{compression}"
    for longest in (1 << 20, 400):
        bad = warc_record(b"x" * 50, number=2, length=50 + len(FOLLOWING[0]) + len(FOLLOWING[1]))
        places = write_archive(path, [GOOD[0], bad, *FOLLOWING])
        found = list(cut(path, max_document_bytes=longest))
        assert len(sound(found)) == 1 + len(FOLLOWING)
        assert [position for position, _ in broken(found)] == [places[1][0]]


def test_wrong_length_in_one_single_member_is_said_to_cost_more(tmp_path: Path) -> None:
    bad = warc_record(b"x" * 50, number=2, length=LONGEST + 1)
    (tmp_path / "a.warc.gz").write_bytes(gzip.compress(b"".join([GOOD[0], bad, *FOLLOWING])))
    (_, why), *_ = broken(list(cut(tmp_path / "a.warc.gz", max_document_bytes=LONGEST)))
    assert "other records may be lost" in why


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_file_that_ends_inside_a_long_block_loses_only_this_record(tmp_path: Path, compression: str) -> None:
    path = tmp_path / f"a.warc{compression}"
    places = write_archive(path, [*GOOD, warc_record(random.Random(1).randbytes(5000))])
    whole = path.read_bytes()
    path.write_bytes(whole[: places[2][1] + 4000])
    found = list(cut(path, max_document_bytes=LONGEST))
    assert len(sound(found)) == 2
    ((position, why),) = broken(found)
    assert position == places[2][0] and "the file ends inside" in why


ARC_HEAD = b"filedesc://a.arc 0.0.0.0 20140216050221 text/plain 20\n1 0 Maker\nURL IP-add\n\n"


def test_arc_files_of_both_versions(tmp_path: Path) -> None:
    lines = [
        b"http://example.com/a b 1.2.3.4 20140216050221 text/html 5\nfirst\n",
        b"http://example.com/2 ::1 20140216050222 text/html 200 - - 8493 a.arc 6\nsecond\n",
        b"http://example.com/3 1.2.3.4 20140216050223 text/html x\nlost\n",
        b"http://example.com/4 1.2.3.4 20140216050223 text/html 5\nfifth\n",
    ]
    (tmp_path / "a.arc").write_bytes(b"".join([ARC_HEAD, *lines]))
    found = list(cut(tmp_path / "a.arc", ARC))
    assert [one[2] for one in sound(found)][1:] == [b"first", b"second", b"fifth"]
    assert broken(found) == [(len(ARC_HEAD) + len(lines[0]) + len(lines[1]), "its length is not a number")]


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    for name, data in (("a.warc.gz", GOOD[0]), ("a.warc", gzip.compress(GOOD[0])), ("b.warc.gz", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UnreadableError, match=name):
            list(cut(tmp_path / name, WARC))
    (tmp_path / "a.warc.zst").write_bytes(b"\x5d\x2a\x4d\x18\x04\0\0\0abcd")
    with pytest.raises(UnreadableError, match="dictionary"):
        list(cut(tmp_path / "a.warc.zst"))


def test_endless_garbage_is_one_record_in_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(GOOD[0] + b"x" * (5 << 20) + b"\n" + GOOD[1])
    sizes: list[int] = []
    fill = window.Window.fill

    def watched(self: window.Window, size: int) -> bool:
        result = fill(self, size)
        sizes.append(len(self.data))
        return result

    with patch.object(window.Window, "fill", watched):
        found = list(cut(tmp_path / "a.warc"))
    assert [one[2] for one in sound(found)] == [b"one", b"two"] and broken(found) == [
        (len(GOOD[0]), "no record begins here")
    ]
    assert max(sizes) < 4 << 20


def test_progress_is_reported_while_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(response(page("a")) + b"x" * (3 << 20))
    assert len(list(cut(tmp_path / "a.warc"))) == 2
