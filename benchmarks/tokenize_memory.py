"""Measure the resident memory of one encoder over hundreds of megabytes of text.

    python -m benchmarks.tokenize_memory [--megabytes 600] [--text real changed hostile]

Each kind of text has its own process on one CPU and is encoded in batches of 4 Mi characters:

    real     the 13 test files, normalized, repeated
    changed  the same with other words in each pass (letters shifted along the alphabet, every second pass backwards)
    hostile  24 documents of 16 MB (benchmarks/tokenize_long.py), then made-up prose
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import string
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from benchmarks.tokenize import batches, make_clean
from benchmarks.tokenize_long import LARGE, hostile
from datakit.tokenize.encoders.threads import limit_threads
from datakit.tokenize.encoders.tokenizer import Tokenizer, load
from tests.support.data import data_dir

STATUS = Path("/proc/self/status")
BATCH_CHARACTERS = 1 << 22
SHOWN_EVERY = 50_000_000


def real(clean: Path) -> Iterator[str]:
    """Repeat the texts."""
    while True:
        for batch in batches(clean):
            yield from batch.strings()


def changed(clean: Path) -> Iterator[str]:
    """Repeat the texts with other words in each pass."""
    letters = string.ascii_lowercase
    for number in count():
        table = str.maketrans(letters, letters[number % 26 :] + letters[: number % 26])
        for batch in batches(clean):
            for text in batch.strings():
                other = text.translate(table)
                yield other[::-1] if number % 2 else other


def mixed(_: Path) -> Iterator[str]:
    """Hostile runs, then prose from 50,000 words."""
    for make in hostile(LARGE).values():
        yield make()
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(50_000)]
    while True:
        yield " ".join(draw.choices(words, k=600))


KINDS = {"real": real, "changed": changed, "hostile": mixed}


def measure(kind: str, clean: Path, tokenizer_file: str, megabytes: int) -> None:
    """Encode, printing memory on the way."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    tokenizer = load(tokenizer_file)
    assert isinstance(tokenizer, Tokenizer)
    encoder = tokenizer.encoder()
    limit_threads(encoder, 1)
    texts = tokenizer.long_texts(encoder)
    size, shown, batch, characters = 0, 0, [], 0
    for text in KINDS[kind](clean):
        batch.append(text)
        characters += len(text)
        if characters < BATCH_CHARACTERS:
            continue
        texts.encode_batch(batch)
        size += sum(len(one.encode()) for one in batch)
        batch, characters = [], 0
        if size - shown >= SHOWN_EVERY:
            shown = size
            print(f"| {kind} | {size / 1e6:.0f} | {resident('VmRSS')} | {resident('VmHWM')} |", flush=True)
        if size >= megabytes * 1_000_000:
            return


def resident(key: str) -> int:
    """Resident memory in MiB, as the system counts it."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) >> 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=600)
    parser.add_argument("--text", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--tokenizer", default="gpt-neox-olmo-dolma-v1_5.json")
    arguments = parser.parse_args()
    tokenizer = str(data_dir() / "tokenizers" / arguments.tokenizer)
    fresh = multiprocessing.get_context("spawn")
    print("| text | MB encoded | resident MiB | peak MiB |\n|---|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as root:
        clean = make_clean(Path(root))
        for kind in arguments.text:
            process = fresh.Process(target=measure, args=(kind, clean, tokenizer, arguments.megabytes))
            process.start()
            process.join()
            assert process.exitcode == 0, process.exitcode


if __name__ == "__main__":
    main()
