"""Token caches and the caches of other programs with crafted contents: arrays, lengths, lists of documents, indexes."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.storage.manifest import Manifest
from tests.support.caches import trained
from tests.support.hostile.case import Case, Limits, Place, refused
from tests.support.hostile.kinds.manifests import SHELF, changed, copy_finished, step
from tests.support.hostile.kinds.special_files import device, link_to_a_pipe, pipe, socket_at
from tests.support.tokens.external_caches import consolidated, documents

READERS: dict[str, tuple[str, ...]] = {
    "validate": ("validate", SHELF),
    "show": ("cache", "show", SHELF, "--document", "0"),
    "stats": ("cache", "stats", SHELF),
}
ARRAY, LENGTHS, LIST = "shard-*/c/0", "shard-*.lengths", "shard-*.docs.parquet"
TOKENIZER = ("--tokenizer", "tokenizer.json")
FAR = Limits(memory=2 << 30)


def file_of(place: Place, pattern: str) -> Path:
    """Return the first file of the cache that matches, in the folder of the source `novels` if it is an array's."""
    directory = step(place, "tokenize")
    return next(iter(sorted((directory / "data" / "novels").glob(pattern)) or sorted(directory.glob(pattern))))


def edited(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Place], None]:
    """Return a function that copies the finished cache and changes the bytes of a file."""

    def build(place: Place) -> None:
        copy_finished(place)
        file = file_of(place, pattern)
        file.write_bytes(change(file.read_bytes()))

    return build


def put(pattern: str, special: Callable[[Path], None]) -> Callable[[Place], None]:
    """Return a function that copies the finished cache and replaces a file by one that is none."""

    def build(place: Place) -> None:
        copy_finished(place)
        file = file_of(place, pattern)
        file.unlink()
        special(file)

    return build


def out(pattern: str) -> Callable[[Place], None]:
    """Return a function that copies the finished cache and replaces a file by a link to the file outside."""

    def build(place: Place) -> None:
        put(pattern, lambda path: path.symlink_to(place.secret))(place)

    return build


def detail(**changes: Any) -> Callable[[Place], None]:
    """Return a function that copies the finished cache and changes the manifest's details."""

    def change(manifest: Manifest, place: Place) -> Manifest:
        made = {
            key: value(manifest.details[key], place) if callable(value) else value for key, value in changes.items()
        }
        return msgspec.structs.replace(manifest, details=manifest.details | made)

    return changed("tokenize", change)


def external(place: Place) -> None:
    """Describe arrays that another program holds outside."""
    changed("tokenize", lambda manifest, where: msgspec.structs.replace(manifest, details=manifest.details | {
        "foreign": {"layout": "levanter", "forms": [{}], "shards": [
            {"directory": str(where.outside), "form": 0, "files": [
                {"path": "secret.jsonl", "bytes": 1, "xxh3": "0" * 32}]}
        ] * len(manifest.partitions)}}))(place)  # fmt: skip


def huge_list() -> bytes:
    """Return a list of documents whose ids are 10 MB long each, from a dictionary."""
    ids = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["a" * (10 << 20)]))
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": ids, "tokens": pa.array([1] * 20_000, pa.uint32())}), sink, compression="zstd",
                   dictionary_pagesize_limit=1 << 28)  # fmt: skip
    return sink.getvalue()


def megatron(
    sequences: int, documents: int, code: int, body: bytes, data: bytes = bytes(64)
) -> Callable[[Place], None]:
    """Return a function that writes a Megatron dataset whose index claims these numbers."""

    def build(place: Place) -> None:
        place.write("tokenizer.json", trained())
        place.write("set.idx", struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, sequences, documents) + body)
        place.write("set.bin", data)

    return build


def levanter(change: Callable[[Path], None]) -> Callable[[Place], None]:
    """Return a function that writes a Levanter cache, and changes it."""

    def build(place: Place) -> None:
        place.write("tokenizer.json", trained())
        change(consolidated(place.work / "set", documents(1, 20)))

    return build


def ledger(**changes: Any) -> Callable[[Path], None]:
    """Return a change of a Levanter cache's ledger."""

    def change(directory: Path) -> None:
        file = directory / "shard_ledger.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def array(name: str, **changes: Any) -> Callable[[Path], None]:
    """Return a change of an array's zarr.json."""

    def change(directory: Path) -> None:
        file = directory / "input_ids" / name / "zarr.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def index(*lengths: int, pointers: tuple[int, ...], borders: tuple[int, ...]) -> bytes:
    """Return the body of a Megatron index."""
    return b"".join((np.array(lengths, "<i4").tobytes(), np.array(pointers, "<i8").tobytes(),
                     np.array(borders, "<i8").tobytes()))  # fmt: skip


EDITS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "array-inverted": (ARRAY, lambda data: bytes(byte ^ 0xFF for byte in data)),
    "array-cut": (ARRAY, lambda data: data[: len(data) // 2]),
    "array-empty": (ARRAY, lambda data: b""),
    "array-with-a-wild-index": (ARRAY, lambda data: data[:-20] + b"\xff" * 16 + data[-4:]),
    "lengths-of-2^32-1": (LENGTHS, lambda data: b"\xff" * len(data)),
    "lengths-cut": (LENGTHS, lambda data: data[:-3]),
    "list-empty": (LIST, lambda data: b""),
    "list-of-huge-ids": (LIST, lambda data: huge_list()),
    "list-flipped": (LIST, lambda data: data[:60] + bytes(byte ^ 0x55 for byte in data[60:90]) + data[90:]),
}
DETAILS: dict[str, dict[str, Any]] = {
    "vocabulary-of-2^62": {"contract": lambda found, place: found | {"vocabulary_size": 1 << 62}},
    "vocabulary-negative": {"contract": lambda found, place: found | {"vocabulary_size": -1}},
    "unsafe-encoder": {"contract": lambda found, place: found | {"encoder": "\x1b[2J\u202e"}},
    "unsafe-golden-strings": {
        "contract": lambda found, place: found | {"golden": [{"text": "\x1b[2J", "ids": [1 << 40]}]}
    },
    "huge-golden-ids": {"contract": lambda found, place: found | {"golden": [{"text": "a", "ids": [-1] * 100_000}]}},
    "array-of-objects": {"array": lambda found, place: found | {"dtype": "object"}},
    "array-chunks-of-0": {"array": lambda found, place: found | {"chunk_tokens": 0}},
    "of-a-newer-version": {"format": "datakit.cache/99"},
    "without-shards": {"shards": []},
    "frequent-of-2^62": {"frequent": [[1 << 62, 1]] * 1000},
}
UNPROVABLE = ("unsafe-encoder",)  # no file shows which program made the tokens
IMPORT = ("cache", "import", "set", "{root}/cache", *TOKENIZER)
CASES = (
    *(
        Case(
            f"cache-{name}-{command}",
            edited(*edit),
            refused(code=(1, 2, 4) if command == "validate" else (0, 1, 2)),
            words=words,
            shows_text=True,
            limits=FAR,
        )
        for name, edit in EDITS.items()
        for command, words in READERS.items()
        if command != "stats"
    ),
    *(
        Case(
            f"cache-{name}-{command}",
            detail(**changes),
            refused(code=(1, 2, 4) if command == "validate" and name not in UNPROVABLE else (0, 1, 2)),
            words=words,
            shows_text=True,
            limits=FAR,
        )
        for name, changes in DETAILS.items()
        for command, words in READERS.items()
    ),
    *(
        Case(
            f"cache-{kind}-as-{what}-{command}",
            put(pattern, special),
            refused(said, code=(1, 2, 4)),
            words=READERS[command],
            shows_text=True,
        )
        for kind, special, said in (
            ("pipe", pipe, "a named pipe"),
            ("device", device, "a device"),
            ("socket", socket_at, "a socket"),
            ("link", link_to_a_pipe, "a named pipe"),
        )
        for what, pattern in {
            "array": ARRAY,
            "lengths": LENGTHS,
            "list": LIST,
            "tokenizer": "tokenizer.json",
            "manifest": "manifest.json",
        }.items()
        for command in ("validate", "show")
        if (command == "validate" or (kind == "pipe" and what in ("array", "tokenizer", "manifest")))
        and (kind in ("pipe", "device") or what == "array")
    ),
    *(
        Case(
            f"cache-link-outside-as-{what}-{command}",
            out(pattern),
            refused(code=(1, 2, 4)),
            words=READERS[command],
            follows_links=True,
            shows_text=True,
        )
        for what, pattern in {
            "array": ARRAY,
            "lengths": LENGTHS,
            "list": LIST,
            "tokenizer": "tokenizer.json",
            "manifest": "manifest.json",
        }.items()
        for command in ("validate", "show")
    ),
    *(
        Case(
            f"cache-arrays-of-another-program-outside-{command}",
            external,
            refused(code=(0, 1, 2, 4)),
            words=words,
            follows_links=True,
            shows_text=True,
        )
        for command, words in READERS.items()
    ),
    *(
        Case(f"megatron-{name}", build, refused(code=(1, 2, 4)), words=(*IMPORT, "--copy"), limits=FAR)
        for name, build in {
            "2^60-sequences": megatron(1 << 60, 2, 8, b""),
            "2^62-documents": megatron(1, 1 << 62, 8, b""),
            "sizes-that-wrap-around": megatron((1 << 64) // 12, (1 << 64) // 8, 8, b""),
            "unknown-type": megatron(1, 2, 99, bytes(28)),
            "negative-length": megatron(1, 2, 8, index(-5, pointers=(0,), borders=(0, 1))),
            "negative-pointer": megatron(1, 2, 8, index(5, pointers=(-64,), borders=(0, 1))),
            "pointer-of-2^62": megatron(1, 2, 8, index(5, pointers=(1 << 62,), borders=(0, 1))),
            "length-2^31-1": megatron(1, 2, 8, index((1 << 31) - 1, pointers=(0,), borders=(0, 1))),
            "borders-that-decrease": megatron(2, 3, 8, index(5, 5, pointers=(0, 10), borders=(0, 2, 1))),
            "borders-of-2^60": megatron(1, 2, 8, index(5, pointers=(0,), borders=(0, 1 << 60))),
            "index-of-text": lambda place: (megatron(1, 2, 8, b"")(place), place.write("set.idx", b"text"))[0],
        }.items()
    ),
    *(
        Case(f"levanter-{name}", levanter(change), refused(code=(1, 2, 4)), words=(*IMPORT, "--copy"), limits=FAR)
        for name, change in {
            "shard-up": ledger(layout="sharded", finished_shards=["../../outside"], shard_rows={"../../outside": 20}),
            "shard-absolute": ledger(layout="sharded", finished_shards=["/etc"], shard_rows={"/etc": 20}),
            "rows-2^60": ledger(total_num_rows=1 << 60),
            "rows-negative": ledger(total_num_rows=-1),
            "ledger-nested-deep": lambda folder: (folder / "shard_ledger.json").write_text("[" * 100_000) and None,
            "shape-2^62": array("offsets", shape=[1 << 62]),
            "type-of-strings": array("data", data_type="string"),
            "codec-unknown": array("data", codecs=[{"name": "planted_module", "configuration": {}}]),
            "chunks-of-2^50": array(
                "offsets", chunk_grid={"name": "regular", "configuration": {"chunk_shape": [1 << 50]}}
            ),
            "storage-transformers": array("data", storage_transformers=[{"name": "planted_module"}]),
        }.items()
    ),
)
