"""The mixture loader against a memmap of the same tokens: block-shuffled reading, round about in one process.

    python -m benchmarks.loader [--tokens 134217728] [--dtype uint16] [--rounds 5] [--memory 134217728] [--cold]

Both fill int32 batches of 32 sequences of 4096, each sequence of the epoch once, shuffled in blocks of 256 sequences
inside a window. The memmap reads a flat file with one thread, the way a trainer without a loader does it; the loader
reads a real token cache (zarr3), with and without document segments. Figures are ratios of the
same round; the median and the range over all rounds count, absolute rates depend on the machine's other work.

`--cold` drops the files from the page cache before each pass. Requests are the cache's own count of reads from disk,
per 256 sequences of 4096.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from datakit.cache.contract import Contract
from datakit.cache.layout import shard_name
from datakit.cache.writer import Documents, write_shard
from datakit.cache.written_shards import WrittenShard, cache_details
from datakit.engine.task import TaskContext
from datakit.loader import Component, Loader, Mixture, open_source
from datakit.storage.manifest import Manifest, Quarantine, totals_of, write_manifest

LENGTH, ROWS, BLOCK = 4096, 32, 256
SHARD_TOKENS = 16_000_000
VOCABULARY = {"uint16": 50_280, "uint32": 128_256}


def synthetic_cache(directory: Path, tokens: int, dtype: str) -> str:
    """A finished cache of Zipf-like ids in documents of about 600 tokens, and beside it the same tokens in one file."""
    cache = directory / "cache"
    contract = Contract("0" * 64, "tokenizers", VOCABULARY[dtype], None, None, [])
    generator = np.random.default_rng(0)
    shards: list[WrittenShard] = []
    with open(directory / "tokens.bin", "wb") as flat:
        for number, first in enumerate(range(0, tokens, SHARD_TOKENS)):
            part = documents(generator, min(SHARD_TOKENS, tokens - first), VOCABULARY[dtype])
            part.tokens.astype(contract.dtype).tofile(flat)
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                context = TaskContext(str(cache), Path(scratch))
                shards.append(write_shard("web", shard_name("web", number), [part], contract, context)[0])
    write_manifest(manifest_of(shards, contract), str(cache))
    return str(cache)


def documents(generator: np.random.Generator, tokens: int, vocabulary: int) -> Documents:
    """About 600 tokens each, heavy-tailed; ids as frequent as words are."""
    lengths = np.maximum(1, generator.lognormal(5.9, 1.0, tokens // 300)).astype(np.int64)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]
    lengths[-1] -= lengths.sum() - tokens
    ids = np.exp(generator.random(tokens, np.float32) * np.float32(np.log(vocabulary))).astype(np.uint32) - 1
    names = pa.array([f"{number:032x}" for number in range(len(lengths))])
    return Documents(names, ids, lengths)


def manifest_of(shards: list[WrittenShard], contract: Contract) -> Manifest:
    """The manifest that the tokenize stage would have written."""
    partitions = [shard.partition for shard in shards]
    totals, details = totals_of(partitions), cache_details(shards, contract)
    return Manifest(
        "tokenize", "bench", "0" * 32, "0" * 32, {}, [], [], partitions, totals, {}, Quarantine(0),
        details=msgspec.to_builtins(details),
    )  # fmt: skip


def memmap_epoch(path: Path, dtype: str, window_blocks: int, seed: int) -> Iterator[np.ndarray]:
    """Each sequence of a flat file once, shuffled like the loader does; batches share one buffer."""
    mapped = np.memmap(path, dtype, mode="r")
    generator = np.random.default_rng(seed)
    sequences = len(mapped) // LENGTH
    order = generator.permutation(sequences // BLOCK)
    batch = np.empty((ROWS, LENGTH), np.int32)
    for first in range(0, len(order), window_blocks):
        window = (order[first : first + window_blocks, None] * BLOCK + np.arange(BLOCK)).ravel()
        generator.shuffle(window)
        for at in range(0, len(window), ROWS):
            for row, sequence in enumerate(window[at : at + ROWS].tolist()):
                batch[row] = mapped[sequence * LENGTH : (sequence + 1) * LENGTH]
            yield batch


def loader_epoch(loader: Loader, epoch: int, steps: int) -> Iterator[np.ndarray]:
    """One epoch's batches of the loader."""
    for batch in loader.iterate(epoch * steps, (epoch + 1) * steps):
        yield batch.tokens


def timed(batches: Iterator[np.ndarray]) -> float:
    """Sequences a second."""
    begun, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch)
    return count / (time.perf_counter() - begun)


def forget(directory: Path) -> None:
    """Drop the files from the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def compare(directory: Path, options: argparse.Namespace) -> dict[str, object]:
    """All contenders in turn, `rounds` times."""
    cache = synthetic_cache(directory, options.tokens, options.dtype)
    steps = options.tokens // LENGTH // ROWS
    sources = {name: open_source(cache) for name in ("loader", "loader + segments")}
    loaders = {
        name: Loader(
            Mixture({"web": Component(sources[name])}, {"web": 1.0}, memory_bytes=options.memory),
            segments=segments,
        )
        for name, segments in (("loader", False), ("loader + segments", True))
    }
    window = loaders["loader"].order.grants["web"].blocks
    rates: dict[str, list[float]] = {"memmap": [], **{name: [] for name in loaders}}
    for turn in range(options.rounds):
        contenders: dict[str, Callable[[], Iterator[np.ndarray]]] = {
            "memmap": lambda turn=turn: memmap_epoch(directory / "tokens.bin", options.dtype, window, turn),
            **{
                name: lambda loader=loader, turn=turn: loader_epoch(loader, turn, steps)
                for name, loader in loaders.items()
            },
        }
        for name, contender in contenders.items():
            if options.cold:
                forget(directory)
            rates[name].append(timed(contender()))
    before = sources["loader"].requests
    snapshot = loaders["loader"].metrics.snapshot()
    timed(loader_epoch(loaders["loader"], options.rounds, steps))
    after = loaders["loader"].metrics.snapshot()
    blocks = (after["reads"] - snapshot["reads"]) * BLOCK / (steps * ROWS)
    result: dict[str, object] = {
        "window_blocks": window,
        "requests per 256 sequences": round((sources["loader"].requests - before) / (steps * ROWS / BLOCK), 2),
        "block reads per 256 sequences": round(blocks, 2),
    }
    for name, values in rates.items():
        ratios = [value / base for value, base in zip(values, rates["memmap"], strict=True)]
        result[name] = {
            "sequences/s": round(statistics.median(values)),
            "of memmap": round(statistics.median(ratios), 3),
            "range": [round(min(ratios), 3), round(max(ratios), 3)],
        }
    for loader in loaders.values():
        loader.close()
    return result


def main() -> None:
    """Parse, run, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1 << 27)
    parser.add_argument("--dtype", choices=sorted(VOCABULARY), default="uint16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, default=1 << 27, help="bytes for the loader's window and the next")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--scratch", default=None, help="where the files go; removed afterwards")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as directory:
        print(json.dumps(compare(Path(directory), options), indent=1))


if __name__ == "__main__":
    main()
