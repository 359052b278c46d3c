"""Loads or compiles the kernels before a tokenizer exists. The stage that trains one uses this module as a preload,
so that on a new machine the kernels are compiled while earlier stages run, not after the training.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datakit.text import token_counts
from datakit.tokenize.encoders.bpe.batch import Batch, output
from datakit.tokenize.encoders.bpe.model import model_of
from datakit.tokenize.encoders.word_models import byte_characters

BYTES_ONLY: dict[str, Any] = {
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "model": {"type": "BPE", "vocab": dict(zip(byte_characters(), range(256), strict=True)), "merges": []},
}  # fmt: skip


def warm() -> None:
    """Load the kernels from numba's disk cache, or compile them, which takes about six seconds."""
    model, reason = model_of(BYTES_ONLY)
    assert model is not None, reason
    data, offsets = np.frombuffer(b"one", np.uint8), np.array([0, 3])
    assert Batch.of(data, offsets, output()).encode(model.addresses(model.added["keep"])).tolist() == list(b"one")
    token_counts.warm()
