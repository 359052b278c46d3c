"""Recomputes the Jaccard similarity that dedup states for each removed document and its representative.

The texts are read again from the normalized files, and their shingle sets are compared exactly. By default, a sample of
about SAMPLE removals is compared: those whose ids have the smallest hashes, so the sample is always the same. With
`deep`, all removals are compared. A fuzzy duplicate must also reach the threshold, by the recipe's measure.

The shingle sets of removed documents are written to temporary files, one for each range of their representatives' ids.
Then the representatives are read range by range, so the normalized files are read at most twice, whatever their size.
Texts that the check of the documents has kept are not read again (`text_store.py`).

Cost: 20 MB of text per CPU-second. Disk: 8 bytes per word of the removed documents. Memory: one row group, and the
shingles of one document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.storage.parquet import open_shard, read_group
from datakit.storage.stale_files import scratch_directory
from datakit.text.hash_mixing import mix
from datakit.validate.between.plain_shingles import shingles_of
from datakit.validate.between.removals import Source, overlaps, sources_of
from datakit.validate.between.spill import Spill, kept, removed
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, contained, distinct, ids_of, positions
from datakit.validate.subject import Subject

SAMPLE = 256
SEED = np.uint64(0x5EED)
CONTAINMENT = "containment"


def check(step: Subject, result: Result) -> None:
    """Recompute the stated similarities from the texts, for a sample of the removals or, with `deep`, for all."""
    if missing := step.missing("normalize"):
        return result.skip(missing)
    sources = sources_of(step)
    if not step.sound(*(url for source in sources for _, *both in source.files for url in both)):
        return result.skip("files of this step or of its inputs are damaged")
    if step.manifest.totals.rows:
        with scratch_directory() as folder, result.reading(step.manifest_url):
            _Comparison(step, sources, folder, result).run()
    return None


class _Comparison:
    """The comparison of one step."""

    def __init__(self, step: Subject, sources: Sequence[Source], folder: Path, result: Result) -> None:
        self.step, self.sources, self.folder, self.result = step, sources, folder, result
        self.ngram: int = step.manifest.parameters["ngram"]
        rows = step.manifest.totals.rows
        size = rows if step.deep else min(rows, SAMPLE)
        self.spill = Spill(folder, size, [source.name for source in sources])

    def run(self) -> None:
        """Write the shingles of the removed documents, then compare them with those of the representatives."""
        for number, source in enumerate(self.sources):
            for _, documents, marks in source.files:
                with self.result.reading(marks):
                    rows = chosen(self.spill.removals_of(marks, number), self.step)
                if len(rows):
                    with self.result.reading(documents):
                        self._write(documents, rows)
        for bucket in range(self.spill.count):
            self._compare_bucket(bucket)

    def _texts(self, url: str, wanted: Ids) -> Iterator[tuple[Ids, pa.Array]]:
        found = self.step.texts.texts(url, wanted) if self.step.texts is not None else None
        return _texts(url, wanted) if found is None else found

    def _write(self, documents: str, rows: np.ndarray) -> None:
        """Append removals and their shingle sets to the buckets of their representatives."""
        names = removed(rows)
        for ids, texts in self._texts(documents, names):
            mine, places = rows[contained(names, ids)], positions(names, ids)
            order = places[places >= 0].tolist()
            self.spill.add(mine, [shingles_of(texts[place].as_py(), self.ngram) for place in order])

    def _compare_bucket(self, bucket: int) -> None:
        rows, sets = self.spill.bucket(bucket), self.spill.sets(bucket)
        for number, source in enumerate(self.sources):
            mine = np.flatnonzero(rows["kept_source"] == number)
            wanted = kept(rows[mine])
            for span, documents, _ in source.files:
                if len(mine) and overlaps(span, (bucket, self.spill.count)):
                    with self.result.reading(documents):
                        for ids, texts in self._texts(documents, wanted):
                            self._compare_group(rows, sets, mine, ids, texts)

    def _compare_group(
        self, rows: np.ndarray, sets: list[np.ndarray], mine: np.ndarray, ids: Ids, texts: pa.Array
    ) -> None:
        """Compare those removals in the rows `mine` whose representatives are among the documents `ids`."""
        at = positions(kept(rows[mine]), ids)
        for place in distinct(at[at >= 0]).tolist():
            shingles = shingles_of(texts[place].as_py(), self.ngram)
            for row in mine[at == place].tolist():
                self._compare(rows[row], sets[row], shingles)

    def _compare(self, row: np.ndarray, shingles: np.ndarray, others: np.ndarray) -> None:
        both = np.concatenate([shingles, others])
        both.sort(kind="stable")  # a merge, because both parts are sorted
        shared = int((both[1:] == both[:-1]).sum())
        union = len(shingles) + len(others) - shared
        found = shared / union if union else 1.0
        self.result.count("pair")
        name = removed(row.reshape(1)).text(0)
        place = self.sources[int(row["source"])].removals_with(name)
        if abs(found - float(row["jaccard"])) > 1e-12:
            self.result.find(place, f"states the similarity {float(row['jaccard'])} for {name}; it is {found}")
        parameters = self.step.manifest.parameters
        measured = shared / max(1, len(shingles)) if parameters["measure"] == CONTAINMENT else found
        if row["fuzzy"] and measured < parameters["threshold"]:
            self.result.find(place, f"removes {name}, whose similarity {measured} is below {parameters['threshold']}")


def chosen(rows: np.ndarray, step: Subject) -> np.ndarray:
    """Return the removals that are compared: with `deep`, all of them, and else the sample."""
    total = step.manifest.totals.rows
    limit = 2**64 - 1 if step.deep or total <= SAMPLE else (SAMPLE << 64) // total
    return rows[mix(rows["low"].astype(np.uint64) ^ SEED) <= np.uint64(limit)]


def _texts(url: str, wanted: Ids) -> Iterator[tuple[Ids, pa.Array]]:
    """Yield, for each row group that holds some of the ids `wanted`, those ids in ascending order and their texts."""
    ascending = wanted[np.lexsort((wanted.low, wanted.high))]
    with open_shard(url) as shard:
        for group in range(shard.metadata.num_row_groups):
            bounds = shard.metadata.row_group(group).column(0).statistics
            if bounds is not None and bounds.has_min_max and not _any_between(ascending, bounds.min, bounds.max):
                continue
            ids = ids_of(read_group(shard, group, url, ["id"])["id"])
            rows = np.flatnonzero(contained(ids, ascending))
            if len(rows):
                texts = read_group(shard, group, url, ["text"])["text"].take(pa.array(rows)).combine_chunks()
                yield ids[rows], texts


def _any_between(ascending: Ids, first: str, last: str) -> bool:
    """Return True if one of these ids may lie in the range from `first` to `last`."""
    low, high = (np.uint64(int(bound[:16], 16)) for bound in (first, last))
    return bool(np.searchsorted(ascending.high, low, "left") < np.searchsorted(ascending.high, high, "right"))
