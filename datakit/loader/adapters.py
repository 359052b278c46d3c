"""Wraps a Loader for grain and PyTorch: `BatchSource` returns this host's batches by index, and `SequenceSource`
returns single sequences.

Neither framework is imported. Both classes have `__len__` and `__getitem__`, as `grain.MapDataset.source` and
`torch.utils.data.Dataset` expect. An index selects the same batch or sequence in every process, but a process gets only
its own host's rows of a batch. Instances of both classes can be pickled; a worker process then opens its own sources
and starts its own threads. To iterate instead of indexing, use `Loader.iterate` (see docs/loader.md).
"""

from __future__ import annotations

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.loader import Loader


class BatchSource:
    """This host's batches by index: element n is batch n, as a dictionary of arrays [rows, length]. `steps` limits the
    number of batches. Raises LoaderError if the mixture is endless and `steps` is None.
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
    """The run's sequences, for all hosts: element n is the sequence in slot n, as a dictionary of arrays [length]. Use
    this class in pipelines that make their own batches. The sequences are already shuffled, so shuffling them again
    would only cause more reads. `steps` limits the number of batches whose sequences are included. Raises LoaderError
    if the mixture is endless and `steps` is None.
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
