"""Determines the columns of normalize's output: the upstream column that each one comes from, if any, and the new name
of an upstream column whose name datakit itself uses. Rejects types that Parquet cannot store.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.errors import ColumnError
from datakit.normalize.columns.schema_union import shown, storable
from datakit.normalize.columns.upstream_columns import LEADING
from datakit.normalize.config import Config

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
    written anew. Otherwise, an upstream column whose name datakit itself uses is renamed.
    """
    again = again and "source_id" in union.names and config.id == "id"
    id_column = "source_id" if again else config.id
    fields = list(LEADING)
    columns = [OutputColumn(name) for name in LEADING.names[:-1]]
    columns.append(OutputColumn("source_id", id_column if id_column in union.names else None))
    ours = [*LEADING.names, EDITED.name]
    taken = {*union.names, *ours}
    for field in union:
        if field.name == id_column or (again and field.name in ("id", "source", EDITED.name)):
            continue
        name = field.name
        while name in ours or (name != field.name and name in taken):
            name = RENAMED + name
        taken.add(name)
        fields.append(pa.field(name, storable(field.type)))
        columns.append(OutputColumn(name, field.name))
    fields.append(EDITED)
    columns.append(OutputColumn(EDITED.name))
    schema = pa.schema(fields)
    _check_writable(schema)
    return schema, columns


def _check_writable(schema: pa.Schema) -> None:
    for field in schema:
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise ColumnError(
                f"column {shown(field.name)} has type {field.type}, which Parquet does not support; leave it out "
                f"(drop = [{shown(field.name)}] under [normalize]), or convert it with a transform"
            ) from error
