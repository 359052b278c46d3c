"""Writes a shard's array with TensorStore, in one call: piece by piece rewrites the file (8.5 times the bytes)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorstore

from datakit.tokenize.layout import ArrayForm


def write_array(directory: Path, tokens: np.ndarray, form: ArrayForm, cpus: int) -> None:
    """Encode `tokens` [T], T >= 1, as the array in a new local directory.

    Memory beside `tokens`: once their size where they are stored raw, twice where they are compressed.
    """
    limits = {"data_copy_concurrency": {"limit": cpus}, "file_io_concurrency": {"limit": cpus}}
    specification = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{directory}/"},
        "metadata": form.metadata(len(tokens)),
        "store_data_equal_to_fill_value": True,  # a chunk of token 0 is data; only then is a missing one an error
        "context": {**limits, "file_io_sync": False},  # whoever commits the files syncs them
    }
    tensorstore.open(specification, create=True).result().write(tokens).result()
