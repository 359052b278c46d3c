"""Defines the settings of normalize (format, columns, texts, `where`, sample, transform, limits, quarantine), their
defaults, and the checks of their values.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any

import msgspec

from datakit.engine.quarantine import MAX_QUARANTINED, check_limit
from datakit.errors import RecipeError, suggestion
from datakit.normalize.formats import AUTO, FORMATS
from datakit.normalize.settings.column_settings import POLICIES, check_columns, check_conflicts
from datakit.normalize.settings.paths import ColumnPath
from datakit.normalize.settings.text_forms import NAME, PATH, TextForm, parse_text
from datakit.storage.fingerprint import spelled_out
from datakit.toml_config import key

RESILIPARSE, TRAFILATURA, NO_EXTRACTION = "resiliparse", "trafilatura", "none"
EXTRACTORS = (RESILIPARSE, TRAFILATURA, NO_EXTRACTION)
QUOTED, UNQUOTED = "rfc4180", "none"
QUOTINGS = (AUTO, QUOTED, UNQUOTED)
# highest permitted `max_document_bytes`: the JSON and CSV parsers hold a whole record, and its size as a 32-bit number
LARGEST_DOCUMENT = 1 << 30
LARGEST_SEED = (1 << 63) - 1  # the largest integer in TOML
# Settings that were added after format version 4. One that has its default is left out of fingerprints, so steps of
# recipes that do not use it keep theirs.
LATER = ("keep", "rename", "conflicts", "sample_seed", "limit", "splits", "extract", "extract_seconds")
# settings that must be at least 1
LIMITS = (
    "extract_seconds", "max_document_bytes", "max_field_bytes", "max_field_lines", "whitespace_run", "partition_bytes",
    "limit",
)  # fmt: skip
TYPES = ("bool", "int64", "float64", "string", "date")


@dataclass(frozen=True)
class Config:
    """Rules that turn records into documents. Each source may override the fields from `format` to `extract_seconds`.

    splits: the patterns of the files of each split, written out; a setting of sources alone.
    """

    format: Annotated[
        str, key("The format of all files; `auto`: the format that each file's name implies.", "text", (AUTO, *FORMATS))
    ] = AUTO
    text: Annotated[
        str | dict[str, Any],
        key("The column that holds the text, the path of a value, or a table that makes the text of several values "
            "(docs/sources.md).", {"template": "{title}\n\n{body}"}),
    ] = "text"  # fmt: skip
    id: Annotated[str, key("The column that becomes `source_id`, if a file has it.", "url")] = "id"
    where: Annotated[
        str | None,
        key("A SQL expression over a record's columns, in DuckDB's dialect, that must be true; null counts as false.",
            "language = 'en' and length(text) > 200"),
    ] = None  # fmt: skip
    types: Annotated[
        dict[str, str],
        key(
            "The types in which `where` sees its columns and fields: bool, int64, float64, string or date.",
            {"year": "int64"},
        ),
    ] = field(default_factory=dict)
    sample: Annotated[float, key("The share of documents to keep, selected by their ids.", 0.1)] = 1.0
    sample_seed: Annotated[
        int | None, key("Selects another sample of the same size; samples with the same seed contain each other.", 7)
    ] = None  # fmt: skip
    limit: Annotated[
        int | None,
        key("The largest number of documents, before exact duplicates are removed: the first ones that the other "
            "settings leave, in the order of files and records.", 10_000),
    ] = None  # fmt: skip
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
    keep: Annotated[
        tuple[str, ...], key("The columns to store beside datakit's own; all columns if omitted.", ["url", "date"])
    ] = ()  # fmt: skip
    drop: Annotated[tuple[str, ...], key("Columns to leave out.", ["embedding"])] = ()
    rename: Annotated[
        dict[str, str], key("New names of columns, by the names in the files.", {"lang": "language"})
    ] = field(default_factory=dict)  # fmt: skip
    conflicts: Annotated[
        dict[str, str],
        key("What happens to a column with values of several kinds, such as numbers and objects (docs/sources.md): "
            f"{', '.join(f'`{policy}`' for policy in POLICIES)}.", {"meta": "string"}),
    ] = field(default_factory=dict)  # fmt: skip
    extract: Annotated[
        str,
        key("How web archives' HTML becomes text: with `resiliparse` or `trafilatura`; `none`: the HTML is the text.",
            "trafilatura", EXTRACTORS),
    ] = RESILIPARSE  # fmt: skip
    extract_seconds: Annotated[
        int, key("The CPU time that a record of a web archive may take; a record that takes more is quarantined.", 300)
    ] = 60
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
    splits: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in (AUTO, *FORMATS):
            raise RecipeError(f"format {self.format!r} is unknown; {suggestion(self.format, (AUTO, *FORMATS))}")
        if self.quoting not in QUOTINGS:
            raise RecipeError(f"quoting {self.quoting!r} is unknown; {suggestion(self.quoting, QUOTINGS)}")
        if self.extract not in EXTRACTORS:
            raise RecipeError(f"extract {self.extract!r} is unknown; {suggestion(self.extract, EXTRACTORS)}")
        if not 0 < self.sample <= 1:
            raise RecipeError(f"sample is {self.sample}; it must be a share above 0 and at most 1")
        if self.types and self.where is None:
            raise RecipeError("`types` is set without `where`; it applies only to columns that `where` reads")
        for column, kind in self.types.items():
            if kind not in TYPES:
                raise RecipeError(f"types: the type {kind!r} of column {column} is unknown; {suggestion(kind, TYPES)}")
        parse_text(self.text)
        check_columns(self.text_column, self.id, self.keep, self.drop, self.rename)
        check_conflicts(self.conflicts, [path.column for path in self.text_paths], self.id)
        if self.sample_seed is not None and not (self.sample < 1 and 0 <= self.sample_seed <= LARGEST_SEED):
            raise RecipeError(f"sample_seed is {self.sample_seed}; it must be at least 0, and needs a `sample` below 1")
        if self.transform is not None and not re.fullmatch(r"[\w.]+:\w+", self.transform):
            raise RecipeError(f"transform {self.transform!r} must have the form package.module:function")
        if (self.transform is None) != (self.transform_version is None):
            raise RecipeError(
                "`transform` and `transform_version` must be set together; the version shows whether the code changed"
            )
        for name in LIMITS:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_document_bytes > LARGEST_DOCUMENT:
            raise RecipeError(f"max_document_bytes is {self.max_document_bytes}; it must be at most {LARGEST_DOCUMENT}")
        check_limit(self.max_quarantined)

    @cached_property
    def text_form(self) -> TextForm | None:
        """The form in which the text is made of nested or several values; None if `text` is the name of a column."""
        return parse_text(self.text)

    @property
    def text_column(self) -> str | None:
        """The column whose value is the text if a record has it, or None if the text is made of several values."""
        return self.text if isinstance(self.text, str) else None

    @property
    def text_name(self) -> str:
        """The name under which `where` sees the text."""
        return self.text if isinstance(self.text, str) else NAME

    @property
    def text_paths(self) -> tuple[ColumnPath, ...]:
        """The paths of all values of which the text is made."""
        form = self.text_form
        return form.paths if form is not None else (ColumnPath(self.text_name, (self.text_name,)),)

    @property
    def reads_columns_as_they_are(self) -> bool:
        """True if documents have the columns of the files, under their names."""
        changes = (self.transform, self.text_form, self.keep, self.rename, self.conflicts, self.splits)
        return not any(changes)

    @property
    def text_described(self) -> str:
        """The setting `text`, for messages."""
        if self.text_form is None or self.text_form.kind == PATH:
            return repr(self.text)
        return " and ".join(repr(path.whole) for path in self.text_paths)


def content(config: Config) -> dict[str, Any]:
    """Return the settings as plain data, with defaults written out, but without the later settings that have them."""
    return without_unset(spelled_out(config))


def without_unset(plain: dict[str, Any]) -> dict[str, Any]:
    """Return settings, given as plain data, without the later ones that have their defaults."""
    encoded = msgspec.json.encode  # tuples and lists are equal then
    defaults = {name: encoded(value) for name, value in asdict(Config()).items() if name in LATER}
    return {name: value for name, value in plain.items() if name not in LATER or encoded(value) != defaults[name]}
