"""The loader for other frameworks' input pipelines; none of them is needed here.

`BatchSource` and `SequenceSource` have `__len__` and `__getitem__`, which is what `grain.MapDataset.source` and
`torch.utils.data.Dataset` take: elements by index, the same for the same index in any process. Both can be pickled:
a worker process opens its own sources and threads. For iteration there is `Loader.iterate`; docs/loader.md shows it
inside an IterableDataset.
"""

from __future__ import annotations

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.loader import Loader


class BatchSource:
    """Element n is this host's batch n, as a dictionary of arrays [rows, length]. `steps` bounds an endless mixture."""

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
    """Element n is the sequence in slot n of the run, of all hosts, as a dictionary of arrays [length].

    For pipelines that make their own batches. The order is the loader's: shuffling it again would only cost reads.
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
        raise LoaderError("this mixture never ends; say how many steps the source shall have")
    ends = [end for end in (steps, loader.steps) if end is not None]
    return min(ends)


def _checked(index: int, length: int) -> int:
    if not -length <= index < length:
        raise IndexError(f"element {index} of {length}")
    return index % length
