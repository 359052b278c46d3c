"""Implements the annotator `urls`: counts the entries of lists that match the URL of a document.

One column for each list, with its name: the number of different entries that match. An entry of a list of domains
matches if it is the host of the URL or a parent of it; an entry of a list of substrings, if it is anywhere in the URL.
It is null if the document has no URL, and for a list of domains also if the URL has no host, so that a rule cannot take
an unknown host for a harmless one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.annotate.lists.characters import list_table
from datakit.annotate.lists.entry_index import Entries, build_index, sorted_entries
from datakit.annotate.lists.host_kernels import NONE, OTHER, PLAIN, count_domains, domain_keys, find_hosts
from datakit.annotate.lists.hosts import is_host, normal_host
from datakit.annotate.lists.search_kernels import search
from datakit.errors import ColumnError
from datakit.text.string_buffers import string_buffers

WARMING = ("https://example.com/a", "http://bücher.example")


class _Hosts(NamedTuple):
    """Hosts of URLs: their bytes, where each of H hosts starts and stops, and the row of its URL, int64 [H]."""

    data: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    rows: np.ndarray


class UrlsAnnotator:
    """The annotator; see the module's docstring."""

    name = "urls"
    sparse = False

    def __init__(
        self, version: int, parameters: dict[str, Any], domains: Mapping[str, pa.Array],
        substrings: Mapping[str, pa.Array],
    ) -> None:  # fmt: skip
        """Build the indexes. parameters: `column` and the kinds of the lists. domains, substrings: the entries of the
        lists of each kind, by name.
        """
        self.version, self.parameters = version, parameters
        self.columns: tuple[str, ...] = (parameters["column"],)
        self._domains, self._substrings = tuple(domains), tuple(substrings)
        self._entries = _domain_entries([*domains.values()]) if domains else None
        self._index = build_index([*substrings.values()], words=False) if substrings else None
        self.lists = tuple(sorted([*domains, *substrings]))
        self.schema = pa.schema([pa.field(name, pa.uint64()) for name in self.lists])

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the schema for each document of the batch. Raises ColumnError if the URLs are no
        strings.
        """
        urls = batch[self.columns[0]]
        if pa.types.is_null(urls.type):
            urls = urls.cast(pa.large_string())
        if not pa.types.is_large_string(urls.type) and not pa.types.is_string(urls.type):
            raise ColumnError(f"the column {self.columns[0]!r} has the type {urls.type}; URLs must be strings")
        data, offsets = string_buffers(urls)
        missing = urls.is_null().to_numpy(zero_copy_only=False)
        columns: dict[str, pa.Array] = {}
        if self._index is not None:
            found = search(data, offsets, list_table(), self._index, False, len(self._substrings)).distinct
            columns |= {name: _column(found[:, i], missing) for i, name in enumerate(self._substrings)}
        if self._entries is not None:
            counts, unknown = _domain_counts(data, offsets, self._entries, len(self._domains))
            columns |= {name: _column(counts[:, i], missing | unknown) for i, name in enumerate(self._domains)}
        return pa.RecordBatch.from_arrays([columns[name] for name in self.lists], schema=self.schema)

    def counts(self, attributes: pa.Table) -> dict[str, int]:
        """Return for each list the number of documents with a match, and of those for which that is unknown."""
        found: dict[str, int] = {}
        for name in self.lists:
            positive = pc.call_function("greater", [attributes[name], 0])
            found[name] = pc.call_function("sum", [positive]).as_py() or 0
            found[f"{name}_unknown"] = attributes[name].null_count
        return found

    def warmed(self) -> UrlsAnnotator:
        """Annotate two URLs, which loads the kernels or compiles them, and return the annotator."""
        self.annotate(pa.record_batch({self.columns[0]: pa.array(WARMING, pa.large_string())}))
        return self


def _column(counts: np.ndarray, missing: np.ndarray) -> pa.Array:
    return pa.array(counts.astype(np.uint64), mask=missing)


def _domain_entries(lists: list[pa.Array]) -> Entries:
    texts = pa.concat_arrays(lists)
    data, offsets = string_buffers(texts)
    keys = np.empty(len(texts), np.uint64)
    domain_keys(data, offsets, keys)
    entries, _ = sorted_entries(texts, np.repeat(np.arange(len(lists)), [len(one) for one in lists]), keys)
    return entries


def _domain_counts(
    data: np.ndarray, offsets: np.ndarray, entries: Entries, lists: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return how many entries of each list match N URLs, int64 [N, L], and which URLs have no host, bool [N]."""
    count = len(offsets) - 1
    starts, stops, kinds = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint8)
    find_hosts(data, offsets, starts, stops, kinds)
    plain, counts = np.flatnonzero(kinds == PLAIN), np.zeros((count, lists), np.int64)
    others, wrong = _other_hosts(data, starts, stops, np.flatnonzero(kinds == OTHER))
    for hosts in (_Hosts(data, starts[plain], stops[plain], plain), others):
        count_domains(hosts.data, hosts.starts, hosts.stops, hosts.rows, entries, counts)
    unknown = kinds == NONE
    unknown[wrong] = True
    return counts, unknown


def _other_hosts(data: np.ndarray, starts: np.ndarray, stops: np.ndarray, rows: np.ndarray) -> tuple[_Hosts, list[int]]:
    """Return the normalized hosts of the URLs in some rows, and the rows of those that are not hosts."""
    hosts = {int(row): normal_host(data[starts[row] : stops[row]].tobytes().decode()) for row in rows}
    good = {row: host for row, host in hosts.items() if is_host(host)}
    found, offsets = string_buffers(pa.array([*good.values()], pa.large_string()))
    return _Hosts(found, offsets[:-1], offsets[1:], np.array([*good], np.int64)), [
        row for row in hosts if row not in good
    ]
