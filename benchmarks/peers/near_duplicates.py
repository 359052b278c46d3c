"""Finds pairs of near duplicates with rensa or datasketch: reads the columns id and text from Parquet files, computes
MinHash signatures of word 5-grams and looks up candidates. Imports nothing from datakit.

    python near_duplicates.py rensa|datasketch DIRECTORY PATTERN     # a glob pattern of the files below DIRECTORY
    python near_duplicates.py copy DIRECTORY PATTERN FILE            # copies these columns into one Parquet file

rensa computes 128 permutations in 16 bands of 8 rows, datasketch 112 in 14 bands of 8 rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = 5
BATCH = 2000  # documents that rensa gets at a time
COLUMNS = pa.schema([("id", pa.string()), ("text", pa.large_string())])


def shingles(text: str) -> list[str]:
    """Return the word 5-grams of a text; a shorter text is one shingle."""
    words = text.split()
    return [" ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1))]


def copy(directory: Path, pattern: str, output: Path) -> None:
    """Write the columns id and text of all files into one file."""
    with pq.ParquetWriter(output, COLUMNS) as writer:
        for path in sorted(directory.glob(pattern)):
            writer.write_table(pq.read_table(path, columns=COLUMNS.names).cast(COLUMNS))


def texts(directory: Path, pattern: str) -> Iterator[str]:
    """Yield all texts. The ids are read too, as a program that reports pairs would have to."""
    for path in sorted(directory.glob(pattern)):
        yield from pq.read_table(path, columns=COLUMNS.names)["text"].to_pylist()


def rensa_pairs(documents: Sequence[str]) -> int:
    """Return the number of candidate pairs that rensa finds."""
    from rensa import RMinHash, RMinHashLSH  # pyright: ignore[reportMissingImports]

    signatures = []
    for first in range(0, len(documents), BATCH):
        sets = [shingles(text) for text in documents[first : first + BATCH]]
        signatures += RMinHash.from_token_sets(sets, num_perm=128, seed=42)
    index = RMinHashLSH(threshold=0.8, num_perm=128, num_bands=16)
    index.insert_many(signatures, start_key=0)
    return sum(other < number for number, found in enumerate(index.query_all(signatures)) for other in found)


def datasketch_pairs(documents: Sequence[str]) -> int:
    """Return the number of candidate pairs that datasketch finds."""
    from datasketch import MinHash, MinHashLSH  # pyright: ignore[reportMissingImports]

    pattern, index, pairs = MinHash(num_perm=112), MinHashLSH(num_perm=112, params=(14, 8)), 0
    for number, text in enumerate(documents):
        signature = pattern.copy()
        signature.update_batch([shingle.encode() for shingle in set(shingles(text))])
        pairs += len(index.query(signature))
        index.insert(number, signature)
    return pairs


PROGRAMS: dict[str, Callable[[Sequence[str]], int]] = {"rensa": rensa_pairs, "datasketch": datasketch_pairs}


def main() -> None:
    """Print the number of documents and of candidate pairs, or copy the texts."""
    program, directory, pattern, *output = sys.argv[1:]
    if program == "copy":
        copy(Path(directory), pattern, Path(output[0]))
    else:
        documents = list(texts(Path(directory), pattern))
        print(f"{len(documents)} documents, {PROGRAMS[program](documents)} candidate pairs")


if __name__ == "__main__":
    main()
