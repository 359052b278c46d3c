"""Composes the section about the lineage: the sources, the steps, their parameters, and the versions of software."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from datakit.lineage import Lineage, StepRecord
from datakit.lineage.graph import DOWNLOAD
from datakit.report.figures import Column, Figure, Section, Table

MOST_SOURCES = 200
MOST_STEPS = 400
MOST_PARAMETERS = 400
INTRO = "Everything from which this was made. The command datakit lineage prints the same, also for other programs."


def lineage_section(lineage: Lineage | None) -> Section | None:
    """Return the section, or None if no step of the report is finished."""
    if lineage is None:
        return None
    return Section("lineage", "Lineage", INTRO, tuple(_figures(lineage)))


def _figures(lineage: Lineage) -> Iterator[Figure]:
    if lineage.sources:
        columns = (Column("source"), Column("URL", "code"), Column("revision", "code"), Column("license"),
                   Column("files", "count"), Column("size", "bytes"))  # fmt: skip
        rows = [(one.name, one.url or "not recorded", one.revision, one.license or "not stated", one.files, one.bytes)
                for one in lineage.sources]  # fmt: skip
        yield _figure("lineage-sources", "Sources", columns, rows, MOST_SOURCES)
    columns = (Column("step"), Column("rows", "count"), Column("tokens", "count"), Column("files", "count"),
               Column("size", "bytes"), Column("identity", "code"), Column("manifest", "code"))  # fmt: skip
    yield _figure("lineage-steps", "Steps", columns, [_row(step) for step in lineage.steps], MOST_STEPS)
    yield _figure("parameters", "Parameters", (Column("step"), Column("parameter"), Column("value", "code")),
                  list(_parameters(lineage)), MOST_PARAMETERS)  # fmt: skip
    versions = list(dict.fromkeys((name, version) for step in lineage.steps for entry in step.versions
                                  for name, version in entry.items()))  # fmt: skip
    if versions:
        yield _figure("versions", "Versions", (Column("software"), Column("version", "code")), sorted(versions), 100)


def _row(step: StepRecord) -> tuple[str | int | None, ...]:
    if not step.found:
        return f"{step.name} (missing)", None, None, None, None, step.identity, None
    rows = None if step.stage == DOWNLOAD else step.rows  # a download holds files
    return step.name, rows, step.tokens, step.files, step.bytes, step.identity, step.checksum


def _parameters(lineage: Lineage) -> Iterator[tuple[str, str, str]]:
    """Yield the parameters of all steps. Steps of the same stage with the same value share a row."""
    shared: dict[tuple[str, str, str], list[str]] = {}
    for step in lineage.steps:
        for name, value in sorted(step.parameters.items()):
            shared.setdefault((step.stage, name, orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()), []).append(
                step.dataset
            )
    for (stage, name, value), datasets in shared.items():
        several = sum(key[:2] == (stage, name) for key in shared) > 1
        more = f" and {len(datasets) - 3} more" if len(datasets) > 3 else ""
        yield f"{stage} {', '.join(datasets[:3])}{more}" if several else stage, name, value[:500]


def _figure(key: str, title: str, columns: tuple[Column, ...], rows: list, most: int) -> Figure:
    more = f"{len(rows) - most:,} more rows are not shown; datakit lineage prints all." if len(rows) > most else ""
    return Figure(key, title, Table(title, columns, rows[:most], more=more), wide=True)
