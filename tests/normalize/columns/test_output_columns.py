"""Upstream columns with names of ours are renamed, and no column is lost."""

from __future__ import annotations

import pyarrow as pa

from datakit.normalize.columns.output_columns import output_schema
from datakit.normalize.columns.upstream_columns import LEADING
from datakit.normalize.config import Config


def test_upstream_columns_with_our_names_are_renamed() -> None:
    union = pa.schema([("id", pa.string()), ("url", pa.string()), ("text", pa.int64()), ("upstream_text", pa.int8())])
    schema, columns = output_schema(union, Config(text="body", id="url"), again=False)
    named = {entry.name: entry.upstream for entry in columns}
    assert schema.names == [
        "id",
        "text",
        "source",
        "source_id",
        "upstream_id",
        "upstream_upstream_text",
        "upstream_text",
        "edited_id",
    ]
    assert named["source_id"] == "url" and named["upstream_id"] == "id" and named["upstream_upstream_text"] == "text"


def test_edited_id_is_the_last_column_and_never_taken_from_upstream() -> None:
    """If datakit wrote the source, its column of this name is discarded; that of any other source is renamed."""
    union = pa.schema([*LEADING.remove(1), ("year", pa.int64()), ("edited_id", pa.string()), ("day", pa.string())])
    schema, columns = output_schema(union, Config(), again=True)
    assert schema.names == ["id", "text", "source", "source_id", "year", "day", "edited_id"]
    assert {entry.name: entry.upstream for entry in columns}["edited_id"] is None
    schema, columns = output_schema(union, Config(), again=False)
    assert schema.names[-1] == "edited_id"
    assert {entry.name: entry.upstream for entry in columns}["upstream_edited_id"] == "edited_id"
