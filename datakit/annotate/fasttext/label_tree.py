"""Builds the binary tree of labels that fastText's hierarchical softmax uses (`HierarchicalSoftmaxLoss::buildTree` in
fastText 0.9.2): a Huffman tree over the labels' counts in training. Models do not store it.
"""

from __future__ import annotations

import numpy as np

LARGEST_COUNT = 10**15  # the count of nodes that are not made yet


def label_tree(counts: np.ndarray) -> np.ndarray:
    """Return the children of each inner node, int64 [labels - 1, 2]. Nodes below `labels` are leaves, the inner node
    `labels + i` is row i, and the last one is the root. counts: int64 [labels], as the model lists them.
    """
    labels = len(counts)
    weights = counts.tolist() + [LARGEST_COUNT] * (labels - 1)
    children = np.empty((max(labels - 1, 0), 2), np.int64)
    leaf, node = labels - 1, labels
    for parent in range(labels, 2 * labels - 1):
        for side in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                chosen, leaf = leaf, leaf - 1
            else:
                chosen, node = node, node + 1
            children[parent - labels, side] = chosen
        weights[parent] = sum(weights[child] for child in children[parent - labels].tolist())
    return children
