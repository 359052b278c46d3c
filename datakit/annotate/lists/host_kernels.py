"""Finds the hosts of URLs, and the domains of lists to which they belong.

The host is found as browsers do it: white space around the URL does not count; the authority follows `//` and ends at
`/`, `\\`, `?` or `#`; its user and password end at the last `@`, and its port begins at the last `:` outside brackets.
A URL without `//` begins with its host (`example.com:80/a`). There, a port counts only after a host with a dot or after
`localhost`, because `tel:5551234` is a scheme and a number. One dot at the end of a host is ignored.
"""

# ruff: noqa: PLR0917 - numba kernels take their arguments by position

from __future__ import annotations

import numpy as np

from datakit.annotate.lists import entry_index
from datakit.annotate.lists.entry_index import Entries
from datakit.text import hash_mixing, key_tables, shingle_kernels
from datakit.text.hash_mixing import GOLDEN
from datakit.text.key_tables import first_row, leading_bits
from datakit.text.numba_cache import Decorator, cached_njit
from datakit.text.shingle_kernels import mix

NONE, PLAIN, OTHER = 0, 1, 2  # what kind of host a URL has: none, one of plain ASCII, one with other characters or `%`
_ZERO = np.uint64(0)
_DOT, _COLON, _AT, _SLASH, _BACKSLASH, _QUERY, _HASH, _OPEN, _CLOSE = (ord(one) for one in ".:@/\\?#[]")
_PERCENT, _HYPHEN, _UNDERSCORE = (ord(one) for one in "%-_")
_SPACE, _ASCII_END = 32, 128
_LOCALHOST = np.frombuffer(b"localhost", np.uint8)

kernel: Decorator = cached_njit(entry_index, key_tables, hash_mixing, shingle_kernels)


@kernel
def _lower(byte: int) -> int:
    """Return an ASCII letter in lowercase, and any other byte as it is."""
    return byte + 32 if 65 <= byte <= 90 else byte


@kernel
def _is_name(byte: int) -> bool:
    """Return True for the ASCII characters of labels."""
    return 48 <= byte <= 57 or 97 <= _lower(byte) <= 122 or byte in {_HYPHEN, _UNDERSCORE}


@kernel
def _authority(data: np.ndarray, start: int, stop: int) -> tuple[int, int, bool]:
    """Return the authority of the URL `data[start:stop]`, and whether `//` precedes it."""
    while start < stop and data[start] <= _SPACE:
        start += 1
    while start < stop and data[stop - 1] <= _SPACE:
        stop -= 1
    begin, position = start, start
    while position < stop and (_is_name(data[position]) or data[position] == 43 or data[position] == _DOT):
        position += 1  # a scheme
    if position > start and position < stop and data[position] == _COLON:
        position += 1
    slashes = 0
    while position < stop and slashes < 2 and (data[position] == _SLASH or data[position] == _BACKSLASH):
        position, slashes = position + 1, slashes + 1
    if slashes == 2:
        # `example.com//a` has no scheme: its first slash ends the host
        if position - 2 == start or data[position - 3] == _COLON:
            begin = position
        else:
            slashes = 0
    end = begin
    while end < stop and not (
        data[end] == _SLASH or data[end] == _BACKSLASH or data[end] == _QUERY or data[end] == _HASH
    ):
        end += 1
    return begin, end, slashes == 2


@kernel
def _kind_of(data: np.ndarray, start: int, stop: int) -> int:
    """Return the kind of host in `data[start:stop]`."""
    if start < stop and data[start] == _OPEN:
        return PLAIN if stop - start > 2 and data[stop - 1] == _CLOSE else NONE
    kind, label = PLAIN, 0
    for position in range(start, stop):
        byte = data[position]
        if byte >= _ASCII_END or byte == _PERCENT:
            kind, label = OTHER, label + 1
        elif byte == _DOT:
            if label == 0:
                return NONE
            label = 0
        elif _is_name(byte):
            label += 1
        else:
            return NONE
    return kind if label else NONE


@kernel
def _equal(data: np.ndarray, start: int, stop: int, entry: np.ndarray) -> bool:
    if stop - start != len(entry):
        return False
    same = True
    for i in range(len(entry)):
        same &= _lower(data[start + i]) == entry[i]
    return same


@kernel
def _may_have_port(data: np.ndarray, start: int, stop: int) -> bool:
    """Return True if `data[start:stop]`, which is followed by a colon and digits, is more likely a host than a scheme:
    if it contains a dot, is in brackets or is `localhost`.
    """
    if start < stop and data[start] == _OPEN:
        return True
    for position in range(start, stop):
        if data[position] == _DOT:
            return True
    return _equal(data, start, stop, _LOCALHOST)


@kernel
def find_hosts(data: np.ndarray, offsets: np.ndarray, starts: np.ndarray, stops: np.ndarray, kinds: np.ndarray) -> None:
    """Write the first byte of the host of each URL to `starts`, the byte after it to `stops`, int64 [N], and its kind
    to `kinds`, uint8 [N].
    """
    for i in range(len(offsets) - 1):
        start, stop, slashes = _authority(data, offsets[i], offsets[i + 1])
        if slashes:
            for position in range(stop - 1, start - 1, -1):
                if data[position] == _AT:
                    start = position + 1
                    break
        end = stop
        while end > start and 48 <= data[end - 1] <= 57:
            end -= 1
        after_colon = end > start and data[end - 1] == _COLON
        if after_colon and (slashes or (end < stop and _may_have_port(data, start, end - 1))):
            stop = end - 1
        if stop > start and data[stop - 1] == _DOT:
            stop -= 1
        starts[i], stops[i], kinds[i] = start, stop, _kind_of(data, start, stop)


@kernel
def domain_keys(data: np.ndarray, offsets: np.ndarray, keys: np.ndarray) -> None:
    """Compute the keys of domains, from their last byte to their first."""
    for i in range(len(offsets) - 1):
        code = _ZERO
        for position in range(offsets[i + 1] - 1, offsets[i] - 1, -1):
            code = (code ^ np.uint64(data[position] + 1)) * GOLDEN
        keys[i] = mix(code)


@kernel
def count_domains(
    data: np.ndarray, starts: np.ndarray, stops: np.ndarray, rows: np.ndarray, entries: Entries, counts: np.ndarray
) -> None:
    """Count for each host the entries of each list that equal the host or one of its parents.

    starts, stops: the bytes of each host, int64 [H]. rows: the row of each host in `counts`, int64 [N, L].
    """
    shift, keys = leading_bits(len(entries.keys.directory) - 1), entries.keys.keys
    for i in range(len(starts)):
        code, start, stop = _ZERO, starts[i], stops[i]
        for position in range(stop - 1, start - 1, -1):
            code = (code ^ np.uint64(_lower(data[position]) + 1)) * GOLDEN
            if position > start and data[position - 1] != _DOT:
                continue
            key = mix(code)
            row = first_row(entries.keys, shift, key)
            while 0 <= row < len(keys) and keys[row] == key:
                entry = entries.text[entries.offsets[row] : entries.offsets[row + 1]]
                if _equal(data, position, stop, entry):
                    counts[rows[i], entries.lists[row]] += 1
                row += 1
