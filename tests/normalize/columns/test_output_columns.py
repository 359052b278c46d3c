"""Upstream columns with names of ours are renamed, and no column is lost."""

from __future__ import annotations

import pyarrow as pa

from datakit.normalize.columns.output_columns import output_schema
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
    ]
    assert named["source_id"] == "url" and named["upstream_id"] == "id" and named["upstream_upstream_text"] == "text"
