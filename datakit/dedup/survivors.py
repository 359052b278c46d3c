"""Sorts the documents of a component by the recipe's `prefer` keys, so that preferred documents come first, and checks
these keys. A recipe lists the sort keys: "longest" (most bytes of text first), "score:<column>" (a numeric column of
the normalized files or, as in "score:language.score", of an annotator's tables; highest score first, documents without
a score last) and "source" (the order of the sources in the recipe). The id is always the last key. The first document
is always retained. Each later document is retained unless it is found to be similar to a retained one.
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
    """Raise ValueError if `prefer` contains an unknown key."""
    for entry in prefer:
        if entry not in (LONGEST, SOURCE) and (not entry.startswith(SCORE) or entry == SCORE):
            known = suggestion(entry, [LONGEST, SOURCE, SCORE + "<column>"])
            raise ValueError(f"prefer contains the unknown key {entry!r}; {known}")


def score_columns(prefer: Sequence[str]) -> list[str]:
    """Return the names of the score columns that `prefer` needs from the normalized files."""
    return list(dict.fromkeys(entry.removeprefix(SCORE) for entry in prefer if entry.startswith(SCORE)))


def check_columns(prefer: Sequence[str], source: str, manifest: Manifest, annotated: Sequence[str] = ()) -> None:
    """Raise ColumnError if a source lacks a score column, or if a score column does not hold numbers. annotated: the
    columns that annotators write, which are checked in their tables.
    """
    types = {column.name: column.type for column in manifest.schema}
    for name in (one for one in score_columns(prefer) if one not in annotated):
        if name not in types:
            known = suggestion(name, types)
            raise ColumnError(f"source {source!r} has no column {name!r}, which dedup.prefer needs; {known}")
        if not types[name].startswith(NUMBERS):
            raise ColumnError(
                f"source {source!r}: column {name!r} has type {types[name]}, but dedup.prefer needs a column of numbers"
            )


def score_values(column: pa.ChunkedArray) -> np.ndarray:
    """Return the scores: float64 [N], with -inf in place of null and NaN."""
    values = column.cast(pa.float64(), safe=False).fill_null(float("-inf")).to_numpy()
    return np.where(np.isnan(values), -np.inf, values)


def survivor_keys(prefer: Sequence[str], columns: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the keys, [N] each, by which documents are sorted: the component, the keys of `prefer`, and the two halves
    of the id.

    columns: component, high, low, length, source, and each score as "score:<column>".
    """
    keys: list[np.ndarray] = [columns["component"]]
    for entry in prefer:
        if entry == LONGEST:
            keys.append(-columns["length"].astype(np.int64))
        elif entry == SOURCE:
            keys.append(columns["source"])
        else:
            keys.append(-columns[entry])
    return [*keys, columns["high"], columns["low"]]
