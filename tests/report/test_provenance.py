"""The section about the lineage lists sources, steps, parameters and versions, each table up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.lineage import read_lineage
from datakit.report import provenance
from datakit.report.figures import Section, Table
from datakit.report.provenance import lineage_section


def tables(section: Section | None) -> dict[str, Table]:
    assert section is not None
    return {figure.id: figure.table for figure in section.figures}


def test_every_parameter_of_every_stage_is_listed(finished: Path) -> None:
    lineage = read_lineage(str(finished / "root" / "shelf"))
    rows = tables(lineage_section(lineage))["parameters"].rows
    listed = {(str(row[0]).partition(" ")[0], row[1]) for row in rows}
    assert listed == {(step.stage, name) for step in lineage.steps for name in step.parameters}


def test_sources_with_different_values_have_rows_of_their_own(finished: Path) -> None:
    rows = tables(lineage_section(read_lineage(str(finished / "root" / "shelf"))))["parameters"].rows
    assert {(row[0], row[2]) for row in rows if row[1] == "text"} >= {("normalize letters", '"body"')}


def test_long_tables_say_how_many_rows_are_left_out(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = read_lineage(str(finished / "root" / "shelf"))
    monkeypatch.setattr(provenance, "MOST_STEPS", 4)
    monkeypatch.setattr(provenance, "MOST_PARAMETERS", 5)
    found = tables(lineage_section(lineage))
    assert len(found["lineage-steps"].rows) == 4 and found["lineage-steps"].more.startswith("8 more rows")
    assert len(found["parameters"].rows) == 5 and "more rows are not shown" in found["parameters"].more


def test_report_without_a_finished_step_has_no_lineage() -> None:
    assert lineage_section(None) is None
