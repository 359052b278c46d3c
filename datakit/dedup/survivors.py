"""Which document of several stays: an order with the id as its last key.

A recipe names what comes first: "longest" (bytes of text), "score:<column>" (a number in the normalized files, the
largest first, documents without one last), "source" (the recipe's order of sources).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from datakit.errors import ColumnError, suggestion
from datakit.storage.manifest import Manifest

LONGEST, SOURCE, SCORE = "longest", "source", "score:"
NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool", "decimal")


def check_prefer(prefer: Sequence[str]) -> None:
    """Raises ValueError for an entry that says nothing."""
    for entry in prefer:
        if entry not in (LONGEST, SOURCE) and (not entry.startswith(SCORE) or entry == SCORE):
            known = suggestion(entry, [LONGEST, SOURCE, SCORE + "<column>"])
            raise ValueError(f"prefer has {entry!r}, which names no order; {known}")


def score_columns(prefer: Sequence[str]) -> list[str]:
    """The columns that `prefer` needs from the normalized files."""
    return list(dict.fromkeys(entry.removeprefix(SCORE) for entry in prefer if entry.startswith(SCORE)))


def check_columns(prefer: Sequence[str], source: str, manifest: Manifest) -> None:
    """Raises ColumnError where a source lacks a score or has one that is no number."""
    types = {column.name: column.type for column in manifest.schema}
    for name in score_columns(prefer):
        if name not in types:
            known = suggestion(name, types)
            raise ColumnError(f"source {source!r} has no column {name!r}, which dedup.prefer asks for; {known}")
        if not types[name].startswith(NUMBERS):
            raise ColumnError(f"source {source!r}: column {name!r} is {types[name]}, and dedup.prefer needs a number")


def score_values(column: pa.ChunkedArray) -> np.ndarray:
    """float64 [N], -inf where there is no number."""
    values = column.cast(pa.float64(), safe=False).fill_null(float("-inf")).to_numpy()
    return np.where(np.isnan(values), -np.inf, values)


def survivor_order(prefer: Sequence[str], columns: dict[str, np.ndarray]) -> np.ndarray:
    """The permutation, int64 [N], that sorts by (component, `prefer`, id).

    columns: component, row, high, low, length, and each score under its column's name behind "score:".
    """
    keys: list[np.ndarray] = [columns["component"]]
    for entry in prefer:
        if entry == LONGEST:
            keys.append(-columns["length"].astype(np.int64))
        elif entry == SOURCE:
            keys.append(columns["source"])
        else:
            keys.append(-columns[entry])
    return np.lexsort((columns["low"], columns["high"], *reversed(keys)))
