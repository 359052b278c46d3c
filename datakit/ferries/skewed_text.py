"""Generates the texts of the ferry `skewed`. Their sizes are as uneven as those in real collections sometimes are.

    huge-documents         2 documents, each in a record of exactly 256 MiB, the most that datakit accepts
    identical-documents    5,000,000 equal documents in one file
    giant-file             one file of 1 GiB with 2 kB documents
    tiny-files             30,000 files of 200 bytes, in folders of 1,000
    one-template           300,000 documents that differ in two words

The bytes depend on nothing but the scale: every choice is a hash of its index (splitmix64), not the output of a random
generator, which may differ between versions of its library. A scale of 0.01 reduces the sizes of the huge documents and
of the giant file, and the numbers of all other documents and files, to 1 %.

Cost: at most 40 MB of memory at any scale, and about 25 s of CPU time for the 2.3 GB at full scale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from datakit.text.hash_mixing import GOLDEN, mix

RECORD_BYTES = 256 << 20
HUGE_DOCUMENTS = 2
IDENTICAL = 5_000_000
GIANT_BYTES = 1 << 30
TINY_FILES, A_FOLDER = 30_000, 1_000
VARIATIONS = 300_000
SYLLABLES = [a + b for a in ("b", "d", "f", "k", "l", "m", "n", "p", "r", "s", "t", "v") for b in "aeiou"]
WORDS, SENTENCES, SENTENCE_WORDS = 4096, 16384, 14
AT_ONCE = 4096  # records, or sentences, that are written together
SENTENCES_A_DOCUMENT = 22
HEAD, TAIL = b'{"text": "', b'"}\n'


def hashes(stream: int, first: int, count: int) -> np.ndarray:
    """Return the hashes with the indices `first` to `first + count - 1` of a stream, which is given by its number."""
    numbers = np.arange(first, first + count, dtype=np.uint64) + np.uint64(stream << 40)
    return mix(numbers * GOLDEN)


def words() -> list[bytes]:
    """Return made-up words, all different."""
    parts = len(SYLLABLES)
    found = (f"{SYLLABLES[n % parts]}{SYLLABLES[n // parts % parts]}{SYLLABLES[n // parts**2 % parts]}" for n in
             range(7, 7 + 31 * WORDS, 31))  # fmt: skip
    return [word.encode() for word in found]


def sentences(vocabulary: list[bytes]) -> list[bytes]:
    """Return made-up sentences. Texts are put together from whole sentences, because doing so from words would take ten
    times as long.
    """
    chosen = (hashes(1, 0, SENTENCES * SENTENCE_WORDS) % np.uint64(WORDS)).reshape(SENTENCES, SENTENCE_WORDS)
    return [b" ".join(vocabulary[word] for word in row).capitalize() + b"." for row in chosen.tolist()]


def generate(folder: Path, scale: float) -> None:
    """Write all texts below `folder`."""
    vocabulary = words()
    pool = sentences(vocabulary)
    _huge_documents(folder / "huge-documents", pool, scale)
    _identical_documents(folder / "identical-documents", pool, scale)
    _giant_file(folder / "giant-file", pool, scale)
    _tiny_files(folder / "tiny-files", pool, scale)
    _one_template(folder / "one-template", pool, vocabulary, scale)


def scaled(number: int, scale: float) -> int:
    """Return a size or number at this scale, at least 1."""
    return max(1, round(number * scale))


def _huge_documents(folder: Path, pool: list[bytes], scale: float) -> None:
    folder.mkdir(parents=True)
    for document in range(HUGE_DOCUMENTS):
        left = scaled(RECORD_BYTES, scale) - len(HEAD) - len(TAIL) + 1  # the limit does not count the line's end
        with open(folder / f"{document}.jsonl", "wb") as file:
            file.write(HEAD)
            for block in _blocks(10 + document, pool):
                file.write(block[:left])
                left -= len(block[:left])
                if not left:
                    break
            file.write(TAIL)


def _blocks(stream: int, pool: list[bytes]) -> Iterator[bytes]:
    """Yield an endless text in blocks."""
    first = 0
    while True:
        chosen = hashes(stream, first, AT_ONCE) % np.uint64(SENTENCES)
        yield b" ".join(pool[number] for number in chosen.tolist()) + b" "
        first += AT_ONCE


def _identical_documents(folder: Path, pool: list[bytes], scale: float) -> None:
    folder.mkdir(parents=True)
    record, left = HEAD + pool[0] + TAIL, scaled(IDENTICAL, scale)
    with open(folder / "all.jsonl", "wb") as file:
        while left:
            count = min(left, AT_ONCE)
            file.write(record * count)
            left -= count


def _giant_file(folder: Path, pool: list[bytes], scale: float) -> None:
    folder.mkdir(parents=True)
    left, first = scaled(GIANT_BYTES, scale), 0
    with open(folder / "all.jsonl", "wb") as file:
        while left > 0:
            chosen = hashes(2, first, AT_ONCE * SENTENCES_A_DOCUMENT) % np.uint64(SENTENCES)
            first += AT_ONCE * SENTENCES_A_DOCUMENT
            for row in chosen.reshape(AT_ONCE, SENTENCES_A_DOCUMENT).tolist():
                left -= file.write(HEAD + b" ".join(pool[number] for number in row) + TAIL)
                if left <= 0:
                    break


def _tiny_files(folder: Path, pool: list[bytes], scale: float) -> None:
    count = scaled(TINY_FILES, scale)
    chosen = hashes(3, 0, 2 * count) % np.uint64(SENTENCES)
    for number, pair in enumerate(chosen.reshape(count, 2).tolist()):
        place = folder / f"{number // A_FOLDER:03d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06d}.txt").write_bytes(b"\n".join(pool[one] for one in pair))


def _one_template(folder: Path, pool: list[bytes], vocabulary: list[bytes], scale: float) -> None:
    folder.mkdir(parents=True)
    before, between, after = (b" ".join(pool[start : start + 3]) for start in (100, 103, 106))
    count = scaled(VARIATIONS, scale)
    with open(folder / "all.jsonl", "wb") as file:
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            pairs = ((vocabulary[number % WORDS], vocabulary[number // WORDS]) for number in numbers)
            file.write(b"".join(
                HEAD + before + b" " + one + b" " + between + b" " + two + b" " + after + TAIL for one, two in pairs
            ))  # fmt: skip


def main() -> None:
    """Write the texts. Arguments: the folder, and the scale."""
    generate(Path(sys.argv[1]), float(sys.argv[2]))
