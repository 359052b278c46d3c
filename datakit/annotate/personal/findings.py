"""Decides about the candidates that need more than a compiled rule, and orders all findings of a batch.

Only here is a Python object made per candidate; it takes 1 to 10 microseconds each. Clean text has few candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datakit.annotate.personal.byte_classes import anchor_table
from datakit.annotate.personal.candidates import Candidates, find_candidates
from datakit.annotate.personal.emails import email_kind
from datakit.annotate.personal.ip_addresses import CONTEXT, ipv4_kind, ipv6_kind
from datakit.annotate.personal.keys import key_end, window_size
from datakit.annotate.personal.kinds import CARD, EMAIL, IBAN, IPV4, IPV6, PHONE, SECRET
from datakit.annotate.personal.secrets_in_code import NAME_BYTES, is_secret

_DECIDED = (CARD, IBAN, PHONE)


class Findings(NamedTuple):
    """N findings, ordered by document, start, stop and kind.

    kinds: codes, int64 [N]. documents: row numbers, int64 [N]. starts, stops: bytes of the document's text, int64 [N].
    """

    kinds: np.ndarray
    documents: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


def find(data: np.ndarray, offsets: np.ndarray, kinds: frozenset[int]) -> Findings:
    """Return the findings of these kinds (codes) in texts. data, offsets: see `string_buffers`.

    A finding does not depend on which other kinds are searched for.
    """
    found = find_candidates(data, offsets, anchor_table(kinds))
    codes, stops = found.kinds.copy(), found.stops.copy()
    for row in np.flatnonzero(~np.isin(found.kinds, _DECIDED)):
        codes[row], stops[row] = _decided(data, offsets, found, int(row))
    kept = np.flatnonzero(np.isin(codes, [*kinds]))
    codes, documents, starts, stops = codes[kept], found.documents[kept], found.starts[kept], stops[kept]
    order = np.lexsort((codes, stops, starts, documents))
    origins = offsets[documents]
    return Findings(codes[order], documents[order], (starts - origins)[order], (stops - origins)[order])


def _decided(data: np.ndarray, offsets: np.ndarray, found: Candidates, row: int) -> tuple[int, int]:
    """Return the kind (-1: none) and the stop of a candidate."""
    kind, start, stop = int(found.kinds[row]), int(found.starts[row]), int(found.stops[row])
    document = found.documents[row]
    first, last = int(offsets[document]), int(offsets[document + 1])
    if kind not in (EMAIL, IPV4, IPV6, SECRET):
        size = key_end(data[start : min(last, start + window_size(kind))].tobytes(), kind)
        return (kind, start + size) if size else (-1, stop)
    value, follow = data[start:stop].tobytes(), data[stop : min(stop + 1, last)].tobytes()
    if kind == EMAIL:
        return email_kind(value), stop
    if kind == IPV6:
        return ipv6_kind(value), stop
    if kind == IPV4:
        return ipv4_kind(value, data[max(first, start - CONTEXT) : start].tobytes(), follow), stop
    sign = int(found.signs[row])
    name = data[max(first, sign - NAME_BYTES) : sign].tobytes()
    return (SECRET if is_secret(value, name) else -1), stop
