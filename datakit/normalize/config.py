"""How a source's records become documents: every content parameter, with its default."""

from __future__ import annotations

import re
from dataclasses import dataclass

from datakit.engine.quarantine import check_limit
from datakit.errors import RecipeError, suggestion
from datakit.normalize.formats import AUTO, FORMATS


@dataclass(frozen=True)
class Config:
    """See the fields. A source may set the first seven for itself, the rest holds for all sources of a recipe."""

    format: str = AUTO  # by the file's name, or one of `formats.FORMATS` for all of them
    text: str = "text"  # the upstream column that becomes `text`
    id: str = "id"  # the upstream column that becomes `source_id`, where there is one
    where: str | None = None  # a predicate on a record's columns, in SQL (DuckDB's); null counts as false
    sample: float = 1.0  # the share of documents to keep; which ones follows from their ids
    transform: str | None = (
        None  # "package.module:function", pyarrow.RecordBatch -> pyarrow.RecordBatch, on raw records
    )
    transform_version: int | str | None = None  # to be changed whenever the transform is
    drop: tuple[str, ...] = ()  # upstream columns that are left out
    max_document_bytes: int = 256 << 20  # a longer document is quarantined
    whitespace_run: int = 128  # a longer run of white space is cut to its first so many characters
    partition_bytes: int | None = None  # the most text in a partition; None: 32 MiB, 128 MiB, 1 GiB by total size
    max_quarantined: int | float = 0  # how many records may be left out because they cannot be used; 0.001: a share
    quarantine: tuple[str, ...] = ()  # records ("file:position") that may be left out beside these

    def __post_init__(self) -> None:
        if self.format not in (AUTO, *FORMATS):
            raise RecipeError(f"format {self.format!r} is not known; {suggestion(self.format, (AUTO, *FORMATS))}")
        if not 0 < self.sample <= 1:
            raise RecipeError(f"sample is {self.sample}; it is a share: above 0, at most 1")
        if not self.text:
            raise RecipeError("text is empty; it names the column that holds the text")
        if self.transform is not None and not re.fullmatch(r"[\w.]+:\w+", self.transform):
            raise RecipeError(f"transform {self.transform!r} is not of the form package.module:function")
        if (self.transform is None) != (self.transform_version is None):
            raise RecipeError("transform and transform_version come together: the version is what steps are told by")
        for name in ("max_document_bytes", "whitespace_run", "partition_bytes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be at least 1")
        check_limit(self.max_quarantined)
