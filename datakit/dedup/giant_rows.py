"""Separates the rows of giant components from the others in phase `shingles`: routes them to an exchange of their own,
by id, and describes each component, so that it can be cut into blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import pyarrow as pa

from datakit.dedup.phase_data import Described, Shared
from datakit.dedup.survivor_cuts import sampled, survivor_words
from datakit.engine.exchange.exchange import ExchangeWriter
from datakit.engine.task import OutputFile, TaskContext
from datakit.storage.ids import top_bits
from datakit.text.hash_mixing import mix

EXCHANGE = "giants"  # the name of the exchange


@dataclass
class _Description:
    """The number of rows of a component so far, their smallest id, and their sample (see `Described`)."""

    documents: int = 0
    smallest: tuple[int, int] = (2**64 - 1, 2**64 - 1)
    sample: list[list[int]] = field(default_factory=list)


class GiantRows:
    """Writes the rows of giant components. Use it in a `with` statement, and read the results after it."""

    def __init__(self, context: TaskContext, key: str, shared: Shared, budget_bytes: int) -> None:
        """key: the prefix of the names of the runs."""
        self._sizes, self._prefer, self._buckets = dict(shared.giants), shared.prefer, shared.giant_buckets
        self._components = np.array(sorted(self._sizes), np.uint64)
        self._found = {component: _Description() for component in sorted(self._sizes)}
        self._writer = ExchangeWriter(context, EXCHANGE, key, shared.giant_buckets, budget_bytes)

    def __enter__(self) -> GiantRows:
        self._writer.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)

    @property
    def runs(self) -> list[str]:
        """The runs that were written."""
        return self._writer.runs

    @property
    def outputs(self) -> tuple[OutputFile, ...]:
        """The files that were written."""
        return self._writer.outputs

    def described(self) -> list[Described]:
        """Describe the components of which rows were written."""
        return [
            Described(component, one.documents, *one.smallest, one.sample)
            for component, one in self._found.items()
            if one.documents
        ]

    def take(self, table: pa.Table) -> pa.Table:
        """Write the rows of giant components, and return the others."""
        inside = np.isin(table["component"].to_numpy(), self._components)
        if not inside.any():
            return table
        rows = table.filter(pa.array(inside))
        columns = {name: rows[name].to_numpy() for name in rows.column_names if name not in ("keys", "shingles")}
        for component in np.unique(columns["component"]).tolist():
            here = columns["component"] == component
            self._describe(component, {name: column[here] for name, column in columns.items()})
        self._writer.write(rows, top_bits(mix(columns["high"] ^ mix(columns["low"])), self._buckets))
        return table.filter(pa.array(~inside))

    def _describe(self, component: int, columns: dict[str, np.ndarray]) -> None:
        found, high, low = self._found[component], columns["high"], columns["low"]
        first = np.lexsort((low, high))[0]
        found.documents += len(high)
        found.smallest = min(found.smallest, (int(high[first]), int(low[first])))
        chosen = sampled(high, low, self._sizes[component])
        found.sample += survivor_words(self._prefer, columns)[:, chosen].T.tolist()


def combined(described: Sequence[Described]) -> list[Described]:
    """Return one description for each component, in ascending order of component."""
    found: dict[int, Described] = {}
    for one in described:
        known = found.get(one.component, Described(one.component, 0, one.high, one.low, []))
        smallest = min((known.high, known.low), (one.high, one.low))
        sample = [*known.sample, *one.sample]
        found[one.component] = Described(one.component, known.documents + one.documents, *smallest, sample)
    return [found[component] for component in sorted(found)]
