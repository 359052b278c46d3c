"""Measures how many MB of text per CPU-second the readers of normalize deliver, format by format, from real texts.

    python -m benchmarks.format_readers TEXTS [--rounds 3]

TEXTS is a directory of `.jsonl.gz` files (`python -m benchmarks.peers.scaled_text DIR --copies 1`). The records of two
files, one with few long texts and one with many short ones, are written in each format, uncompressed. Prints one line
per file and format, with the best of the rounds.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from datakit.engine.task import Tolerance
from datakit.normalize.config import Config
from datakit.normalize.readers.base import ReadContext
from datakit.normalize.readers.dolma.attribute_files import attribute_files
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import cut_slices, read_slice
from datakit.normalize.record_counts import RecordCounts

Records = list[dict[str, Any]]
FILES = ("novels-en", "tldr")


def as_lines(records: Records) -> dict[str, bytes]:
    """JSON Lines."""
    return {"in.jsonl": b"".join(json.dumps(record).encode() + b"\n" for record in records)}


def as_array(records: Records) -> dict[str, bytes]:
    """One indented JSON array."""
    return {"in.json": json.dumps(records, indent=1).encode()}


def as_dump(records: Records) -> dict[str, bytes]:
    """A MediaWiki dump."""
    pages = (
        f"<page><title>t</title><ns>0</ns><id>{number}</id><revision><id>1</id><timestamp>2024-01-01T00:00:00Z"
        f"</timestamp><text>{escape(record['text'])}</text></revision></page>\n"
        for number, record in enumerate(records)
    )
    return {"in.xml": f"<mediawiki>\n{''.join(pages)}</mediawiki>\n".encode()}


def as_tar(records: Records) -> dict[str, bytes]:
    """A tar archive of samples, each with a `.txt` and a `.json`."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for number, record in enumerate(records):
            for kind, content in (("txt", record["text"].encode()), ("json", json.dumps({"n": number}).encode())):
                info = tarfile.TarInfo(f"{number:08d}.{kind}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return {"in.tar": data.getvalue()}


def as_dolma(records: Records) -> dict[str, bytes]:
    """Documents, and one file of attributes."""
    entries = [{"id": str(record["id"]), "attributes": {"a": [[0, 1, 0.5]]}} for record in records]
    documents = [{**record, "id": str(record["id"])} for record in records]
    return {
        "documents/in.jsonl": as_lines(documents)["in.jsonl"],
        "attributes/q/in.jsonl": as_lines(entries)["in.jsonl"],
    }


FORMATS: dict[str, tuple[str, Callable[[Records], dict[str, bytes]]]] = {
    "JSON Lines": ("auto", as_lines),
    "JSON array": ("auto", as_array),
    "mediawiki": ("mediawiki", as_dump),
    "webdataset": ("webdataset", as_tar),
    "dolma": ("dolma", as_dolma),
}


def read(folder: Path, form: str) -> int:
    """Read all files of a folder. Return the number of records."""
    files = [(str(path.relative_to(folder)), path.stat().st_size) for path in sorted(folder.rglob("in.*"))]
    attributes = attribute_files(path for path, _ in files) if form == "dolma" else {}
    inputs, counts = Inputs(str(folder), attributes=attributes), RecordCounts(Tolerance(0))
    context = ReadContext(inputs, Config(format=form), counts)
    return sum(chunk.table.num_rows for ranges in cut_slices(inputs, files, context.config)
               for chunk in read_slice(context, ranges))  # fmt: skip


def measured(records: Records, rounds: int) -> Iterator[tuple[str, float]]:
    """Yield the CPU-seconds of the best round, for each format."""
    for name, (form, write) in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            for path, data in write(records).items():
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_bytes(data)
            best = float("inf")
            for _ in range(rounds + 1):  # the first round may compile kernels
                started = time.process_time()
                assert read(Path(folder), form) == len(records)
                best = min(best, time.process_time() - started)
        yield name, best


def main() -> None:
    """Print one line per file and format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for file in FILES:
        with gzip.open(options.texts / f"{file}.00.jsonl.gz", "rt") as lines:
            records = [{"id": record["id"], "text": record["text"]} for record in map(json.loads, lines)]
        size = sum(len(record["text"].encode()) for record in records) / 1e6
        for name, seconds in measured(records, options.rounds):
            print(f"{file} ({len(records):,} texts, {size:.1f} MB): {name}: {size / seconds:.0f} MB per CPU-second, "
                  f"{1e6 * seconds / len(records):.1f} microseconds a text", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
