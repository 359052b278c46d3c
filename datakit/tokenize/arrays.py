"""TensorStore's reading side: where a shard's array is opened, how it is read (array_writer.py writes it).

Opening takes the array's metadata from the cache's manifest and reads nothing. A missing or damaged shard is an error;
TensorStore alone would read a missing file as zeros.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorstore

from datakit.errors import CorruptError, RootError
from datakit.storage import urls
from datakit.tokenize.layout import ArrayForm

DEFAULT_REGION = "us-east-1"


def read_context(cache_bytes: int, concurrency: int) -> tensorstore.Context:
    """What the arrays of one reader share: a bounded pool of decoded indices and chunks, threads, requests at once."""
    requests = {"limit": concurrency}
    return tensorstore.Context(
        {
            "cache_pool": {"total_bytes_limit": cache_bytes},
            "data_copy_concurrency": {"limit": max(1, min(concurrency, os.cpu_count() or 1))},
            "file_io_concurrency": requests,
            "s3_request_concurrency": requests,
            "gcs_request_concurrency": requests,
        }
    )


def open_array(directory: str, form: ArrayForm, tokens: int, context: tensorstore.Context) -> tensorstore.TensorStore:
    """The array of `tokens` tokens in `directory`, without a read."""
    specification = {
        "driver": "zarr3",
        "kvstore": key_value_store(directory),
        "metadata": form.metadata(tokens),
        "recheck_cached_data": "open",
        "fill_missing_data_reads": False,
    }
    return tensorstore.open(specification, open=True, read=True, assume_metadata=True, context=context).result()


def finish(read: Any, place: str) -> np.ndarray:
    """The result of a read that was begun. Raises CorruptError where the shard is missing or damaged."""
    try:
        return read.result()
    except ValueError as error:
        raise CorruptError(
            f"{place} is missing or damaged, validate the cache and make the shard again: {error}"
        ) from error


def key_value_store(directory: str) -> dict[str, Any]:
    """Where TensorStore finds a directory. Raises RootError for a protocol that token caches are not read from."""
    if urls.is_local(directory):
        return {"driver": "file", "path": f"{urls.local_path(directory)}/"}
    protocol, _, rest = directory.partition(urls.SPLITTER)
    bucket, _, path = rest.partition("/")
    if protocol in ("gs", "gcs"):
        return {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}
    if protocol != "s3":
        raise RootError(
            f"{directory}: token caches are read from a disk, from s3:// or from gs://; copy it to one of them"
        )
    store: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": f"{path}/", "aws_region": _region()}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        store["endpoint"] = endpoint.rstrip("/")
    if "AWS_ACCESS_KEY_ID" in os.environ:  # else the driver looks everywhere, and complains of each place to stderr
        store["aws_credentials"] = {"type": "environment"}
    return store


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
