"""Writes several copies of the 13 files of real text (121 MB), as JSON Lines in gzip. In each copy but the first, words
have changed places, so that documents of different copies are different, while duplicates stay duplicates.

    python -m benchmarks.peers.scaled_text DIRECTORY --copies 10     # 1.2 GB of text

In copy k, each word of the corpus stands for another word with as many bytes, of about the same frequency, and with the
same script and case. The mapping is the same in the whole copy. So sizes, compression and the similarity of two
documents in a copy hardly change, and documents of two copies share almost no sequence of five words.
Cost: 10 to 15 CPU-seconds per copy. Memory: about 1.5 GB per process.
"""

from __future__ import annotations

import argparse
import gzip
import math
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.data import data_dir

WORD = re.compile(r"[^\W\d_]+")
LEVEL = 6  # of gzip; the usual one
KEPT = ("id", "text")


@cache
def documents() -> Mapping[str, list[dict[str, str]]]:
    """Return the documents of each file, by the first part of its name. Columns other than KEPT are left out."""
    return {path.name.split(".")[0]: list(_read(path)) for path in sorted((data_dir() / "text").iterdir())}


def _read(path: Path) -> Iterator[dict[str, str]]:
    if path.suffix == ".parquet":
        yield from pq.read_table(path, columns=list(KEPT)).to_pylist()
        return
    with pa.input_stream(str(path), compression={".gz": "gzip", ".zst": "zstd"}[path.suffix]) as stream:
        for line in stream.read().splitlines():
            record = orjson.loads(line)
            yield {name: str(record[name]) for name in KEPT}


def groups() -> list[list[str]]:
    """Return the words of all files, in groups of words that may change places."""
    counts = Counter[str]()
    for records in documents().values():
        for record in records:
            counts.update(WORD.findall(record["text"]))
    found = defaultdict[tuple[int, int, str, str], list[str]](list)
    for word, count in sorted(counts.items()):
        found[len(word.encode()), int(math.log2(count)), _case(word), _script(word[0])].append(word)
    return list(found.values())


def _case(word: str) -> str:
    if word.islower():
        return "lower"
    return "title" if word.istitle() else "upper" if word.isupper() else "mixed"


@cache
def _script(character: str) -> str:
    return unicodedata.name(character, "?").split()[0]


def write_copy(directory: Path, number: int) -> int:
    """Write one copy of each file; return the number of bytes of text."""
    exchanged, size = dict[str, str](), 0
    if number:
        dice = random.Random(number)
        for group in groups():
            exchanged.update(zip(group, dice.sample(group, len(group)), strict=True))
    for name, records in documents().items():
        lines: list[bytes] = []
        for record in records:
            text = WORD.sub(lambda word: exchanged[word[0]], record["text"]) if number else record["text"]
            lines.append(orjson.dumps({"id": f"{number}/{record['id']}", "text": text}))
            size += len(text.encode())
        (directory / f"{name}.{number:02d}.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines) + b"\n", LEVEL))
    return size


def main() -> None:
    """Write the copies and print how much text they have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True)
    with ProcessPoolExecutor(arguments.processes) as pool:
        sizes = list(pool.map(partial(write_copy, arguments.directory), range(arguments.copies)))
    print(f"{len(sizes)} copies, {sum(sizes) / 1e6:,.1f} MB of text in {arguments.directory}")


if __name__ == "__main__":
    main()
