"""gzip members that are decompressed in one call each: the same content as by streams, whatever surrounds them."""

from __future__ import annotations

import gzip
import io
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.normalize.readers.web import members as web_members
from datakit.normalize.readers.web import small_members
from datakit.normalize.readers.web.members import members
from datakit.normalize.readers.web.pieces import Damage, Piece
from datakit.normalize.readers.web.small_members import SMALLEST, decompressed
from tests.support.normalize.web_archives import warc_record

RECORD = warc_record(b"block " * 50)
NAMED = b"\x1f\x8b\x08\x08" + bytes(6) + b"name\0" + gzip.compress(RECORD, mtime=0)[10:]  # with the name of a file
AROUND = st.sampled_from([b"", b"\0" * 3, b"junk", b"\x1f\x8b\x08\0" + bytes(6), gzip.compress(b"", mtime=0), NAMED])


def read(stored: bytes, *, in_one_call: bool) -> list[Piece | Damage]:
    with patch.object(small_members, "decompressed", decompressed if in_one_call else lambda member, longest: None):
        found = list(members(io.BytesIO(stored), "a.warc.gz"))
    return [one._replace(data=bytes(one.data)) if isinstance(one, Piece) else one for one in found]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from([0, 7]), AROUND), min_size=1, max_size=6), st.data())
def test_content_and_damage_are_those_of_streams(members_of: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    """Members of different sizes and headers, with padding, other data, a cut and a damaged byte between them."""
    stored = bytearray(gzip.compress(RECORD, mtime=0))
    for number, (size, time, around) in enumerate(members_of):
        stored += gzip.compress(warc_record(b"%d" % number * size, number=number), mtime=time) + around
    if data.draw(st.booleans()):
        stored[data.draw(st.integers(8, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    stored = stored[: data.draw(st.integers(len(stored) - 40, len(stored)))]
    input_bytes = data.draw(st.sampled_from([64, 300, 1 << 16]))
    with patch.object(web_members, "INPUT_BYTES", input_bytes):
        assert read(bytes(stored), in_one_call=True) == read(bytes(stored), in_one_call=False)


def test_usual_members_are_read_in_one_call_each() -> None:
    stored = b"".join(gzip.compress(warc_record(b"x" * 9, number=number), mtime=number) for number in range(40))
    with patch.object(web_members._Members, "_member", side_effect=AssertionError):
        assert len(list(members(io.BytesIO(stored), "a.warc.gz"))) == 40


@pytest.mark.parametrize("at", [-1, -4, -5, -8, 20])
def test_member_with_a_wrong_sum_or_length_is_not_decompressed(at: int) -> None:
    member = bytearray(gzip.compress(RECORD, mtime=0))
    assert decompressed(memoryview(bytes(member)), 1000) == RECORD
    member[at] ^= 1
    assert decompressed(memoryview(bytes(member)), 1 << 30) is None


def test_two_members_of_equal_length_are_not_one() -> None:
    """libdeflate decodes the first and ignores the second, whose stated length fits."""
    both = gzip.compress(RECORD, mtime=0) + gzip.compress(RECORD.swapcase(), mtime=0)
    assert decompressed(memoryview(both), 1 << 20) is None


def test_limits_and_unchecked_flags_leave_a_member_to_streams() -> None:
    member = gzip.compress(RECORD, mtime=0)
    assert decompressed(memoryview(member), len(RECORD)) == RECORD
    assert decompressed(memoryview(member), len(RECORD) - 1) is None
    assert decompressed(memoryview(gzip.compress(b"", mtime=0)), 99) is None
    assert decompressed(memoryview(member)[: SMALLEST - 1], 1 << 30) is None
    flagged = member[:3] + b"\x02" + member[4:10] + b"\0\0" + member[10:]  # with a checksum of the header
    assert decompressed(memoryview(flagged), 1000) is None
    assert decompressed(memoryview(NAMED), 1000) == RECORD
