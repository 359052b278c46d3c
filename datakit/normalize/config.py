"""Defines the settings of normalize (format, columns, `where`, sample, transform, limits, quarantine), their defaults,
and the checks of their values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from datakit.engine.quarantine import MAX_QUARANTINED, check_limit
from datakit.errors import RecipeError, suggestion
from datakit.normalize.formats import AUTO, FORMATS
from datakit.toml_config import key

QUOTED, UNQUOTED = "rfc4180", "none"
QUOTINGS = (AUTO, QUOTED, UNQUOTED)
# highest permitted `max_document_bytes`: the JSON and CSV parsers hold a whole record, and its size as a 32-bit number
LARGEST_DOCUMENT = 1 << 30
TYPES = ("bool", "int64", "float64", "string", "date")


@dataclass(frozen=True)
class Config:
    """Rules that turn records into documents. Each source may override the fields from `format` to `quoting`."""

    format: Annotated[
        str, key("The format of all files; `auto`: the format that each file's name implies.", "text", (AUTO, *FORMATS))
    ] = AUTO
    text: Annotated[str, key("The column that holds the text.", "body")] = "text"
    id: Annotated[str, key("The column that becomes `source_id`, if a file has it.", "url")] = "id"
    where: Annotated[
        str | None,
        key("A SQL expression over a record's columns, in DuckDB's dialect, that must be true; null counts as false.",
            "language = 'en' and length(text) > 200"),
    ] = None  # fmt: skip
    types: Annotated[
        dict[str, str],
        key("The types in which `where` sees its columns: bool, int64, float64, string or date.", {"year": "int64"}),
    ] = field(default_factory=dict)
    sample: Annotated[float, key("The share of documents to keep, selected by their ids.", 0.1)] = 1.0
    transform: Annotated[
        str | None,
        key('A function of yours, "package.module:function", that changes or removes records (docs/recipe.md).',
            "my_filters:long_enough"),
    ] = None  # fmt: skip
    transform_version: Annotated[
        int | str | None, key("The version of `transform`; change it whenever the function's code changes.", 1)
    ] = None
    quoting: Annotated[
        str,
        key("The meaning of quotes in CSV and TSV files: `rfc4180`: a field may be quoted; `none`: a quote is text; "
            "`auto`: rfc4180 for CSV, none for TSV.", "none", QUOTINGS),
    ] = AUTO  # fmt: skip
    drop: Annotated[tuple[str, ...], key("Columns to leave out.", ["embedding"])] = ()
    max_document_bytes: Annotated[int, key("A larger document or record is quarantined.", 1 << 20)] = 256 << 20
    max_field_bytes: Annotated[
        int, key("A larger quoted field in a CSV or TSV file counts as one whose quote was never closed.", 1 << 20)
    ] = 16 << 20
    max_field_lines: Annotated[int, key("The same applies to a quoted field with more line ends.", 1000)] = 10_000
    whitespace_run: Annotated[
        int, key("A longer run of white-space characters is cut to this length.", 64)
    ] = 128  # fmt: skip
    partition_bytes: Annotated[
        int | None,
        key("The limit on the mean size of a partition. By default 32 MiB to 1 GiB, depending on the total size.",
            64 << 20),
    ] = None  # fmt: skip
    max_quarantined: Annotated[int | float, MAX_QUARANTINED] = 0
    quarantine: Annotated[
        tuple[str, ...],
        key('Records, as "file:position", that may be left out in addition to `max_quarantined`.', ["a.jsonl:4096"]),
    ] = ()

    def __post_init__(self) -> None:
        if self.format not in (AUTO, *FORMATS):
            raise RecipeError(f"format {self.format!r} is unknown; {suggestion(self.format, (AUTO, *FORMATS))}")
        if self.quoting not in QUOTINGS:
            raise RecipeError(f"quoting {self.quoting!r} is unknown; {suggestion(self.quoting, QUOTINGS)}")
        if not 0 < self.sample <= 1:
            raise RecipeError(f"sample is {self.sample}; it must be a share above 0 and at most 1")
        if self.types and self.where is None:
            raise RecipeError("`types` is set without `where`; it applies only to columns that `where` reads")
        for column, kind in self.types.items():
            if kind not in TYPES:
                raise RecipeError(f"types: the type {kind!r} of column {column} is unknown; {suggestion(kind, TYPES)}")
        if not self.text:
            raise RecipeError("`text` is empty; it must name the column that holds the text")
        if self.transform is not None and not re.fullmatch(r"[\w.]+:\w+", self.transform):
            raise RecipeError(f"transform {self.transform!r} must have the form package.module:function")
        if (self.transform is None) != (self.transform_version is None):
            raise RecipeError(
                "`transform` and `transform_version` must be set together; the version shows whether the code changed"
            )
        for name in ("max_document_bytes", "max_field_bytes", "max_field_lines", "whitespace_run", "partition_bytes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_document_bytes > LARGEST_DOCUMENT:
            raise RecipeError(f"max_document_bytes is {self.max_document_bytes}; it must be at most {LARGEST_DOCUMENT}")
        check_limit(self.max_quarantined)
