"""Read a token cache and a memory map of the same tokens: warm, cold, on opening, and from an object store.

    python -m benchmarks.cache_read [--folder DIR] [--megatokens N] [--part opening|warm|cold|store] [--latency 0.05]

Token frequencies follow those of words (token n about as often as 1 / n). Raw uint16 and compressed uint32 storage are
both measured.

*Warm* and *cold* do what a loader does: they fill batches of 32 sequences of 4096 tokens, from blocks of 256 sequences
in random order, with sequences shuffled inside each block. The memory map copies each sequence from its position. The
cache reads whole blocks, up to four ahead, and copies sequences from them. Rounds are interleaved, every round draws
other blocks, and medians are printed. *Cold* drops the files' pages before each round (posix_fadvise) and reads the
memory map with one thread. *Store* uses an S3 server on this machine that delays each answer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.cache.contract import Contract
from datakit.cache.layout import FORMAT, STAGE, CacheDetails, ShardFiles, SourceSums, array_form
from datakit.cache.reader import Cache, open_cache
from datakit.cache.writer import Documents, write_shard
from datakit.cache.written_shards import cache_details
from datakit.engine.task import TaskContext
from datakit.storage import manifest as manifests
from datakit.storage import urls
from datakit.storage.manifest import Manifest, Partition, Quarantine, totals_of

LENGTH, BLOCK_SEQUENCES, BATCH = 4096, 256, 32
BLOCK = LENGTH * BLOCK_SEQUENCES
ROUNDS, BLOCKS_A_ROUND = 9, 24
DOCUMENT_TOKENS = 512
SHARDS = 10_000
STORE_TOKENS = 24 * BLOCK  # the test server copies a whole object for each answer


@dataclass(frozen=True)
class Made:
    """A cache, and the same tokens in a plain file."""

    cache: Path
    plain: Path
    dtype: np.dtype
    shard: str = "data/web/shard-00000"


def make(folder: Path, dtype: np.dtype, tokens: int) -> Made:
    """Write a cache of one shard with the production writer, and the plain file."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Made(folder / f"cache-{dtype.name}", folder / f"plain-{dtype.name}.bin", dtype)
    if (made.cache / "manifest.json").exists():
        return made
    contract = Contract("0" * 64, "none", 50_000 if dtype == np.uint16 else 100_000, None, None, [])
    generator = np.random.default_rng(0)
    with open(made.plain, "wb") as plain, tempfile.TemporaryDirectory(dir=folder) as scratch:

        def parts() -> Iterator[Documents]:
            for number in range(tokens // BLOCK):
                drawn = contract.vocabulary_size ** generator.random(BLOCK) - 1
                ids = generator.permutation(contract.vocabulary_size).astype(dtype)[drawn.astype(np.int64)]
                ids.tofile(plain)
                count = BLOCK // DOCUMENT_TOKENS
                names = [f"{number * count + row:032x}" for row in range(count)]
                yield Documents(pa.array(names), ids, np.full(count, DOCUMENT_TOKENS))

        written, _ = write_shard("web", made.shard, parts(), contract, TaskContext(str(made.cache), Path(scratch), 2))
    _write_manifest(str(made.cache), [written.partition], cache_details([written], contract))
    return made


def _write_manifest(directory: str, partitions: list[Partition], details: CacheDetails) -> None:
    import msgspec

    totals, plain, nothing = totals_of(partitions), msgspec.to_builtins(details), Quarantine(0)
    manifest = Manifest(STAGE, "b", "0" * 32, "0" * 32, {}, [], [], partitions, totals, {}, nothing, plain)
    manifests.write_manifest(manifest, directory)


# --- warm and cold


def batches_of_map(plain: np.ndarray, blocks: list[int], generator: np.random.Generator) -> int:
    """Yield batches copied sequence by sequence from the memory map."""
    batch, row, done = np.empty((BATCH, LENGTH), plain.dtype), 0, 0
    for block in blocks:
        for sequence in generator.permutation(BLOCK_SEQUENCES).tolist():
            start = (block * BLOCK_SEQUENCES + sequence) * LENGTH
            batch[row] = plain[start : start + LENGTH]
            row, done = (row + 1) % BATCH, done + 1
    return done


def batches_of_cache(cache: Cache, blocks: list[int], generator: np.random.Generator, in_flight: int) -> int:
    """Yield batches copied from blocks that are read ahead."""
    batch, row, done = np.empty((BATCH, LENGTH), cache.contract.dtype), 0, 0
    ranges = [(block * BLOCK, (block + 1) * BLOCK) for block in blocks]
    for read in cache.blocks(ranges, in_flight):
        sequences = read.reshape(BLOCK_SEQUENCES, LENGTH)
        for sequence in generator.permutation(BLOCK_SEQUENCES).tolist():
            batch[row] = sequences[sequence]
            row, done = (row + 1) % BATCH, done + 1
    return done


def compare(made: Made, cold: bool) -> None:
    """Run interleaved rounds of every reader; return median rates and their ratios to the memory map."""
    cache = open_cache(str(made.cache))
    plain = np.memmap(made.plain, made.dtype, mode="r")
    data = made.cache / made.shard / "c" / "0"
    generator = np.random.default_rng(1)
    ways: dict[str, Callable[[list[int]], int]] = {
        "memory map": lambda blocks: batches_of_map(
            np.memmap(made.plain, made.dtype, mode="r") if cold else plain, blocks, generator
        )
    }
    for in_flight in (1, 2, 4):
        ways[f"cache, {in_flight} in flight"] = lambda blocks, n=in_flight: batches_of_cache(
            cache, blocks, generator, n
        )
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    requests, blocks_read = 0, 0
    for _ in range(1 + ROUNDS):  # the first round is not counted
        for name, way in ways.items():
            blocks = generator.choice(cache.tokens // BLOCK, min(BLOCKS_A_ROUND, cache.tokens // BLOCK), replace=False)
            if cold:
                _drop_pages(data)
                _drop_pages(made.plain)
            before, began, worked = cache.requests, time.perf_counter(), time.process_time()
            done = way(blocks.tolist())
            rates[name].append(done / (time.perf_counter() - began))
            cpu[name].append((time.process_time() - worked) / done * 1e6)
            if name != "memory map":
                requests, blocks_read = requests + cache.requests - before, blocks_read + len(blocks)
    base = statistics.median(rates["memory map"][1:])
    for name, found in rates.items():
        rate, work = statistics.median(found[1:]), statistics.median(cpu[name][1:])
        print(
            f"  {name:20}{rate:10,.0f} sequences/s {rate * LENGTH * made.dtype.itemsize / 1e9:7.2f} GB/s "
            f"{rate / base:6.2f} of the map {work:6.1f} us CPU a sequence"
        )
    print(f"  requests a block of {BLOCK_SEQUENCES} sequences: {requests / blocks_read:.2f}")


def _drop_pages(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


# --- opening


def opening(folder: Path) -> None:
    """Open a manifest of 10,000 shards in a new process; report seconds, memory and files read."""
    directory = folder / "many"
    if not (directory / "manifest.json").exists():
        partitions = [
            Partition(f"data/web/shard-{number:05d}", "web", 5000, 1 << 22, f"{number:032x}", 1 << 23, 1 << 21,
                      first_id=f"{number:032x}", last_id=f"{number:032x}")
            for number in range(SHARDS)
        ]  # fmt: skip
        marks = (f"{number:032x}" for number in range(SHARDS))
        files = [ShardFiles(700, mark, 90_000, mark, mark) for mark in marks]
        contract = Contract("0" * 64, "none", 50_000, None, None, [])
        sums = {"web": SourceSums(SHARDS, 5000 * SHARDS, SHARDS << 21, SHARDS << 23)}
        form = array_form(np.dtype(np.uint16))
        details = CacheDetails(
            format=FORMAT, contract=contract, array=form, shards=files, sources=sums, lengths={"512": 5000 * SHARDS}
        )
        _write_manifest(str(directory), partitions, details)
    done = subprocess.run([sys.executable, "-c", OPEN, str(directory)], capture_output=True, text=True, check=True)
    print(f"  {(directory / 'manifest.json').stat().st_size / 1e6:.1f} MB of manifest; {done.stdout.strip()}")


OPEN = """
import sys, time
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
import numpy, tensorstore
from pathlib import Path
def peak_memory():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
from datakit.cache.reader import open_cache
before, began = peak_memory(), time.perf_counter()
cache = open_cache(sys.argv[1])
seconds = time.perf_counter() - began
here = [path for path in opened if path.startswith(sys.argv[1])]
print(f"{len(cache.shards)} shards, {cache.tokens:,} tokens: {seconds:.3f} s, {len(here)} read, "
      f"{peak_memory():.0f} MiB of memory at the most, {before:.0f} of them before")
"""


# --- object store


def store(made: Made, latency: float) -> None:
    """Read the same cache from a server that delays each answer; report tokens/s and memory."""
    from tests.support.s3 import s3_root

    with s3_root(latency=latency) as root:
        for path in sorted(made.cache.rglob("*")):
            if path.is_file():
                file_system, remote = urls.filesystem(f"{root}/{path.relative_to(made.cache)}")
                file_system.put_file(str(path), remote)
        for in_flight in (1, 2, 4):
            command = [sys.executable, "-c", READ, root, str(in_flight)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"  {in_flight} in flight: {done.stdout.strip()}")


READ = """
import sys, time
import numpy as np
from benchmarks.cache_read import BLOCK, LENGTH, BLOCKS_A_ROUND, batches_of_cache, peak_memory
from datakit.cache.reader import open_cache
root, in_flight = sys.argv[1], int(sys.argv[2])
cache = open_cache(root)
blocks = np.random.default_rng(2).permutation(cache.tokens // BLOCK)[:BLOCKS_A_ROUND].tolist()
opened, before, began = peak_memory(), cache.requests, time.perf_counter()
done = batches_of_cache(cache, blocks, np.random.default_rng(3), in_flight)
seconds = time.perf_counter() - began
requests = (cache.requests - before) / len(blocks)
print(f"{done * LENGTH / seconds / 1e6:.1f} M tokens/s, {requests:.2f} requests a block, "
      f"{peak_memory():.0f} MiB of memory at the most, {opened:.0f} of them when opened")
"""


def peak_memory() -> float:
    """Peak memory of this process in MiB. ru_maxrss would start at the parent process's peak."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def main() -> None:
    """Parse arguments and run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--megatokens", type=int, default=128)
    parser.add_argument("--part", choices=("opening", "warm", "cold", "store"), action="append")
    parser.add_argument("--latency", type=float, default=0.05)
    chosen = parser.parse_args()
    parts = chosen.part or ["opening", "warm", "cold", "store"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        if "opening" in parts:
            print(f"opening {SHARDS:,} shards")
            opening(folder)
        for dtype in (np.dtype(np.uint16), np.dtype(np.uint32)):
            for part in [part for part in parts if part in ("warm", "cold")]:
                print(f"{dtype.name}, {part}, {chosen.megatokens} Mi tokens")
                compare(make(folder, dtype, chosen.megatokens << 20), cold=part == "cold")
            if "store" in parts:
                print(f"{dtype.name}, store, {chosen.latency * 1000:.0f} ms before each answer")
                store(make(folder / "store", dtype, STORE_TOKENS), chosen.latency)


if __name__ == "__main__":
    main()
