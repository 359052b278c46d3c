"""Loads a fastText classifier and predicts the labels of documents.

The file is read by datakit itself. The fastText library trusts its files: damaged ones crash it or give predictions.
Here, each number is checked first, and the file must have the sha256 that the caller expects, because a model decides
what the output is. Labels equal those of fastText 0.9.2, and scores differ in the last bit at most; on lid.176.ftz they
take about a fifth of its CPU time.
A model takes 4 bytes of memory per number of its matrices, and is loaded once per process.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import functools
import hashlib
import mmap
import os
from typing import NamedTuple

import numpy as np

from datakit.annotate.fasttext import fnv, label_tree, lines, pieces, scores, settings, vocabulary
from datakit.annotate.fasttext.file_cursor import FileCursor
from datakit.annotate.fasttext.lines import BLOCK, Embedding, Scratch, embed
from datakit.annotate.fasttext.matrices import read_matrix
from datakit.annotate.fasttext.pieces import PIECES, pieces_of
from datakit.annotate.fasttext.scores import best_labels
from datakit.annotate.fasttext.settings import HIERARCHICAL_SOFTMAX, LONGEST_NGRAM, read_settings
from datakit.annotate.fasttext.vocabulary import read_dictionary
from datakit.errors import ChangedInputError, NotFoundError
from datakit.regular_files import open_regular
from datakit.text.numba_cache import Decorator, cached_njit

kernel: Decorator = cached_njit(fnv, lines, pieces, scores, settings, vocabulary)


class Model(NamedTuple):
    """A classifier. output: float32 [labels, dimension]. tree: see `label_tree`; empty for other losses. labels: the
    labels without the prefix `__label__`, in the model's order.
    """

    embedding: Embedding
    output: np.ndarray
    tree: np.ndarray
    labels: tuple[str, ...]


class Predictions(NamedTuple):
    """The k best labels of N documents, as indices into `Model.labels`, int32 [N, k], by descending probability,
    float32 [N, k]. Where there are fewer labels, the index is -1 and the probability 0.
    """

    labels: np.ndarray
    scores: np.ndarray


@functools.cache
def load_model(path: str, sha256: str) -> Model:
    """Load a model once per process. Raises NotFoundError if the file does not exist, ChangedInputError if its sha256
    is another, and UnreadableError if it is damaged or no fastText classifier.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError as problem:
        raise NotFoundError(f"the model {path} does not exist; give the path of a fastText model") from problem
    with file:
        empty = not os.fstat(file.fileno()).st_size  # cannot be mapped
        data = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ChangedInputError(
            f"the sha256 of the model {path} is {found}, but {sha256} is expected; use the file with the expected "
            "sha256, or change the setting if this file is the right one"
        )
    return read_model(np.frombuffer(data, np.uint8), path)


def read_model(data: np.ndarray, name: str) -> Model:
    """Read a model from the bytes of a file, uint8 [size]. Raises UnreadableError if they are no valid classifier."""
    cursor = FileCursor(data, name)
    found = read_settings(cursor)
    dictionary = read_dictionary(cursor, found.buckets)
    quantized = cursor.flag("whether its vectors are quantized")
    cursor.require(quantized or dictionary.pruned is None, "buckets are missing, but its vectors are not quantized")
    rows = read_matrix(cursor, quantized, dictionary.vectors, found.dimension, "its vectors")
    quantized &= cursor.flag("whether its output is quantized")
    output = read_matrix(cursor, quantized, len(dictionary.labels), found.dimension, "its output vectors")
    cursor.require(cursor.position == len(data), f"{len(data) - cursor.position} bytes follow its end")
    pruned = np.empty(0, np.int32) if dictionary.pruned is None else dictionary.pruned
    hierarchical = found.loss == HIERARCHICAL_SOFTMAX
    tree = label_tree.label_tree(dictionary.label_counts) if hierarchical else np.empty((0, 2), np.int64)
    return Model(Embedding(found, dictionary.vocabulary, pruned, rows), output, tree, dictionary.labels)


def predict(model: Model, data: np.ndarray, offsets: np.ndarray, max_bytes: int, k: int = 1) -> Predictions:
    """Return the `k` best labels of N documents, given as by `string_buffers`.

    max_bytes: longer documents are sampled, see `pieces`. Raises ValueError if k is not from 1 to the number of labels.
    """
    if not 1 <= k <= len(model.labels):
        raise ValueError(f"k is {k}; it must be from 1 to {len(model.labels)}, the number of the model's labels")
    count = len(offsets) - 1
    predictions = Predictions(np.full((count, k), -1, np.int32), np.zeros((count, k), np.float32))
    longest = int(np.diff(offsets).max(initial=0))
    word = np.empty(min(longest, max_bytes) + 64, np.uint32)
    _predict(data, offsets, max_bytes, model.embedding, model.output, model.tree, word, *predictions)
    return predictions


@kernel
def _predict(
    data: np.ndarray,
    offsets: np.ndarray,
    max_bytes: int,
    embedding: Embedding,
    output: np.ndarray,
    tree: np.ndarray,
    word: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
) -> None:
    starts, stops = np.empty(PIECES, np.int64), np.empty(PIECES, np.int64)
    vector = np.empty(embedding.rows.shape[1], np.float32)
    codes = np.empty(len(word) // 2 + PIECES + 1 if embedding.settings.word_ngrams > 1 else 0, np.uint64)
    scratch = Scratch(word, codes, np.empty(BLOCK + LONGEST_NGRAM, np.int64))
    chances, nodes = np.empty(len(output) + 1, np.float32), np.empty(len(output) + 1, np.int64)
    for document in range(len(offsets) - 1):
        count = pieces_of(data, offsets[document], offsets[document + 1], max_bytes, starts, stops)
        if embed(data, starts[:count], stops[:count], vector, embedding, scratch):
            best_labels(
                embedding.settings.loss, vector, output, tree, chances, nodes, labels[document], probabilities[document]
            )
