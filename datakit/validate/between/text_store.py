"""Keeps the texts that later checks need when the check of the documents decodes them.

Dedup's similarities are compared after the normalized documents were checked, and would decode most of them two more
times. So the ids of removed documents and of their representatives are read first, and the texts go to files for
temporary data. The texts of a file are used only if the whole file was read without a difference, and if all ids that
are wanted later were known before. Otherwise the similarities are compared with texts that are read again. The sample
of documents that are encoded again is kept, too.

Memory: 16 bytes per id, and the sample. Disk: the texts of the documents, at most MOST_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.validate.between.encoding import chosen_files, files_with_texts, sampled
from datakit.validate.between.removals import sources_of
from datakit.validate.between.similarity import chosen
from datakit.validate.between.spill import Spill, kept, removed
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, contained, joined
from datakit.validate.subject import Subject

MOST_REMOVALS = 1_000_000
MOST_BYTES = 1 << 30
SCHEMA = pa.schema([("text", pa.large_string())])


class TextStore:
    """The texts of some documents of some files, in files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._free = folder, MOST_BYTES
        self._wanted: dict[str, Ids] = {}
        self._numbers: dict[str, int] = {}
        self._found: dict[str, list[Ids]] = {}
        self._complete: set[str] = set()
        self._numbered: dict[str, int] = {}
        self._samples: dict[str, list[tuple[str, str]]] = {}

    def want(self, step: Subject, steps: Sequence[str]) -> None:
        """Request the texts that the similarities of a dedup step need, from files of `steps`, which will be checked
        before it. A file that cannot be read is reported by its checks.
        """
        if step.manifest.totals.rows > MOST_REMOVALS or step.missing("normalize"):
            return
        unused = Result("texts")
        with unused.reading(step.manifest_url):
            sources = sources_of(step)
            spill = Spill(self._folder, 0, [source.name for source in sources])
            files = [(number, marks) for number, source in enumerate(sources) for _, _, marks in source.files]
            rows = chosen(np.concatenate([spill.removals_of(marks, number) for number, marks in files]), step)
            for number, source in enumerate(sources):
                mine = [removed(rows[rows["source"] == number]), kept(rows[rows["kept_source"] == number])]
                for _, documents, _ in source.files:
                    if any(documents.startswith(f"{directory}/") for directory in steps):
                        known = self._wanted.get(documents)
                        self._wanted[documents] = _ascending(joined([*mine, *([known] if known else [])]))
                        self._numbers.setdefault(documents, len(self._numbers))

    def want_sample(self, step: Subject) -> None:
        """Request samples of the files whose documents are encoded again for a token cache. Samples of document buckets
        are read again, because they depend on which documents are in the bucket.
        """
        unused = Result("texts")
        with unused.reading(step.manifest_url):
            files = chosen_files(step, files_with_texts(step), unused)
            whole = [one for one in files if step.manifest.partitions[one[0]].bucket is None]
            self._numbered |= {url: number for _, url, number in whole}

    def sample(self, url: str, number: int) -> list[tuple[str, str]] | None:
        """Return the sample that `encoding` draws from a file, or None if the file must be read again."""
        known = self._numbered.get(url) == number and url in self._complete
        return self._samples.get(url) if known else None

    def add(self, url: str, place: tuple[int, int], ids: Ids, table: pa.Table) -> None:
        """Keep what is wanted of a row group. place: its number, and the number of row groups."""
        number = self._numbered.get(url)
        if number is not None and number % place[1] == place[0]:
            self._samples[url] = sampled(table)
        self._add_texts(url, ids, table["text"])

    def _add_texts(self, url: str, ids: Ids, texts: pa.ChunkedArray) -> None:
        wanted = self._wanted.get(url)
        if wanted is None:
            return
        rows = np.flatnonzero(contained(ids, wanted))
        if not len(rows):
            return
        column = texts.take(pa.array(rows)).combine_chunks().cast(pa.large_string())
        self._free -= column.nbytes
        if self._free < 0:
            del self._wanted[url]
            return
        parts = self._found.setdefault(url, [])
        with pa.OSFile(str(self._path(url, len(parts))), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            writer.write_batch(pa.record_batch([column], SCHEMA))
        parts.append(ids[rows])

    def finish(self, url: str) -> None:
        """Record that all row groups of a file were read without a difference."""
        self._complete.add(url)

    def texts(self, url: str, wanted: Ids) -> Iterator[tuple[Ids, pa.Array]] | None:
        """Return the wanted documents of a file as `similarity` reads them, or None if they must be read again."""
        known = self._wanted.get(url)
        if known is None or url not in self._complete or not contained(wanted, known).all():
            return None
        return self._read(url, wanted)

    def _read(self, url: str, wanted: Ids) -> Iterator[tuple[Ids, pa.Array]]:
        wanted = _ascending(wanted)
        for number, ids in enumerate(self._found.get(url, [])):
            rows = np.flatnonzero(contained(ids, wanted))
            if len(rows):
                with pa.OSFile(str(self._path(url, number))) as file, pa.ipc.open_file(file) as reader:
                    yield ids[rows], reader.get_batch(0).column(0).take(pa.array(rows))

    def _path(self, url: str, part: int) -> Path:
        return self._folder / f"texts-{self._numbers[url]}-{part}.arrow"


def _ascending(ids: Ids) -> Ids:
    return ids[np.lexsort((ids.low, ids.high))]
