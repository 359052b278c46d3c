"""Determines the columns of normalize's output: the upstream column that each one comes from, if any, and the new name
of an upstream column whose name datakit itself uses. Rejects types that Parquet cannot store.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.errors import ColumnError
from datakit.normalize.columns.column_choice import ColumnChoice
from datakit.normalize.columns.conflicts import left_out
from datakit.normalize.columns.schema_union import shown, storable
from datakit.normalize.columns.upstream_columns import LEADING
from datakit.normalize.config import Config
from datakit.normalize.settings.column_settings import base_name

# The last column, for the hash of a text that is edited after its id was assigned. It is null, because no stage edits
# texts yet. Normalize writes it so that consolidate can use a partition unchanged. An upstream column of this name is
# renamed; but if datakit wrote it, it is discarded, because it refers to another version of the dataset.
EDITED = pa.field("edited_id", pa.string())
RENAMED = "upstream_"  # prefix for an upstream column whose name datakit itself uses


class OutputColumn(msgspec.Struct, frozen=True):
    """A column of the output, and the upstream column that it comes from, if any."""

    name: str
    upstream: str | None = None


def output_schema(union: pa.Schema, config: Config, again: bool) -> tuple[pa.Schema, list[OutputColumn]]:
    """Return the output's schema and columns. Raises ColumnError if Parquet cannot store the type of a column.

    again: True if every record of the source is a document that datakit wrote. In that case, and if the recipe names no
    other id column, `source_id` is preserved, because it holds the upstream id, and `id`, `source` and `edited_id` are
    written anew. Otherwise, an upstream column whose name datakit itself uses is renamed, unless the recipe renames it.
    """
    again = again and "source_id" in union.names and config.id == "id"
    id_column = "source_id" if again else config.id
    fields = list(LEADING)
    columns = [OutputColumn(name) for name in LEADING.names[:-1]]
    columns.append(OutputColumn("source_id", id_column if id_column in union.names else None))
    ours = [*LEADING.names, EDITED.name]
    choice, settled = ColumnChoice(config), left_out(union.names, config.conflicts)
    stored = [
        field
        for field in union
        if field.name != id_column
        and not (again and field.name in ("id", "source", EDITED.name))
        and choice.stores(field.name)
        and field.name not in settled
    ]
    names = [base_name(name) if config.conflicts else name for name in union.names]
    _check_renames(config, [base_name(field.name) for field in stored])
    taken = {*(config.rename.get(name, name) for name in names), *ours}
    for field in stored:
        base = base_name(field.name) if config.conflicts else field.name
        name = config.rename.get(base, base)
        while name in ours or (name != base and base not in config.rename and name in taken):
            name = f"{RENAMED}{name}"
        taken.add(name)
        fields.append(pa.field(name, storable(field.type)))
        columns.append(OutputColumn(name, field.name))
    fields.append(EDITED)
    columns.append(OutputColumn(EDITED.name))
    schema = pa.schema(fields)
    _check_writable(schema)
    return schema, columns


def _check_renames(config: Config, names: Sequence[str]) -> None:
    for old, new in config.rename.items():
        if new in names and new not in config.rename:
            raise ColumnError(
                f"rename: {shown(old)} cannot be named {shown(new)}, because the source has another column of this "
                f"name; rename it too, or leave it out (drop = [{shown(new)}])"
            )


def _check_writable(schema: pa.Schema) -> None:
    for field in schema:
        try:
            # `empty_table` would import pandas if it is installed: 50 MB of memory in the driver
            pq.write_table(pa.Table.from_batches([], pa.schema([field])), pa.BufferOutputStream())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise ColumnError(
                f"column {shown(field.name)} has type {field.type}, which Parquet does not support; leave it out "
                f"(drop = [{shown(field.name)}] under [normalize]), or convert it with a transform"
            ) from error
