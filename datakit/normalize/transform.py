"""Applies a source's `transform` (a user's function that changes records), reports its exceptions with a traceback of
the user's code alone, and refuses a result that is not a valid record batch.
"""

from __future__ import annotations

import pyarrow as pa

from datakit.engine.user_code import user_code
from datakit.engine.user_modules import loaded
from datakit.errors import RecipeError, counted
from datakit.normalize.columns import schema_union
from datakit.normalize.readers.sound_arrays import check_arrays

SHOWN_COLUMNS = 20


class Transform:
    """A user's function that maps one record batch to another. Raises RecipeError if it cannot be imported."""

    def __init__(self, name: str) -> None:
        self._name = name
        remedy = f"put {name.partition(':')[0].partition('.')[0]}.py beside the recipe, or add its folder to PYTHONPATH"
        self._function = loaded(name, f"transform {name!r}", remedy, RecipeError)

    def apply(self, table: pa.Table) -> pa.Table:
        """Apply the function to one chunk, passed as one record batch or, if a column exceeds 2 GiB, as several.

        Raises UserCodeError if the function fails, and RecipeError if it does not return a valid record batch.
        """
        batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        tables = [self._applied(batch) for batch in batches]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def _applied(self, batch: pa.RecordBatch) -> pa.Table:
        with user_code(f"transform {self._name!r}", _described(batch), batch.schema.names):
            result = self._function(batch)
        if not isinstance(result, pa.RecordBatch):
            raise RecipeError(f"transform {self._name!r} returned a {type(result).__name__}, not a pyarrow.RecordBatch")
        changed = pa.Table.from_batches([result])
        try:
            check_arrays(changed)
        except pa.ArrowInvalid as error:
            raise RecipeError(f"transform {self._name!r} returned an invalid record batch: {error}") from error
        return changed


def _described(batch: pa.RecordBatch) -> str:
    fields = [f"{schema_union.shown(field.name)}: {schema_union.describe(field.type)}" for field in batch.schema]
    more = f", and {len(fields) - SHOWN_COLUMNS} more" if len(fields) > SHOWN_COLUMNS else ""
    columns = ", ".join(fields[:SHOWN_COLUMNS]) + more
    rows = counted(batch.num_rows, "row")
    return f"a pyarrow.RecordBatch of {rows} with the columns {columns or '(none)'}"
