"""Applies a source's `transform`, a user's function that changes records, and refuses a result that is not a valid
record batch.
"""

from __future__ import annotations

import pyarrow as pa

from datakit.engine.task import resolve
from datakit.errors import RecipeError
from datakit.normalize.readers.sound_arrays import check_arrays


class Transform:
    """A user's function that maps a record batch to another. Creating it raises RecipeError if the import fails."""

    def __init__(self, name: str) -> None:
        self._name = name
        try:
            self._function = resolve(name)
        except (ImportError, AttributeError) as error:
            raise RecipeError(f"transform {name!r} cannot be imported: {error}") from error

    def apply(self, table: pa.Table) -> pa.Table:
        """Apply the function to one chunk. Raises RecipeError if the function does not return a record batch."""
        batch = table.combine_chunks().to_batches()
        result = self._function(batch[0] if batch else pa.RecordBatch.from_pylist([], table.schema))
        if not isinstance(result, pa.RecordBatch):
            raise RecipeError(f"transform {self._name!r} returned a {type(result).__name__}, not a pyarrow.RecordBatch")
        changed = pa.Table.from_batches([result])
        try:
            check_arrays(changed)
        except pa.ArrowInvalid as error:
            raise RecipeError(f"transform {self._name!r} returned an invalid record batch: {error}") from error
        return changed
