"""Stores datakit's own linear classifier in a file, and reads it back.

The file is MessagePack and holds no code, unlike a pickle. Equal models give equal bytes. A file of an unknown format,
or with numbers that do not fit together, is refused.
"""

from __future__ import annotations

import hashlib
from functools import cache

import msgspec
import numpy as np

from datakit.annotate.classifier.hashed_ngrams import LEAST_BITS, MOST_BITS
from datakit.errors import ChangedInputError, NewerFormatError, NotFoundError, UnreadableError
from datakit.regular_files import open_regular

FORMAT, FORMAT_VERSION = "datakit.linear-classifier", 1


class Bin(msgspec.Struct, frozen=True):
    """Held-out documents with similar scores: their number, their mean score, and the share of positive ones."""

    documents: int
    mean_score: float
    positive: float


class Quality(msgspec.Struct, frozen=True):
    """Measures of how well a model separates held-out documents.

    roc_auc: the probability that a positive document has a higher score than a negative one. brier: the mean squared
    error of the scores. calibration: tenths of the scale from 0 to 1, without empty ones.
    """

    documents: int
    roc_auc: float
    brier: float
    calibration: tuple[Bin, ...]


class LinearModel(msgspec.Struct, frozen=True):
    """A model.

    weights: float32 [2**bits], little-endian. trained_on: how many documents it was fitted to. converged: False if the
    optimizer reached its limit of iterations, so that more of them could improve the model.
    """

    format: str
    version: int
    bits: int
    bias: float
    trained_on: int
    converged: bool
    quality: Quality
    weights: bytes

    def encoded(self) -> bytes:
        """Return the bytes of the model's file."""
        return msgspec.msgpack.encode(self)

    def array(self) -> np.ndarray:
        """Return the weights, float32 [2**bits], read-only."""
        return np.frombuffer(self.weights, "<f4")


def decoded_model(data: bytes, name: str) -> LinearModel:
    """Decode a model's file. Raises UnreadableError or NewerFormatError for files that are no model of this version."""
    advice = "give a file that `train` in datakit has written"
    try:
        header = msgspec.msgpack.decode(data)
        known = isinstance(header, dict) and header.get("format") == FORMAT
        if known and isinstance(header.get("version"), int) and header["version"] > FORMAT_VERSION:
            raise NewerFormatError(f"{name} is a classifier of format {header['version']}; update datakit")
        model = msgspec.convert(header, LinearModel)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise UnreadableError(f"{name} is not a linear classifier; {advice}") from problem
    fits = known and model.version == FORMAT_VERSION and LEAST_BITS <= model.bits <= MOST_BITS
    if not fits or len(model.weights) != 4 << model.bits or not np.isfinite(model.array()).all():
        raise UnreadableError(f"{name} is not a valid linear classifier; {advice}")
    if not np.isfinite(model.bias):
        raise UnreadableError(f"{name} is not a valid linear classifier; {advice}")
    return model


@cache
def load_linear_model(path: str, sha256: str) -> LinearModel:
    """Load a model once per process. Raises NotFoundError if the file does not exist, ChangedInputError if its sha256
    is another, and what `decoded_model` raises.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
    except FileNotFoundError as problem:
        raise NotFoundError(f"the model {path} does not exist; give the path of a linear classifier") from problem
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ChangedInputError(
            f"the sha256 of the model {path} is {found}, but {sha256} is expected; use the file with the expected "
            "sha256, or change the setting if this file is the right one"
        )
    return decoded_model(data, path)
