"""Searches texts once and lists the places where personal data may be, as arrays, without an object per document.

Each byte costs one table lookup. Where the table says that something may lie, the rules of the kinds read a bounded
number of bytes around it, so the time is linear in the size of the text, whatever it contains. Telephone numbers, cards
and IBANs are decided here; other candidates are checked by `findings.py`. A number is only one thing: the rules are
tried in the order IBAN, IPv4, card, telephone number, and the digits of a candidate are not read again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.personal import (
    byte_classes,
    calling_codes,
    cards,
    emails,
    ibans,
    ip_addresses,
    keys,
    kinds,
    number_groups,
    phones,
    secrets_in_code,
)
from datakit.annotate.personal.byte_classes import AT, COLON, EQUALS, NUMBER, before
from datakit.annotate.personal.cards import card_end
from datakit.annotate.personal.emails import email_around
from datakit.annotate.personal.ibans import iban_end
from datakit.annotate.personal.ip_addresses import ipv4_end, ipv6_window
from datakit.annotate.personal.keys import key_start
from datakit.annotate.personal.kinds import CARD, EMAIL, IBAN, IPV4, IPV6, PHONE, SECRET
from datakit.annotate.personal.number_groups import Groups, is_short, new_groups, read_groups
from datakit.annotate.personal.phones import phone_span
from datakit.annotate.personal.secrets_in_code import value_after
from datakit.text.numba_cache import cached_njit

FIRST_ROWS = 1024  # the table of candidates begins with this many rows and is doubled whenever it is full

kernel = cached_njit(
    byte_classes,
    calling_codes,
    cards,
    emails,
    ibans,
    ip_addresses,
    keys,
    kinds,
    number_groups,
    phones,
    secrets_in_code,
)


class Candidates(NamedTuple):
    """N stretches of text, ordered by document; each column is int64 [N].

    kinds: codes. documents: row numbers. starts, stops: bytes of all texts; the stop of a key is unknown, and given as
    its start. signs: the position of the anchor, which is the `=` or `:` before a SECRET.
    """

    kinds: np.ndarray
    documents: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    signs: np.ndarray


def find_candidates(data: np.ndarray, offsets: np.ndarray, anchors: np.ndarray) -> Candidates:
    """Return the candidates in N texts. data, offsets: see `string_buffers`. anchors: see `anchor_table`."""
    rows = _search(data, offsets, anchors, new_groups())
    return Candidates(*(np.ascontiguousarray(column) for column in rows.T))


@kernel
def _number(data: np.ndarray, start: int, stop: int, first: int, groups: Groups) -> tuple[int, int, int]:
    """Return the kind, the start and the end of what begins at the first of some digits; (-1, 0, 0) if nothing does."""
    end = iban_end(data, start, stop, first)
    if end:
        return IBAN, first - 2, end
    if is_short(data, first, stop):
        return -1, 0, 0
    end = ipv4_end(data, start, stop, first)
    if end:
        return IPV4, first, end
    count = read_groups(data, first, stop, groups)
    end = card_end(data, start, stop, first, groups, count)
    if end:
        return CARD, first, end
    begin, end = phone_span(data, start, stop, first, groups, count)
    return (PHONE, begin, end) if end else (-1, 0, 0)


@kernel
def _search(data: np.ndarray, offsets: np.ndarray, anchors: np.ndarray, groups: Groups) -> np.ndarray:
    """Return the candidates, int64 [N, 5], with the columns of `Candidates`."""
    rows, count = np.empty((FIRST_ROWS, 5), np.int64), 0
    for document in range(len(offsets) - 1):
        start, stop = offsets[document], offsets[document + 1]
        numbers_from, colons_from = start, start
        for position in range(start, stop):
            anchor = anchors[data[position]]
            if anchor == 0:
                continue
            kind, first, end = -1, 0, 0
            if anchor == NUMBER:
                if position >= numbers_from and not 48 <= before(data, start, position) <= 57:
                    kind, first, end = _number(data, start, stop, position, groups)
                    numbers_from = max(numbers_from, end)
            elif anchor == AT:
                first, end = email_around(data, start, stop, position)
                kind = EMAIL if end else -1
            elif anchor in (COLON, EQUALS):
                if anchor == COLON and position >= colons_from:
                    first, end, colons_from = ipv6_window(data, start, stop, position)
                    kind = IPV6 if end else -1
                if kind < 0:
                    first, end = value_after(data, start, stop, position)
                    kind = SECRET if end else -1
            else:
                first, kind = key_start(data, start, stop, position)
                end = first
            if kind >= 0:
                if count == len(rows):
                    wider = np.empty((2 * count, 5), np.int64)
                    wider[:count] = rows
                    rows = wider
                rows[count, 0], rows[count, 1], rows[count, 2] = kind, document, first
                rows[count, 3], rows[count, 4] = end, position
                count += 1
    return rows[:count].copy()
