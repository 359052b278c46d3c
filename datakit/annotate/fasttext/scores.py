"""Implements the kernels that turn a document's vector into probabilities of labels, for each of fastText's losses.

The formulas are those of loss.cc in fastText 0.9.2, in its precision: float32, sums from left to right. fastText keeps
the logarithm of each probability plus 1e-5, and returns its exponential, so a probability may exceed 1 by 1e-5. Labels
of probability 0 are dropped with the hierarchical softmax only: there, subtrees below 1e-5 are not searched.
Of labels with equal probabilities, the one that comes last comes first. So does fastText if it is asked for one label;
if it is asked for several, their order depends on its heap.
"""

# ruff: noqa: PLR0917 - numba kernels take positional arguments

from __future__ import annotations

import math

import numpy as np

from datakit.annotate.fasttext import settings
from datakit.annotate.fasttext.settings import HIERARCHICAL_SOFTMAX, SOFTMAX
from datakit.text.numba_cache import Decorator, cached_njit

SMALLEST = 1e-5  # added before each logarithm (std_log in utils.cc)
_TABLE_SIZE, _TABLE_END = 512, 8  # of fastText's table of the logistic function

kernel: Decorator = cached_njit(settings)


@kernel
def _logarithm(value: np.float32) -> np.float32:
    return np.float32(math.log(np.float64(value) + SMALLEST))


@kernel
def _exponential(value: np.float32) -> np.float32:
    """Return exp(value), rounded from float64: implementations for float32 differ in the last bit."""
    return np.float32(math.exp(np.float64(value)))


@kernel
def _sigmoid(value: np.float32) -> np.float32:
    return np.float32(1) / (np.float32(1) + _exponential(-value))


@kernel
def _dot(output: np.ndarray, row: int, vector: np.ndarray) -> np.float32:
    total = np.float32(0)
    for i in range(len(vector)):
        total += output[row, i] * vector[i]
    return total


@kernel
def _keep(labels: np.ndarray, scores: np.ndarray, found: int, label: int, score: np.float32) -> int:
    """Insert a label into the best ones so far, by descending score; return how many there are now."""
    if found == len(labels):
        if score < scores[found - 1]:
            return found
        found -= 1
    place = found
    while place > 0 and score >= scores[place - 1]:
        labels[place], scores[place] = labels[place - 1], scores[place - 1]
        place -= 1
    labels[place], scores[place] = label, score
    return found + 1


@kernel
def _search_tree(
    vector: np.ndarray, output: np.ndarray, tree: np.ndarray, nodes: np.ndarray, sums: np.ndarray,
    labels: np.ndarray, scores: np.ndarray,
) -> int:  # fmt: skip
    """Search the tree depth first for the best labels (`HierarchicalSoftmaxLoss::dfs`)."""
    leaves, found, lowest = len(output), 0, _logarithm(np.float32(0))
    nodes[0], sums[0], depth = 2 * leaves - 2, np.float32(0), 1
    while depth:
        depth -= 1
        node, total = nodes[depth], sums[depth]
        if total < lowest or (found == len(labels) and total < scores[found - 1]):
            continue
        if node < leaves:
            found = _keep(labels, scores, found, node, total)
            continue
        right = _sigmoid(_dot(output, node - leaves, vector))
        left = np.float32(1) - right
        nodes[depth], sums[depth] = tree[node - leaves, 1], total + _logarithm(right)
        nodes[depth + 1], sums[depth + 1] = tree[node - leaves, 0], total + _logarithm(left)
        depth += 2
    return found


@kernel
def _logistic(value: np.float32) -> np.float32:
    """Return the logistic function as fastText's table has it: in steps of 1/32, and 0 or 1 beyond 8."""
    if value < -_TABLE_END:
        return np.float32(0)
    if value > _TABLE_END:
        return np.float32(1)
    place = np.int64((value + np.float32(_TABLE_END)) * np.float32(_TABLE_SIZE) / np.float32(_TABLE_END * 2))
    known = np.float32(place * 2 * _TABLE_END) / np.float32(_TABLE_SIZE) - np.float32(_TABLE_END)
    return np.float32(1.0 / (1.0 + np.float64(_exponential(-known))))  # in float64, unlike `_sigmoid`


@kernel
def _probabilities(loss: int, vector: np.ndarray, output: np.ndarray, probabilities: np.ndarray) -> None:
    """Write the probability of each label: of the softmax, or else of a logistic regression per label."""
    for label in range(len(output)):
        value = _dot(output, label, vector)
        probabilities[label] = value if loss == SOFTMAX else _logistic(value)
    if loss == SOFTMAX:
        highest, total = probabilities[0], np.float32(0)
        for label in range(len(output)):
            highest = max(highest, probabilities[label])
        for label in range(len(output)):
            probabilities[label] = _exponential(probabilities[label] - highest)
            total += probabilities[label]
        for label in range(len(output)):
            probabilities[label] /= total


@kernel
def best_labels(
    loss: int, vector: np.ndarray, output: np.ndarray, tree: np.ndarray, scratch: np.ndarray, nodes: np.ndarray,
    labels: np.ndarray, scores: np.ndarray,
) -> int:  # fmt: skip
    """Write the best labels, int32 [k], and their probabilities, float32 [k], by descending probability; return their
    number.

    output: float32 [labels, dimension]. tree: see `label_tree`. scratch, nodes: float32 and int64 [labels + 1].
    """
    found = 0
    if loss == HIERARCHICAL_SOFTMAX:
        found = _search_tree(vector, output, tree, nodes, scratch, labels, scores)
    else:
        _probabilities(loss, vector, output, scratch[: len(output)])
        for label in range(len(output)):
            found = _keep(labels, scores, found, label, _logarithm(scratch[label]))
    for i in range(found):
        scores[i] = _exponential(scores[i])
    return found
