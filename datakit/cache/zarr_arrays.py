"""Wraps TensorStore: opens, reads and encodes shard arrays, sets TensorStore's limits and credentials, and turns its
errors into datakit's. No other module imports TensorStore. This one imports it when it first needs it: the import takes
a tenth of the CPU time in which the driver of a run starts, and the driver uses no array. Opening an array reads
nothing, because its metadata is in the cache's manifest. A missing or damaged shard is an error, although TensorStore
by default reads a missing file as zeros. Memory for reading: a bounded pool of decoded chunks and indices, plus about
twice the size of each block while it is read and decoded. To write a shard, datakit encodes all of it in memory and
writes each file once. If TensorStore were given a shard in pieces, it would rewrite the file for each piece (in a
measurement, it wrote 8.5 times as many bytes). If the pieces were first collected in a scratch directory, every token
would be written twice. Memory for writing, in addition to the tokens: one and a half times their size. Raw shards are
written without TensorStore (`raw_shard.py`).
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from datakit.cache.layout import DATA_FILE, METADATA_FILE, ArrayForm
from datakit.errors import CorruptError, RootError, StorageError, UsageError
from datakit.storage import urls

if TYPE_CHECKING:
    import tensorstore

DEFAULT_REGION = "us-east-1"
REMOTE_REQUESTS = 32  # maximum at a time; up to four blocks are read at once, each with about five requests
LOCAL_REQUESTS = 4
DAMAGED = ("NOT_FOUND", "DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "OUT_OF_RANGE")
CACHE, READS = "/tensorstore/cache/", "/tensorstore/kvstore/"  # how the names of TensorStore's own metrics begin
# The metrics that `tensorstore_metrics` returns: how the pool of decoded chunks is used, and how much is read with the
# protocols of `key_value_store`. The many others are about writing, threads and single requests, and do not tell why a
# run waits for data.
POOL, SIZES = f"{CACHE}(hit_count|miss_count|evict_count|chunk_cache/reads)", f"{READS}(file|gcs|s3)/(read|bytes_read)"
COUNTS = re.compile(f"{POOL}|{SIZES}")


@dataclass
class _Threads:
    """The state of TensorStore's threads, which start when the process first uses an array. A fork copies the locks
    that the threads hold, but not the threads: in the child, the next use of any array would hang, or abort the process
    (SIGABRT).
    """

    started: bool = False
    lost: bool = False  # this process was forked after the threads had started

    def require(self) -> None:
        """Record that the threads are in use. Raises UsageError if they were lost in a fork."""
        if self.lost:
            raise UsageError(
                "this process was forked from one that had read compressed or remote arrays with TensorStore, whose "
                "threads a fork does not copy; start processes with the method 'spawn' or 'forkserver', or read no "
                "such array in the parent process before it forks"
            )
        self.started = True

    def forked(self) -> None:
        self.lost = self.lost or self.started


_threads = _Threads()
os.register_at_fork(after_in_child=_threads.forked)


def prepare() -> None:
    """Import TensorStore, so that the processes forked from this one need not. No thread is started."""
    import tensorstore  # noqa: F401  # pyright: ignore[reportUnusedImport]


def read_context(cache_bytes: int, local: bool) -> tensorstore.Context:
    """Return a context that limits the threads, requests and cache memory that one reader's arrays share."""
    import tensorstore

    requests = {"limit": LOCAL_REQUESTS if local else REMOTE_REQUESTS}
    return tensorstore.Context(
        {
            "cache_pool": {"total_bytes_limit": cache_bytes},
            "data_copy_concurrency": {"limit": os.cpu_count() or 1},
            "file_io_concurrency": requests,
            "s3_request_concurrency": requests,
            "gcs_request_concurrency": requests,
        }
    )


def open_array(
    directory: str, metadata: dict[str, Any], context: tensorstore.Context, sparse: bool = False
) -> tensorstore.TensorStore:
    """Open the array in `directory` whose zarr.json is `metadata`, without reading anything. Raises UsageError if this
    process was forked from one that had used TensorStore, and CorruptError if `metadata` does not describe an array
    that can be read.

    sparse: True if a missing chunk stands for zeros (other programs, unlike datakit, omit chunks of zeros). No manifest
    lists the files of such an array, so the function first checks that all files in a local directory are regular
    files. On a named pipe, TensorStore would wait forever for a writer.
    """
    import tensorstore

    _threads.require()
    if sparse and urls.is_local(directory):
        for info in urls.listing(directory):
            urls.size(info.url)
    specification = {
        "driver": "zarr3",
        "kvstore": key_value_store(directory),
        "metadata": metadata,
        "recheck_cached_data": "open",
        "fill_missing_data_reads": sparse,
    }
    try:
        return tensorstore.open(specification, open=True, read=True, assume_metadata=True, context=context).result()
    except ValueError as error:
        reason = str(error).partition(" [")[0]
        raise CorruptError(f"{directory}: its metadata describes no array that can be read: {reason}") from error


def begin(array: Any, start: int, stop: int) -> Any:
    """Start reading elements [start, stop) of an open array; return a future, which `finish` waits for. Raises
    UsageError if the array was opened before this process was forked.
    """
    _threads.require()
    return array[start:stop].read()


def finish(read: Any, place: str) -> np.ndarray:
    """Return a read's result. Raises CorruptError for a missing or damaged shard, and StorageError for other errors."""
    try:
        return read.result()
    except ValueError as error:
        message = str(error)
        if any(status in message for status in DAMAGED):
            raise CorruptError(
                f"{place} is missing or damaged ({message}); run `datakit validate` to list the damaged files"
            ) from error
        raise StorageError(f"{place} cannot be read: {message}") from error


def requests_so_far() -> int:
    """Return how many reads of files and objects TensorStore has made in this process, according to its own metrics."""
    import tensorstore

    found = tensorstore.experimental_collect_matching_metrics(READS)
    named = [metric for metric in found if metric["name"].endswith("/read")]
    return sum(value.get("value", 0) for metric in named for value in metric["values"])


def tensorstore_metrics() -> dict[str, int]:
    """Return what TensorStore has counted in this process, by name without the leading slash. Empty if nothing has
    imported TensorStore. Protocols with which nothing was read are left out.
    """
    collect = getattr(sys.modules.get("tensorstore"), "experimental_collect_matching_metrics", None)
    if collect is None:  # not imported, or another thread is just importing it
        return {}
    return {
        metric["name"].removeprefix("/"): sum(value.get("value", 0) for value in metric["values"])
        for metric in (*collect(CACHE, include_zero_metrics=True), *collect(READS))
        if COUNTS.fullmatch(metric["name"])
    }


def key_value_store(directory: str) -> dict[str, Any]:
    """Return the specification of a directory for TensorStore. Raises RootError for an unsupported protocol."""
    if urls.is_local(directory):
        return {"driver": "file", "path": f"{urls.local_path(directory)}/"}
    protocol, _, rest = directory.partition(urls.SPLITTER)
    bucket, _, path = rest.partition("/")
    if protocol in ("gs", "gcs"):
        return {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}
    if protocol != "s3":
        raise RootError(
            f"{directory}: token caches can only be read from a file system, s3:// or gs://; copy the cache to "
            f"one of these"
        )
    store: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": f"{path}/", "aws_region": _region()}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        store["endpoint"] = endpoint.rstrip("/")
    # Without `aws_credentials`, TensorStore tries every source of credentials and prints a warning on stderr for each.
    if "AWS_ACCESS_KEY_ID" in os.environ:
        store["aws_credentials"] = {"type": "environment"}
    return store


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION


def encode_array(values: bytearray, form: ArrayForm, cpus: int) -> tuple[bytes, bytes]:
    """Return the contents of the two files of a compressed array of T >= 1 values: its data and its metadata. values:
    the array's little-endian bytes. Raises UsageError if this process was forked from one that had used TensorStore.
    """
    import tensorstore

    _threads.require()
    dtype = np.dtype(form.dtype)
    specification = {
        "driver": "zarr3",
        "kvstore": {"driver": "memory"},
        "metadata": form.metadata(len(values) // dtype.itemsize),
        "store_data_equal_to_fill_value": True,  # so that a missing chunk is an error and never means zeros
        "context": {"data_copy_concurrency": {"limit": cpus}},
    }
    array = tensorstore.open(specification, create=True).result()
    files = array.kvstore
    assert files is not None
    array.write(np.frombuffer(values, dtype)).result()
    return files[DATA_FILE], files[METADATA_FILE]
