"""Defines the parts of a report's page: sections, which hold figures and tables, and the numbers at the top.

A figure is a chart with a table of the same numbers, so that no number can be read only from a drawing. The data of a
chart are plain JSON, which `assets/charts.js` draws. Their form depends on the kind of the chart:

    flow        {"nodes": [{"id", "label", "value", "tone", "depth"}], "links": [{"source", "target", "value"}]}
    bars        {"categories": [...], "series": [{"name", "values", "tone"}], "unit"}, horizontal and stacked
    columns     the same, vertical
    lines       {"series": [{"name", "points": [[x, y], ...], "tone"}], "x", "unit"}
    timeline    {"stages": [...], "spans": [[stage, start, end, label], ...], "width", "busy": {stage: [...]}}
    memory      {"categories": [...], "peak": [...], "budget": [...], "unit"}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["text", "count", "bytes", "seconds", "percent", "number", "code"]
Cell = str | int | float | None
TONES = ("accent", "third", "fifth", "fourth", "second", "muted")  # the colors of series, defined in the style sheet


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, and the kind of its values, which decides how they are written."""

    heading: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """A table. total: a last row of sums. more: a remark below the table."""

    caption: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    total: Sequence[Cell] | None = None
    more: str = ""


@dataclass(frozen=True)
class Chart:
    """A drawing. described: what it shows, in a sentence, for those who cannot see it."""

    kind: Literal["flow", "bars", "columns", "lines", "timeline", "memory"]
    data: dict[str, Any]
    described: str


@dataclass(frozen=True)
class Figure:
    """A chart, the table with its numbers, and a title. wide: the figure takes the whole width of the page."""

    id: str
    title: str
    table: Table
    chart: Chart | None = None
    note: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Pair:
    """A removed document beside the retained one. stretches: (True if equal, text of the removed document, text of the
    retained one).
    """

    title: str
    removed: str
    retained: str
    stretches: tuple[tuple[bool, str, str], ...]


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    id: str
    title: str
    intro: str
    figures: tuple[Figure, ...] = ()
    pairs: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Fact:
    """A number at the top of the page, with a label and a remark."""

    label: str
    value: Cell
    kind: Kind
    remark: str = ""


@dataclass(frozen=True)
class Page:
    """The content of a report. facts: the numbers at the top. about: the facts below them, as pairs of a name and a
    value.
    """

    title: str
    kind: str
    lead: str
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    about: tuple[tuple[str, str], ...] = field(default=())
