"""Defines the settings of normalize (format, columns, `where`, sample, transform, limits, quarantine), their defaults,
and the checks of their values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from datakit.engine.quarantine import check_limit
from datakit.errors import RecipeError, suggestion
from datakit.normalize.formats import AUTO, FORMATS

QUOTED, UNQUOTED = "rfc4180", "none"
QUOTINGS = (AUTO, QUOTED, UNQUOTED)
LARGEST_DOCUMENT = 1 << 30  # the parsers of JSON and CSV read a record at a time, and state its size in 32 bits
TYPES = ("bool", "int64", "float64", "string", "date")


@dataclass(frozen=True)
class Config:
    """Rules that turn records into documents. A source may override the first eight; the rest apply to all sources."""

    format: str = AUTO  # one of `formats.FORMATS` for all files; `auto`: the format that each file's name implies
    text: str = "text"  # the upstream column that becomes `text`
    id: str = "id"  # the upstream column that becomes `source_id`, if there is one
    where: str | None = None  # a SQL expression of a record's columns, in DuckDB's dialect; null counts as false
    types: dict[str, str] = field(default_factory=dict)  # column of `where` -> one of TYPES, in which `where` sees it
    sample: float = 1.0  # the share of documents to keep, selected by the last 64 bits of their ids
    transform: str | None = None  # "package.module:function", which maps a RecordBatch of raw records to a RecordBatch
    transform_version: int | str | None = None  # to be changed whenever the transform's code changes
    quoting: str = AUTO  # fields in quotes: `rfc4180`: allowed; `none`: a quote is text; `auto`: CSV rfc4180, TSV none
    drop: tuple[str, ...] = ()  # upstream columns to leave out
    max_document_bytes: int = 256 << 20  # a longer document or record is quarantined
    max_field_bytes: int = 16 << 20  # a longer quoted field of a CSV or TSV file means that its quote was never closed
    max_field_lines: int = 10_000  # so does a quoted field with more line ends
    whitespace_run: int = 128  # a longer run of white-space characters is cut to this length
    partition_bytes: int | None = None  # limit on mean bytes per partition; None: chosen from 32 MiB to 1 GiB
    max_quarantined: int | float = 0  # how many unusable records may be left out: a number (integer) or a share (float)
    quarantine: tuple[str, ...] = ()  # records ("file:position") that may be left out in addition to max_quarantined

    def __post_init__(self) -> None:
        if self.format not in (AUTO, *FORMATS):
            raise RecipeError(f"format {self.format!r} is unknown; {suggestion(self.format, (AUTO, *FORMATS))}")
        if self.quoting not in QUOTINGS:
            raise RecipeError(f"quoting {self.quoting!r} is unknown; {suggestion(self.quoting, QUOTINGS)}")
        if not 0 < self.sample <= 1:
            raise RecipeError(f"sample is {self.sample}; it must be a share above 0 and at most 1")
        if self.types and self.where is None:
            raise RecipeError("types is set without where; it declares the types in which where sees its columns")
        for column, kind in self.types.items():
            if kind not in TYPES:
                raise RecipeError(f"types: {column} = {kind!r} is unknown; {suggestion(kind, TYPES)}")
        if not self.text:
            raise RecipeError("text is empty; it must name the column that holds the text")
        if self.transform is not None and not re.fullmatch(r"[\w.]+:\w+", self.transform):
            raise RecipeError(f"transform {self.transform!r} must have the form package.module:function")
        if (self.transform is None) != (self.transform_version is None):
            raise RecipeError(
                "transform and transform_version must be set together, because the version stands for the code"
            )
        for name in ("max_document_bytes", "max_field_bytes", "max_field_lines", "whitespace_run", "partition_bytes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_document_bytes > LARGEST_DOCUMENT:
            raise RecipeError(f"max_document_bytes is {self.max_document_bytes}; it must be at most {LARGEST_DOCUMENT}")
        check_limit(self.max_quarantined)
