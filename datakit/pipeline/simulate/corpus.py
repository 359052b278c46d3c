"""Describes the text of a simulated run: its size, its duplicates, and how many bytes each stage writes for it.

The default shares were measured on 121 MB of real text in eight sources (docs/measurements.md), except `token_bytes`
and `left`, which are estimates. A TOML file can override each value (`datakit plan --corpus`). The documents of a
source are distributed evenly over its files and, unless the sizes of the partitions are given, over its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datakit import toml_config
from datakit.errors import RecipeError


@dataclass(frozen=True)
class SourceText:
    """The text of one source. records: the records in its files. documents: those that normalize keeps. text_bytes: the
    size of their text. value_bytes: the size of all values of all records that are not left out, including duplicates.
    partitions: the records, documents and text bytes of each partition, if they are known. How many partitions one task
    gets depends on their sizes, which differ by a few percent.
    """

    records: int
    documents: int
    text_bytes: int
    value_bytes: int
    partitions: tuple[tuple[int, int, int], ...] = ()

    def partition(self, number: int, count: int) -> tuple[int, int, int]:
        """Return the records, documents and text bytes of one of `count` partitions. Unless these numbers are known,
        all partitions are equal.
        """
        if len(self.partitions) == count:
            return self.partitions[number]
        records, documents, text = (
            share(each, number, count) for each in (self.records, self.documents, self.text_bytes)
        )
        return records, documents, text


@dataclass(frozen=True)
class Corpus:
    """Shares that hold for all sources. Sizes are in bytes.

    file_bytes: the size of a raw file; file_suffix: its format; expansion: bytes of text per byte of a raw file.
    document_bytes: the mean size of a text. other_bytes: the mean size of a document's other columns.
    duplicates: the share of a source's records that repeat an earlier text of the source.
    exact: the share of a source's documents that an earlier source contains; 0 for the first source.
    clustered: the share of documents that share a band key with another; clustered_in: their number in each task of
    dedup's phase `shingles`, if it is known: a task without such documents writes no file; cluster_size: the mean size
    of a cluster;
    signature_sizes: the sizes of each source's files of signatures, if they are known.
    removed_in: the numbers of exact and near copies that are removed from each partition, such as
    `laws/part-00000-of-00001.parquet`, if they are known.
    giant: the share of clustered documents that belong to one component, which is cut into blocks if it is large.
    fuzzy: the share of documents that are removed as near duplicates.
    edges: edges in the buckets' forests, per clustered document. left: the share of nodes that remain after a round.
    skipped: the share of documents without band keys. shingle_bytes: bytes of shingles per byte of text.
    normalized: bytes of a Parquet file per byte of values. signature_bytes, origin_bytes, removal_bytes: bytes in a
    Parquet file per document, per record and per removed document, respectively. token_bytes: bytes of text per token.
    vocabulary: the size of the vocabulary, if the recipe trains a tokenizer.
    """

    file_bytes: int = 256 << 20
    file_suffix: str = ".jsonl.gz"
    expansion: float = 2.8
    document_bytes: int = 2800
    other_bytes: int = 60
    duplicates: float = 0.006
    exact: float = 0.002
    clustered: float = 0.07
    cluster_size: float = 4.5
    giant: float = 0.0
    fuzzy: float = 0.0125
    edges: float = 0.8
    left: float = 0.35
    skipped: float = 0.005
    shingle_bytes: float = 1.3
    normalized: float = 0.3
    signature_bytes: int = 132
    origin_bytes: int = 21
    removal_bytes: int = 75
    token_bytes: float = 4.0
    vocabulary: int = 50_280
    clustered_in: Mapping[str, int] = field(default_factory=dict)
    signature_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    removed_in: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    sources: Mapping[str, SourceText] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int | float) and value < 0:
                raise RecipeError(f"corpus: {name} is {value}; it must not be negative")
        for name in ("file_bytes", "expansion", "document_bytes", "cluster_size", "token_bytes"):
            if not getattr(self, name):
                raise RecipeError(f"corpus: {name} is 0; it must be positive")


def load(path: Path) -> Corpus:
    """Read a corpus from a TOML file, whose keys are the fields of `Corpus`. Raises RecipeError for unknown keys."""
    table = toml_config.read_toml(path, "give the path of a file with the fields of a corpus")
    return toml_config.decoded(table, Corpus, str(path))


def generated(corpus: Corpus, sources: Sequence[str], text_bytes: int) -> dict[str, SourceText]:
    """Return the text of sources of equal size, which contain `text_bytes` bytes of text in total before normalize."""
    found: dict[str, SourceText] = {}
    for number, name in enumerate(sources):
        size = share(text_bytes, number, len(sources))
        records = max(1, size // corpus.document_bytes)
        documents = max(1, round(records * (1 - corpus.duplicates)))
        found[name] = SourceText(records, documents, size * documents // records, size + records * corpus.other_bytes)
    return found


def share(total: int, index: int, count: int) -> int:
    """Return the size of part `index` of `count` equal parts of a total; the sizes of all parts add up to the total.

    >>> [share(10, index, 3) for index in range(3)]
    [3, 3, 4]
    """
    return total * (index + 1) // count - total * index // count
