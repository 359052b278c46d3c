"""Adapts the loader to other frameworks' input pipelines, without importing any of them.

`BatchSource` and `SequenceSource` have `__len__` and `__getitem__`, as `grain.MapDataset.source` and
`torch.utils.data.Dataset` expect. An index gives the same element in every process. Both can be pickled: a worker
process opens its own sources and threads. To iterate, use `Loader.iterate`; docs/loader.md shows it inside an
IterableDataset.
"""

from __future__ import annotations

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.loader import Loader


class BatchSource:
    """Element n is this host's batch n, as a dictionary of arrays [rows, length].

    `steps` limits the number of batches. Raises LoaderError if the mixture is endless and `steps` is None.
    """

    def __init__(self, loader: Loader, steps: int | None = None) -> None:
        self._loader = loader
        self._length = _length(loader, steps)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        return self._loader[_checked(step, self._length)].arrays()

    def __repr__(self) -> str:
        return f"BatchSource({self._length} batches)"


class SequenceSource:
    """Element n is the sequence in slot n of the run, over all hosts, as a dictionary of arrays [length].

    Use it in pipelines that make their own batches. Its sequences are shuffled; shuffling again only adds reads.
    Raises LoaderError if the mixture is endless and `steps` is None.
    """

    def __init__(self, loader: Loader, steps: int | None = None) -> None:
        self._loader = loader
        self._length = loader.order.axis.first_slot(_length(loader, steps))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, slot: int) -> dict[str, np.ndarray]:
        axis, slot = self._loader.order.axis, _checked(slot, self._length)
        step = axis.step_of(slot)
        row = slot - axis.first_slot(step)
        return {name: array[0] for name, array in self._loader.rows(step, row, row + 1).arrays().items()}

    def __repr__(self) -> str:
        return f"SequenceSource({self._length} sequences)"


def _length(loader: Loader, steps: int | None) -> int:
    if steps is None and loader.steps is None:
        raise LoaderError("this mixture never ends; pass the number of batches as `steps`")
    return min(end for end in (steps, loader.steps) if end is not None)


def _checked(index: int, length: int) -> int:
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of range: there are {length} elements")
    return index % length
