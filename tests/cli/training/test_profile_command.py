"""`datakit train profile` prints where the time of a trace went, and its longest operations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("jax")
import jax

from datakit.cli import main
from datakit.trainer.loop import trace_summary
from datakit.trainer.loop.trace_summary import TraceSummary
from datakit.trainer.loop.tracing import Tracing

LONG = "a_fusion_whose_name_is_longer_than_the_fifty_characters_of_a_column"
FOUND = TraceSummary("run/t.xplane.pb", 2, 10.0, 6.0, 1.5, 0.5, 0.5, 2.0, {"dot": 9.0, LONG: 2.0, "all_gather": 1.0})


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that were summarized, all with the result `FOUND`."""
    directories = list[str]()

    def summarize(directory: str) -> TraceSummary:
        directories.append(directory)
        return FOUND

    monkeypatch.setattr(trace_summary, "summarize", summarize)
    return directories


def cells(text: str) -> list[list[str]]:
    """Return the cells of the lines of a table, which are at least two spaces apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines() if line.strip()]


def test_the_tables_show_times_and_shares(found: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Shares of the time are those of an average device; shares of operations are those of all devices' busy time."""
    assert main(["train", "profile", "run"]) == 0
    out, err = capsys.readouterr()
    assert found == ["run"]
    lines = cells(out)
    for line in (
        ["time", "seconds", "share"],
        ["compute", "6.000", "60.0%"],
        ["communication", "1.500", "15.0%"],
        ["copies", "0.500", "5.0%"],
        ["waiting for the host", "2.000", "20.0%"],
        ["(communication during computation)", "0.500", "5.0%"],
        ["operation", "seconds", "share"],
        ["dot", "9.000", "75.0%"],
        [LONG[:50], "2.000", "16.7%"],
        ["all_gather", "1.000", "8.3%"],
    ):
        assert line in lines
    assert "2 device(s), 10.000 s; the trace: run/t.xplane.pb" in err


def test_only_the_longest_operations_are_listed(found: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "profile", "run", "--top", "1"]) == 0
    lines = cells(capsys.readouterr().out)
    assert ["dot", "9.000", "75.0%"] in lines
    assert not any("all_gather" in line for line in lines)
    assert main(["train", "profile", "run", "--top", "-1"]) == 2
    assert "--top is -1; use at least 1" in capsys.readouterr().err


def test_the_json_holds_all_operations(found: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "profile", "run", "--top", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["communication"], printed["overlapped"], printed["idle"]) == (1.5, 0.5, 2.0)
    assert printed["operations"] == FOUND.operations


def test_the_trace_of_a_run_is_summarized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    product, square = jax.jit(lambda x: x @ x), jax.numpy.ones((512, 512))
    product(square).block_until_ready()
    tracing = Tracing(str(tmp_path), (0, 1))
    tracing.at(0)
    product(square).block_until_ready()
    tracing.at(1)
    assert main(["train", "profile", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert float(next(line[1] for line in cells(out) if line[0] == "compute")) >= 0
    assert str(tmp_path) in err
    assert len(cells(out)) > len(FOUND.rows()) + 2  # at least one operation


def test_a_directory_without_a_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "profile", str(tmp_path)]) == 2
    assert f"{tmp_path} has no trace; set log.profile = [first, end]" in capsys.readouterr().err
