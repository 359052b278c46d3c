"""Caches in other programs' formats, written with TensorStore and `struct` alone from the formats' descriptions."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import tensorstore

from datakit.cache.read_ahead import block_ranges
from datakit.cache.reader import Cache, open_cache
from datakit.interop.import_cache import import_cache
from datakit.interop.levanter import read_levanter
from datakit.validate.intact import require_intact

FAR = 1 << 54


SHARDS = ("00000_first", "00001_empty", "00002_last")


def documents(seed: int, count: int, end: int | None = 0) -> list[np.ndarray]:
    """Random ids below 400, each document followed by `end`; some documents have nothing else."""
    generator = np.random.default_rng(seed)
    made = [generator.integers(1, 400, int(size)).astype(np.int32) for size in generator.integers(0, 300, count)]
    return made if end is None else [np.append(ids, np.int32(end)) for ids in made]


def write_jagged(directory: Path, rows: list[np.ndarray], chunk: int = 1024) -> None:
    """Write `data` and `offsets` of one field: declared far too long, chunks of zeros missing, the row count first."""
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    flat = np.concatenate([*rows, np.empty(0, np.int32)]).astype(np.int32)
    for name, values in (("data", flat), ("offsets", np.concatenate([[len(rows)], ends]).astype(np.int64))):
        sharding = {
            "chunk_shape": [chunk],
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {
                    "name": "blosc",
                    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4},
                },
            ],
        }
        metadata = {
            "shape": [FAR],
            "data_type": values.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk * 4]}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }
        store = {"driver": "file", "path": f"{directory / name}/"}
        array = tensorstore.open({"driver": "zarr3", "kvstore": store, "metadata": metadata}, create=True).result()
        array[: len(values)].write(values).result()


def write_ledger(directory: Path, shards: dict[str, int], **more: object) -> None:
    """Write a ledger of these shards and row counts."""
    facts = {
        "total_num_rows": sum(shards.values()),
        "shard_rows": shards,
        "is_finished": True,
        "finished_shards": list(shards),
        "field_counts": {},
        "metadata": {"preprocessor_metadata": {"tokenizer": "mine"}},
        **more,
    }
    (directory / "shard_ledger.json").write_text(json.dumps(facts))


def consolidated(directory: Path, rows: list[np.ndarray]) -> Path:
    """Write a consolidated Levanter cache."""
    write_jagged(directory / "input_ids", rows)
    write_ledger(directory, {"only": len(rows)})
    return directory


def sharded(directory: Path, groups: list[list[np.ndarray]], **more: object) -> Path:
    """Write a sharded Levanter cache of three shards; a shard without documents has no array."""
    for name, rows in zip(SHARDS, groups, strict=True):
        if rows:
            write_jagged(directory / name / "input_ids", rows)
    counts = {name: len(rows) for name, rows in zip(SHARDS, groups, strict=True)}
    write_ledger(directory, counts, **more)
    return directory


def imported(original: Path, target: Path, tokenizer: str, copy: bool, add: str = "none") -> Cache:
    """Import a Levanter cache and open the result."""
    import_cache(
        read_levanter(str(original)), str(target), tokenizer,
        layout="levanter", source="old", copy=copy, ends=(add, None, None),
    )  # fmt: skip
    return open_cache(str(target))


def assert_documents(cache: Cache, rows: list[np.ndarray]) -> None:
    """Check that every way of reading the cache returns these documents."""
    flat = np.concatenate(rows)
    assert cache.documents_count == len(rows)
    assert (cache.read(0, cache.tokens) == flat).all()
    for start, stop in block_ranges(len(flat), 997):
        assert (cache.read(start, stop) == flat[start:stop]).all()
    found = list(cache.documents())
    assert [document.tokens.tolist() for document in found] == [row.tolist() for row in rows]
    lengths = [cache.document_lengths(shard.index) for shard in cache.shards]
    assert np.concatenate(lengths).tolist() == [len(row) for row in rows]
    assert len({document.id for document in found}) == len(rows)
    for row in range(0, len(rows), 7):
        assert cache.find(found[row].id) == row
        assert cache.document(row).tokens.tolist() == rows[row].tolist()
    require_intact(cache)


def read_by_hand(prefix: Path) -> tuple[list[list[int]], list[int], dict[str, int]]:
    """Read sequences, document boundaries and header of a Megatron dataset."""
    index = prefix.with_suffix(".idx").read_bytes()
    data = prefix.with_suffix(".bin").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    (version,) = struct.unpack("<Q", index[9:17])
    (code,) = struct.unpack("<B", index[17:18])
    sequences, borders = struct.unpack("<QQ", index[18:34])
    place = 34
    lengths = struct.unpack(f"<{sequences}i", index[place : place + 4 * sequences])
    place += 4 * sequences
    pointers = struct.unpack(f"<{sequences}q", index[place : place + 8 * sequences])
    place += 8 * sequences
    documents = struct.unpack(f"<{borders}q", index[place : place + 8 * borders])
    assert place + 8 * borders == len(index)
    kind, size = {4: ("i", 4), 8: ("H", 2)}[code]
    found = [list(struct.unpack_from(f"<{n}{kind}", data, at)) for n, at in zip(lengths, pointers, strict=True)]
    assert sum(lengths) * size == len(data)
    return found, list(documents), {"version": version, "code": code}


def write_by_hand(prefix: Path, rows: list[list[int]], borders: list[int], shuffled: bool = False) -> None:
    """Write a Megatron dataset; if `shuffled`, the file has the sequences in a different order than the index."""
    order = list(range(len(rows)))[:: -1 if shuffled else 1]
    pointers, data = [0] * len(rows), b""
    for row in order:
        pointers[row] = len(data)
        data += struct.pack(f"<{len(rows[row])}i", *rows[row])
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(rows), len(borders))
    index += struct.pack(f"<{len(rows)}i", *map(len, rows)) + struct.pack(f"<{len(rows)}q", *pointers)
    prefix.with_suffix(".idx").write_bytes(index + struct.pack(f"<{len(borders)}q", *borders))
    prefix.with_suffix(".bin").write_bytes(data)
