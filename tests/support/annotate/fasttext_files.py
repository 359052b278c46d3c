"""Writes fastText models for tests, and predicts with them slowly, in plain Python, by the rules of fastText 0.9.2."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

import numpy as np

MAGIC, VERSION = 793712314, 12
HIERARCHICAL_SOFTMAX, NEGATIVE_SAMPLING, SOFTMAX, ONE_VERSUS_ALL = 1, 2, 3, 4
SPACES = " \t\n\v\f\r\0"


@dataclass(frozen=True)
class Spec:
    """A small model with random vectors. quantized: the groups of its quantized vectors have `width` columns."""

    words: tuple[str, ...] = ("</s>", "the", "la", "日本", "é")
    labels: tuple[str, ...] = ("__label__en", "__label__fr", "__label__ja")
    counts: tuple[int, ...] = (30, 20, 10)
    dimension: int = 6
    loss: int = SOFTMAX
    word_ngrams: int = 1
    buckets: int = 17
    shortest: int = 2
    longest: int = 4
    kept: tuple[int, ...] | None = None  # the buckets that have vectors, if the model is pruned
    quantized: bool = False
    norms: bool = False
    quantized_output: bool = False
    width: int = 4
    seed: int = 1
    version: int = VERSION
    model: int = 3


@dataclass
class Written:
    """The bytes of a model, and its matrices."""

    data: bytes
    rows: np.ndarray
    output: np.ndarray
    spec: Spec = field(default_factory=Spec)


def write(spec: Spec) -> Written:
    """Return the model's bytes."""
    random = np.random.default_rng(spec.seed)
    kept = spec.buckets if spec.kept is None else len(spec.kept)
    parts = [struct.pack("<ii", MAGIC, spec.version)]
    settings = (spec.dimension, 5, 5, 1, 5, spec.word_ngrams, spec.loss, spec.model, spec.buckets)
    parts.append(struct.pack("<12id", *settings, spec.shortest, spec.longest, 100, 1e-4))
    entries = [
        *((word, 1, 0) for word in spec.words),
        *((*pair, 1) for pair in zip(spec.labels, spec.counts, strict=True)),
    ]
    pruned = -1 if spec.kept is None else kept
    parts.append(struct.pack("<3i2q", len(entries), len(spec.words), len(spec.labels), 1000, pruned))
    parts += [name.encode() + b"\0" + struct.pack("<qb", count, kind) for name, count, kind in entries]
    if spec.kept is not None:
        parts += [struct.pack("<ii", bucket, row) for row, bucket in enumerate(spec.kept)]
    parts.append(struct.pack("<?", spec.quantized))
    rows, stored = matrix(random, len(spec.words) + kept, spec, spec.quantized)
    output, output_stored = matrix(random, len(spec.labels), spec, spec.quantized_output)
    return Written(
        b"".join([*parts, stored, struct.pack("<?", spec.quantized_output), output_stored]), rows, output, spec
    )


def matrix(random: np.random.Generator, rows: int, spec: Spec, quantized: bool) -> tuple[np.ndarray, bytes]:
    """Return a random matrix and its bytes."""
    columns, width = spec.dimension, spec.width
    if not quantized:
        values = random.normal(size=(rows, columns)).astype("<f4")
        return values, struct.pack("<qq", rows, columns) + values.tobytes()
    groups = -(-columns // width)
    codes = random.integers(0, 256, (rows, groups)).astype("u1")
    centroids = [random.normal(size=(256, min(width, columns - width * i))).astype("<f4") for i in range(groups)]
    values = np.concatenate([centroids[i][codes[:, i]] for i in range(groups)], axis=1)
    last = (columns - 1) % width + 1
    stored = struct.pack("<?qqi", spec.norms, rows, columns, codes.size) + codes.tobytes()
    stored += struct.pack("<4i", columns, groups, width, last) + b"".join(part.tobytes() for part in centroids)
    if spec.norms:
        norm_codes = random.integers(0, 256, rows).astype("u1")
        norms = random.normal(size=256).astype("<f4")
        values = values * norms[norm_codes][:, None]
        stored += norm_codes.tobytes() + struct.pack("<4i", 1, 1, 1, 1) + norms.tobytes()
    return values, stored


def fnv(data: bytes) -> int:
    """The 32-bit FNV-1a hash over signed bytes."""
    code = 2166136261
    for byte in data:
        code = ((code ^ (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF) * 16777619 & 0xFFFFFFFF
    return code


def split(line: str) -> list[str]:
    """The words of a text, and the end of the line."""
    words = "".join(" " if character in SPACES else character for character in line).split(" ")
    words = [word for word in words if word] + ["</s>"]
    return words[: words.index("</s>") + 1]


def row_numbers(spec: Spec, pieces: list[str]) -> list[int]:
    """The rows that fastText adds for a line that consists of these pieces."""
    base, found, codes = len(spec.words), list[int](), list[int]()

    def add(bucket: int) -> None:
        if spec.kept is None:
            found.append(base + bucket)
        elif bucket in spec.kept:
            found.append(base + spec.kept.index(bucket))

    for word in split(" ".join(pieces)):
        known = word in spec.words
        if word in spec.labels or (not known and word.startswith("__label__")):
            continue
        codes.append(fnv(word.encode()))
        if known:
            found.append(spec.words.index(word))
        marked = f"<{word}>"
        for first in range(len(marked) if word != "</s>" else 0):
            for size in range(max(spec.shortest, 1), spec.longest + 1):
                if first + size > len(marked):
                    break
                if size == 1 and (first == 0 or first + 1 == len(marked)):
                    continue
                add(fnv(marked[first : first + size].encode()) % spec.buckets)
    signed = [code - (1 << 32) if code >> 31 else code for code in codes]
    for first in range(len(codes)):
        code = signed[first]
        for other in signed[first + 1 : first + spec.word_ngrams]:
            code = (code * 116049371 + other) % (1 << 64)
            add(code % spec.buckets)
    return found


def probabilities(written: Written, pieces: list[str]) -> list[float] | None:
    """The probability of each label; None if the line has no row. Computed in float64."""
    found = row_numbers(written.spec, pieces)
    if not found:
        return None
    values = written.output.astype(float) @ written.rows[found].astype(float).mean(axis=0)
    if written.spec.loss == SOFTMAX:
        powers = [math.exp(value - max(values)) for value in values]
        return [power / sum(powers) for power in powers]
    if written.spec.loss != HIERARCHICAL_SOFTMAX:
        return [1 / (1 + math.exp(-value)) for value in values]
    return tree_probabilities([*written.spec.counts], [1 / (1 + math.exp(-value)) for value in values])


def tree_probabilities(counts: list[int], right: list[float]) -> list[float]:
    """Merge the two lightest nodes until one is left; `right[i]` is the probability of the second child of merge i.
    Counts must be distinct, also of merged nodes.
    """
    nodes = [(count, [label]) for label, count in enumerate(counts)]
    found = [1.0] * len(counts)
    for share in right[: len(counts) - 1]:
        nodes.sort()
        (first, left_labels), (second, right_labels) = nodes[:2]
        for label in left_labels:
            found[label] *= 1 - share
        for label in right_labels:
            found[label] *= share
        nodes = [*nodes[2:], (first + second, left_labels + right_labels)]
    return found
