"""Compares the reading of web archives and the extraction of their texts with datatrove, and with the extractors alone.

    python -m benchmarks.peers.web_archives --pages FOLDER --python PEERS/bin/python [--megabytes 200] [--rounds 3]

FOLDER holds HTML files, for example the pages of a language's documentation. They are packed into archives as Common
Crawl packs them: per page a request, a response with its digest and its recognized type, and a metadata record, each a
gzip member. `read` decodes all pages and extracts nothing. `extract` extracts a part of them (--extracted, in MB). The
programs take turns in every round, and each runs in a process of its own; the numbers are medians of MB of content per
CPU-second. The extractor alone is called in a loop over the decoded pages, which are already in memory. datatrove
inflates with isal if the peers' Python has it, which takes about a quarter off its time; its extra `io` does not
install it, so it is also measured with zlib. The floor is explained in archive_floor.py.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.engine.arrow_without_pandas import leave_out_pandas
from datakit.engine.freed_memory import keep_freed_memory
from datakit.engine.task import TaskContext, Tolerance
from datakit.normalize.config import NO_EXTRACTION, RESILIPARSE, TRAFILATURA, Config
from datakit.normalize.formats import WARC
from datakit.normalize.readers.base import ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.web.extractors import extractor, warm
from datakit.normalize.readers.web.reader import read_web
from datakit.normalize.record_counts import RecordCounts
from datakit.text.string_buffers import string_buffers

PEER = Path(__file__).with_name("datatrove_archives.py")
HTTP = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nServer: x\r\nX-Crawl-Content-Encoding: gzip\r\n\r\n"
)
ALONE = "alone"


def main() -> None:
    """Pack the archives, run all programs in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=Path, help="a folder of HTML files")
    parser.add_argument("--python", default="", help="the Python in which datatrove is installed")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--extracted", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "WHAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure[0]), options.measure[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder, "large"), Path(folder, "small")
        sizes = {
            large: pack(options.pages, large, options.megabytes),
            small: pack(options.pages, small, options.extracted),
        }
        compare(sizes, large, small, options.python, options.rounds)


def pack(pages: Path, target: Path, megabytes: int) -> int:
    """Write an archive with `megabytes` MB of content; return its exact size in bytes. Pages are taken in the order of
    their paths' hashes, and repeated if they do not suffice, so the archive is the same in every run.
    """
    target.mkdir()
    paths = sorted(pages.rglob("*.html"), key=lambda path: hashlib.sha1(str(path.relative_to(pages)).encode()).digest())
    if not paths:
        raise SystemExit(f"{pages} holds no HTML files")
    size = 0
    with (target / "pages.warc.gz").open("wb") as file:
        while size < megabytes * 10**6:
            for number, path in enumerate(paths):
                for record in records(number, path.read_bytes()):
                    file.write(gzip.compress(record, 6, mtime=0))
                    size += len(record)
                if size >= megabytes * 10**6:
                    break
    return size


def records(number: int, page: bytes) -> Iterator[bytes]:
    """Yield the request, the response and the metadata of a page."""
    block = HTTP.encode() + page
    digest = base64.b32encode(hashlib.sha1(block).digest()).decode()
    yield record("request", number, "application/http; msgtype=request", b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
    extra = f"WARC-Block-Digest: sha1:{digest}\r\nWARC-Identified-Payload-Type: text/html\r\n"
    yield record("response", number, "application/http; msgtype=response", block, extra)
    yield record(
        "metadata", number, "application/warc-fields", b'fetchTimeMs: 9\r\nlanguages-cld2: {"reliable":true}\r\n'
    )


def record(kind: str, number: int, content_type: str, block: bytes, extra: str = "") -> bytes:
    """Return a WARC record."""
    header = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Date: 2020-01-02T03:04:05Z\r\n"
        f"WARC-Record-ID: <urn:uuid:{number:032x}>\r\n"
        f"Content-Length: {len(block)}\r\nContent-Type: {content_type}\r\nWARC-IP-Address: 127.0.0.1\r\n"
        f"WARC-Target-URI: https://example.com/{number}\r\n{extra}\r\n"
    )
    return header.encode() + block + b"\r\n\r\n"


def measure(folder: Path, what: str) -> dict[str, float]:
    """Return pages, bytes of text and CPU-seconds. what: an extractor, or an extractor and ALONE."""
    name, _, alone = what.partition("-")
    leave_out_pandas()  # this and the next, as in every task
    keep_freed_memory()
    warm(name)
    pages = list[str]()
    if name != NO_EXTRACTION:  # with and without datakit, extraction starts in a process that has read the pages once
        pages = [text.decode() for column in texts_of(folder, NO_EXTRACTION) for text in column.to_pylist()]
    count = size = 0
    start = time.process_time()
    if alone:
        extract = extractor(name)
        for page in pages:
            text = extract(page)
            count, size = count + bool(text), size + len((text or "").encode())
    else:
        for column in texts_of(folder, name):
            for texts in column.chunks:
                sizes = np.diff(string_buffers(texts)[1])
                count, size = count + int(np.count_nonzero(sizes)), size + int(sizes.sum())
    return {"pages": count, "text_bytes": size, "cpu_seconds": time.process_time() - start}


def texts_of(folder: Path, extract: str) -> Iterator[pa.ChunkedArray]:
    """Yield the columns of texts of the archives in a folder, as a task reads them."""
    config, counts = Config(extract=extract), RecordCounts(Tolerance(0))
    context = ReadContext(Inputs(str(folder)), config, counts, TaskContext(str(folder), folder))
    for path in sorted(folder.iterdir()):
        for chunk in read_web(context, path.name, WARC):
            yield chunk.table[config.text]


def compare(sizes: dict[Path, int], large: Path, small: Path, python: str, rounds: int) -> None:
    """Run every program once per round, and print the medians."""
    ours = [sys.executable, "-m", "benchmarks.peers.web_archives", "--measure"]
    programs = {
        "read: datakit": (large, [*ours, str(large), NO_EXTRACTION]),
        "read: floor": (large, [sys.executable, "-m", "benchmarks.peers.archive_floor", str(large)]),
        "read: datatrove, isal": (large, [python, str(PEER), str(large), "read"]),
        "read: datatrove, zlib": (large, [python, str(PEER), str(large), "read", "zlib"]),
        "Resiliparse in datakit": (small, [*ours, str(small), RESILIPARSE]),
        "Resiliparse alone": (small, [*ours, str(small), f"{RESILIPARSE}-{ALONE}"]),
        "trafilatura in datakit": (small, [*ours, str(small), TRAFILATURA]),
        "trafilatura alone": (small, [*ours, str(small), f"{TRAFILATURA}-{ALONE}"]),
        "trafilatura in datatrove": (small, [python, str(PEER), str(small), "extract"]),
    }
    programs = {name: one for name, one in programs.items() if one[1][0]}
    taken: dict[str, list[float]] = {name: [] for name in programs}
    results: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name, (_, command) in programs.items():
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[name] = json.loads(output.splitlines()[-1])
            taken[name].append(results[name]["cpu_seconds"])
    print("floor, last round:", results["read: floor"])
    print(f"{'program':<26}{'MB of content':>14}{'pages':>8}{'MB of text':>11}{'CPU s':>8}{'MB per CPU s':>14}")
    for name, (folder, _) in programs.items():
        seconds, content = statistics.median(taken[name]), sizes[folder] / 1e6
        pages, text = results[name]["pages"], results[name]["text_bytes"] / 1e6
        spread = f"{min(taken[name]):.2f} to {max(taken[name]):.2f}"
        print(
            f"{name:<26}{content:>14.1f}{pages:>8,.0f}{text:>11.1f}{seconds:>8.2f}{content / seconds:>14.1f}  {spread}"
        )


if __name__ == "__main__":
    main()
