"""An interrupted matrix goes on where it stopped, and says what it could not measure."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from datakit.cli.app import main
from datakit.errors import CorruptError
from datakit.trainer.bench import rows as table
from datakit.trainer.bench.case import Case
from datakit.trainer.bench.measure import Settings
from datakit.trainer.bench.rows import SHARES, STAGES, read_rows, run_matrix, table_of, traces_of

CASES = [Case(tokens=32, hidden=8, width=8, experts=4, choices=choices) for choices in (1, 2)]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of choices of the cases that were measured; the third measurement is out of memory."""
    found = list[int]()

    def measure(case: Case, settings: Settings) -> dict[str, Any]:
        found.append(case.choices)
        if len(found) == 3:
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: too large\nand more")
        rates = {"tflops_per_device": 1.0, "percent_of_peak": 2.0, "share_of_roofline": 0.5}
        times = {"seconds": 0.01, "seconds_p10": 0.009, "seconds_p90": 0.02}
        shares = dict.fromkeys(SHARES, 0.2) if settings.trace else {}
        return {**case.key(), **rates, **times, **shares, "device": "cpu", "rounds": settings.rounds}

    monkeypatch.setattr(table, "measure", measure)
    return found


def test_measured_rows_are_not_measured_again(measured: list[int], tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "rows.jsonl"
    run_matrix(CASES[:1], Settings(), file, lines.append)
    with file.open("a") as out:
        out.write('{"cut')  # killed while it wrote
    rows = run_matrix(CASES, Settings(), file, lines.append)
    assert measured == [1, 2]
    assert rows == read_rows(file)
    assert lines[-1] == f"1 row of 2 were already in {file}"
    header, body = table_of(rows)
    assert header[0] == "choices"
    assert body[0] == ["1", "10", "9-20", "1", "2", "50"]


def test_a_row_without_the_trace_that_is_asked_for_is_measured_again(
    measured: list[int], tmp_path: Path, lines: list[str]
) -> None:
    """Also one with the shares of an earlier version, which saw no communication. A trace nobody asks for is kept."""
    file = tmp_path / "rows.jsonl"
    (row,) = run_matrix(CASES[:1], Settings(), file, lines.append)
    file.write_text(json.dumps({**row, "share_communication": 0.0}) + "\n")
    traced = run_matrix(CASES[:1], Settings(trace=True), file, lines.append)
    assert measured == [1, 1]
    assert run_matrix(CASES[:1], Settings(trace=True), file, lines.append) == traced
    assert run_matrix(CASES[:1], Settings(), file, lines.append) == traced
    assert measured == [1, 1]
    header, body = traces_of([row, *traced])
    assert header == ["compute", "communication", "copies", "host", "(overlapped)"]
    assert body == [["20.0%"] * 5]


def test_a_row_with_another_number_of_rounds_is_measured_again(
    measured: list[int], tmp_path: Path, lines: list[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    both = [run_matrix(CASES[:1], Settings(rounds=rounds), file, lines.append)[0] for rounds in (20, 50)]
    assert measured == [1, 1]
    assert "already" not in lines[-1]
    for row in both:
        assert run_matrix(CASES[:1], Settings(rounds=row["rounds"]), file, lines.append) == [row]
    assert measured == [1, 1]
    assert read_rows(file) == both


def test_a_row_from_before_an_option_existed_has_its_default(
    measured: list[int], tmp_path: Path, lines: list[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    (row,) = run_matrix(CASES[:1], Settings(), file, lines.append)
    file.write_text(json.dumps({name: value for name, value in row.items() if name != "expert_parallel"}) + "\n")
    rows = run_matrix(CASES, Settings(), file, lines.append)
    assert measured == [1, 2]
    assert table_of(rows)[0][0] == "choices"


def test_a_case_without_memory_gets_a_row(measured: list[int], tmp_path: Path, lines: list[str]) -> None:
    wide = [dataclasses.replace(case, hidden=16) for case in CASES]
    rows = run_matrix([*CASES, *wide[:1]], Settings(), tmp_path / "rows.jsonl", lines.append)
    assert rows[-1]["failed"] == "RESOURCE_EXHAUSTED: too large"
    assert table_of(rows)[1][-1][-5] == "no memory"
    again = Settings(rounds=3, trace=True)
    assert run_matrix(wide[:1], again, tmp_path / "rows.jsonl", lines.append) == rows[-1:]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("nonsense\n")
    with pytest.raises(CorruptError, match="line 1 is not JSON"):
        read_rows(tmp_path / "rows.jsonl")


def test_the_command_measures_a_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--tokens", "32", "--hidden", "8", "--mlp-dim", "8", "--experts", "4", "--rounds", "2"]
    out = str(tmp_path / "rows.jsonl")
    assert main(["bench", "moe", *small, "--bench-pass", "forward", "--top-k", "1,2", "--output", out, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["choices"] for row in rows] == [1, 2]
    shared = ["--parallel", "staged", "--devices", "4", "--expert-parallel", "2", "--output", out, "--trace", "--json"]
    rows = []
    for _ in range(2):
        assert main(["bench", "moe", *small, *shared]) == 0
        rows += json.loads(capsys.readouterr().out)["rows"]
    assert rows[0] == rows[1]
    assert (rows[0]["expert_parallel"], len(read_rows(Path(out)))) == (2, 3)
    assert rows[0].keys() >= SHARES.keys()
    assert main(["bench", "moe", *small, *shared[:-1]]) == 0
    printed = capsys.readouterr().out
    assert f"{rows[0]['share_communication']:.1%}" in printed[printed.index("communication") :]
    parts = ["--implementation", "scatter", "--backend", "ragged", "--bench-pass", "forward", "--stage-timing"]
    assert main(["bench", "moe", *small, *parts, "--output", out]) == 0
    printed, row = capsys.readouterr().out, read_rows(Path(out))[-1]
    shown = printed[printed.index("combine, ms") :].split()
    assert all(f"{1e3 * row[name]:.3g}" in shown for name in STAGES)
    assert main(["bench", "moe", *small, "--packing", "argsort"]) == 2
    assert "packing argsort has no effect" in capsys.readouterr().err
