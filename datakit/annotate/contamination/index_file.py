"""Keeps an index in a file that all processes of a machine map into memory, so that they share one copy.

The file is an Arrow file with one row: each array of the index is one binary value, and its metadata holds the hash of
all arrays, which is compared whenever the file is opened. Its name is a hash of everything that the index depends on:
the rules, the columns, and the contents of the evaluation sets. If several processes build the same index at the same
time, they write the same bytes, and the first one creates the file.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from datakit.annotate.contamination.evaluation_sets import EvaluationSet, ItemFile, Passages, read_passages
from datakit.annotate.contamination.index import Index, build_index
from datakit.errors import CorruptError
from datakit.storage.atomic import commit_file, staging
from datakit.storage.fingerprint import canonical_json
from datakit.text.key_tables import Table

INDEX_VERSION = 1  # increment it if the arrays of an index change
_HASH = b"xxh3"
_ARRAYS = {
    "ngram_keys": np.uint64, "ngram_directory": np.uint32, "ngram_bitmap": np.uint64, "checks": np.uint32,
    "ends": np.uint32, "postings": np.uint32, "item_ngrams": np.uint32, "anchor_keys": np.uint64,
    "anchor_directory": np.uint32, "anchor_bitmap": np.uint64, "anchor_lengths": np.uint64,
}  # fmt: skip


@dataclass(frozen=True)
class IndexRules:
    """The options that decide which n-grams of a passage are in an index (see `config.Config`)."""

    ngram: int
    min_words: int
    min_characters: int


def index_parameters(
    sets: Sequence[EvaluationSet], files: Sequence[Sequence[ItemFile]], rules: IndexRules
) -> dict[str, Any]:
    """Return everything that an index depends on, as plain data. Paths are not part of it: contents are."""
    described = [
        {"name": one.name, "columns": [*one.columns], "files": [{"bytes": f.bytes, "xxh3": f.xxh3} for f in listed]}
        for one, listed in zip(sets, files, strict=True)
    ]
    return {"sets": described, **asdict(rules)}


@dataclass(frozen=True)
class OpenIndex:
    """An index whose arrays are read-only, and the first item of each set, followed by the number of all items."""

    arrays: Index
    set_starts: tuple[int, ...]


@functools.lru_cache(maxsize=1)
def open_index(
    sets: tuple[EvaluationSet, ...], files: tuple[tuple[ItemFile, ...], ...], rules: IndexRules, folder: str
) -> OpenIndex:
    """Map the index in `folder`, after building it if the folder lacks it. If `folder` is "", build it in memory. The
    last index is kept, so a process that asks for it again gets the same one.
    Raises the errors of `read_passages` and `build_index`, StorageError and CorruptError.
    """
    if not folder:
        return built_index(read_passages(sets, files), rules)
    parameters = {"version": INDEX_VERSION, **index_parameters(sets, files, rules)}
    path = Path(folder) / f"{xxhash.xxh3_128_hexdigest(canonical_json(parameters))}.arrow"
    if not path.exists():
        write_index(built_index(read_passages(sets, files), rules), path)
    return load_index(path)


def built_index(passages: Passages, rules: IndexRules) -> OpenIndex:
    """Build an index in memory. Raises the errors of `build_index`."""
    index = build_index(passages, rules.ngram, rules.min_words, rules.min_characters)
    for array in _arrays(index):
        array.flags.writeable = False
    return OpenIndex(index, passages.set_starts)


def _arrays(index: Index) -> list[np.ndarray]:
    return [
        *(index.ngrams.keys, index.ngrams.directory, index.ngrams.bitmap, index.checks, index.ends, index.postings),
        *(index.item_ngrams, index.anchors.keys, index.anchors.directory, index.anchors.bitmap, index.anchor_lengths),
    ]


def write_index(index: OpenIndex, path: Path) -> None:
    """Write an index to a file, unless the file exists with the same content. Raises StorageError."""
    arrays = [*_arrays(index.arrays), np.array(index.set_starts, np.int64)]
    columns = [_one_value(array) for array in arrays]
    schema = pa.schema([(name, pa.large_binary()) for name in [*_ARRAYS, "set_starts"]], {_HASH: _hash_of(arrays)})
    with staging(str(path)) as staged:
        with pa.OSFile(str(staged), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        commit_file(staged, str(path))


def _one_value(array: np.ndarray) -> pa.Array:
    ends = pa.py_buffer(np.array([0, array.nbytes], np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(array)])


def _hash_of(arrays: Sequence[np.ndarray]) -> bytes:
    state = xxhash.xxh3_128()
    for array in arrays:
        state.update(len(array).to_bytes(8, "little"))
        state.update(array.data)
    return state.hexdigest().encode()


def load_index(path: Path) -> OpenIndex:
    """Map an index. Raises CorruptError if the file is not what `write_index` wrote."""
    try:
        mapped = pa.memory_map(str(path)).read_buffer()  # a reader of the file itself would start threads
        batch = pa.ipc.open_file(mapped, options=pa.ipc.IpcReadOptions(use_threads=False)).get_batch(0)
        kinds = {**_ARRAYS, "set_starts": np.int64}
        loaded = [_mapped(batch[name], kind) for name, kind in kinds.items()]
        intact = (batch.schema.metadata or {}).get(_HASH) == _hash_of(loaded)
    except (pa.ArrowException, KeyError, ValueError, OSError, IndexError):
        intact, loaded = False, []
    if not intact:
        raise CorruptError(f"{path} is damaged; remove it, and it will be built again")
    (keys, directory, bitmap, checks, ends, postings, numbers, anchors, anchor_directory, anchor_bitmap, lengths,
     starts) = loaded  # fmt: skip
    anchor_table = Table(anchors, anchor_directory, anchor_bitmap)
    index = Index(Table(keys, directory, bitmap), checks, ends, postings, numbers, anchor_table, lengths)
    return OpenIndex(index, tuple(starts.tolist()))


def _mapped(value: pa.Array, kind: type[np.generic]) -> np.ndarray:
    data = value.buffers()[2]
    length = np.frombuffer(value.buffers()[1], np.int64)[1]
    array = np.frombuffer(b"" if data is None else data, np.uint8)[:length]
    array = array.view(kind)
    array.flags.writeable = False
    return array
