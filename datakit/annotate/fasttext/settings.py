"""Reads and checks the first part of a fastText model: its magic number, its version and its training settings.

The format is that of fastText's `FastText::loadModel` and `Args::load` (files fasttext.cc and args.cc, version 0.9.2):
magic number and version, then twelve 32-bit integers and a 64-bit number.
"""

from __future__ import annotations

from typing import NamedTuple

from datakit.annotate.fasttext.file_cursor import FileCursor

MAGIC, VERSION = 793712314, 12  # fasttext.cc
VERSION_WITHOUT_NGRAMS = 11  # classifiers of this version have no n-grams of characters, whatever `maxn` states
SUPERVISED = 3
HIERARCHICAL_SOFTMAX, NEGATIVE_SAMPLING, SOFTMAX, ONE_VERSUS_ALL = 1, 2, 3, 4
LARGEST_DIMENSION, LONGEST_NGRAM = 1 << 16, 64  # far above those of real models; they bound the time per character


class Settings(NamedTuple):
    """The settings on which a model's predictions depend.

    dimension: numbers per vector. word_ngrams: words per n-gram of words, at most. loss: see the constants above.
    buckets: how many hashes n-grams can have. shortest, longest: characters per n-gram of characters; 0 for none.
    """

    dimension: int
    word_ngrams: int
    loss: int
    buckets: int
    shortest: int
    longest: int


def read_settings(cursor: FileCursor) -> Settings:
    """Read the settings at the start of a file. Raises UnreadableError for files of other kinds."""
    magic, version = cursor.integers("ii")
    cursor.require(magic == MAGIC, "it does not start with fastText's magic number")
    cursor.require(version in (VERSION_WITHOUT_NGRAMS, VERSION), f"version {version} of the format is unknown")
    dimension, _, _, _, _, word_ngrams, loss, model, buckets, shortest, longest, _ = cursor.integers("12i")
    cursor.numbers("d")  # the threshold for sampling, which only training uses
    cursor.require(model == SUPERVISED, "it contains vectors of words, not a classifier")
    cursor.require(1 <= dimension <= LARGEST_DIMENSION, f"its vectors have {dimension} numbers")
    cursor.require(HIERARCHICAL_SOFTMAX <= loss <= ONE_VERSUS_ALL, f"loss {loss} is unknown")
    if version == VERSION_WITHOUT_NGRAMS:
        longest = 0
    cursor.require(0 <= longest <= LONGEST_NGRAM, f"maxn is {longest}")
    cursor.require(shortest >= 0, f"minn is {shortest}")
    cursor.require(1 <= word_ngrams <= LONGEST_NGRAM, f"wordNgrams is {word_ngrams}")
    uses_buckets = word_ngrams > 1 or longest > 0
    cursor.require(buckets >= int(uses_buckets), f"it has {buckets} buckets for its n-grams")
    return Settings(dimension, word_ngrams, loss, buckets, shortest, longest)
