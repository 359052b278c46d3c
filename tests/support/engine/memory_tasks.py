"""Makes each library exceed its memory, gradually or by one request that cannot be met."""

from __future__ import annotations

import json
import time
from typing import Any

from datakit.engine.task import TaskContext, TaskResult

HUGE = 48 << 30
TOKENIZER = json.dumps({
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {"a": 0, "b": 1}, "merges": []},
})  # fmt: skip


def overfill(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Make `library` use too much memory after `pause` seconds; at_once: by one request."""
    time.sleep(arguments.get("pause", 0.0))
    LIBRARIES[arguments["library"]](arguments["at_once"])
    return TaskResult()


def fill(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Use `bytes` of memory as fast as possible, after reserving `reserved` bytes without using them."""
    import numpy as np

    unused = np.empty(arguments["reserved"], np.uint8)
    held = [np.ones(1 << 20, np.uint8) for _ in range(arguments["bytes"] >> 20)]
    return TaskResult(records=len(held) + unused.size)


def _python(at_once: bool) -> None:
    held = [bytearray(HUGE)] if at_once else []
    while True:
        held.append(bytearray(b"x") * (4 << 20))


def _numpy(at_once: bool) -> None:
    import numpy as np

    held = [np.ones(HUGE, np.uint8)] if at_once else []
    while True:
        held.append(np.ones(4 << 20, np.uint8))


def _arrow(at_once: bool) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    held = [pa.allocate_buffer(HUGE)] if at_once else []
    numbers = pa.array(range(100_000))
    while True:
        held.append(pc.call_function("add", [numbers, 1]))


def _duckdb(at_once: bool) -> None:
    import duckdb

    connection = duckdb.connect()
    if at_once:  # reaches DuckDB's own limit, which raises its own exception
        connection.execute("SET memory_limit = '20MB'; SET temp_directory = ''")
    connection.execute("CREATE TABLE t AS SELECT range AS i, hash(range) AS h FROM range(100000000) ORDER BY h")


def _tokenizers(at_once: bool) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(TOKENIZER)
    if at_once:
        tokenizer.enable_padding(length=HUGE // 4)
        tokenizer.encode_batch(["a"])
    held = [tokenizer.encode("ab" * 500_000) for _ in range(1000)]
    raise AssertionError(f"{len(held)} encodings fit")


def _fastokens(at_once: bool) -> None:
    import fastokens

    tokenizer = fastokens.Tokenizer.from_json_str(TOKENIZER)
    if at_once:
        tokenizer.enable_padding(length=HUGE // 4)
        tokenizer.encode_batch(["a"])
    held = [tokenizer.encode_batch_flat(["ab" * 4_000_000]) for _ in range(1000)]
    raise AssertionError(f"{len(held)} encodings fit")


def _tensorstore(at_once: bool) -> None:
    import tensorstore

    spec: Any = {"driver": "zarr3", "kvstore": "memory://", "metadata": {"chunk_grid": {
        "name": "regular", "configuration": {"chunk_shape": [1 << 20]}}}}  # fmt: skip
    array = tensorstore.open(spec, dtype=tensorstore.uint8, shape=[HUGE], create=True).result()
    if at_once:
        array.read().result()
    held = [array[start : start + (64 << 20)].read().result() for start in range(0, HUGE, 64 << 20)]
    raise AssertionError(f"{len(held)} reads fit")


LIBRARIES = {
    "python": _python,
    "numpy": _numpy,
    "arrow": _arrow,
    "duckdb": _duckdb,
    "tokenizers": _tokenizers,
    "fastokens": _fastokens,
    "tensorstore": _tensorstore,
}
