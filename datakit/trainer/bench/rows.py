"""Runs a matrix of cases, appends each row to a file as soon as it is measured, and prints the rows as a table.

A run that is started again with the same file skips the cases that the file already holds for this kind of device, so
a matrix can be interrupted at any time. A row with another number of rounds, or without the trace that is asked for, is
kept, and the case is measured again. A case that does not fit in the memory gets a row with the error instead of times;
it is not tried again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from datakit.errors import CorruptError, counted
from datakit.trainer.bench.case import Case
from datakit.trainer.bench.measure import Settings, measure

Row = dict[str, Any]
NO_MEMORY = "RESOURCE_EXHAUSTED"
SHARES = {  # the columns of a trace, and their headers
    "share_compute": "compute",
    "share_communication": "communication",
    "share_copy": "copies",
    "share_host": "host",
    "share_overlapped": "(overlapped)",
}

STAGES = {  # the columns of --stage-timing, and their headers
    f"seconds_{name}": f"{name}, ms" for name in ("sort", "pack", "up", "down", "combine")
}


def run_matrix(cases: Sequence[Case], settings: Settings, output: Path | None, say: Callable[[str], None]) -> list[Row]:
    """Return the rows of all cases, in their order. Raises DatakitError for a case with a wrong result."""
    fitting = (row for row in read_rows(output) if _answers(row, settings)) if output is not None else ()
    known = {_identity(row): row for row in fitting}
    device, rows, skipped = jax.devices()[0].device_kind, list[Row](), 0
    for number, case in enumerate(cases, 1):
        row = known.get(_identity({**case.key(), "device": device}))
        skipped += row is not None
        if row is None:
            say(f"{number}/{len(cases)}: {case.described()}")
            row = _measured(case, settings, device)
            if output is not None:
                with output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, sort_keys=True) + "\n")
        rows.append(row)
    if skipped:
        say(f"{counted(skipped, 'row')} of {len(cases)} were already in {output}")
    return rows


def _answers(row: Row, settings: Settings) -> bool:
    """Return True if a row holds what the settings ask for. A case without memory fails whatever they are."""
    traced = not settings.trace or row.keys() >= SHARES.keys()
    return "failed" in row or (row.get("rounds") == settings.rounds and traced)


def _measured(case: Case, settings: Settings, device: str) -> Row:
    try:
        return measure(case, settings)
    except JaxRuntimeError as error:
        line = str(error).splitlines()[0]
        if NO_MEMORY not in line:
            raise
        return {**case.key(), "device": device, "failed": line}


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; none if it does not exist. An option that did not exist yet when a row was written has
    its default. An incomplete last line is ignored. Raises CorruptError.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            rows.append({**Case().key(), **json.loads(line)})
        except ValueError as error:
            raise CorruptError(f"{path}, line {number} is not JSON; remove it, or give another file") from error
    if lines[-1]:
        path.write_text("".join(f"{line}\n" for line in lines[:-1]), encoding="utf-8")
    return rows


def _identity(row: Row) -> str:
    return json.dumps({name: row.get(name) for name in [*Case().key(), "device"]}, sort_keys=True)


def table_of(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a table: the options that differ between the rows, and what was measured."""
    names = _differing(rows)
    header = [*names, "ms", "p10-p90", "TF/s", "% peak", "% roofline"]
    return header, [[*(str(row[name]) for name in names), *_measured_columns(row)] for row in rows]


def traces_of(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the table of the traced rows: the options that differ, and the shares of the time."""
    return _table(rows, SHARES, "{:.1%}")


def stages_of(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the table of the rows whose parts were timed: the options that differ, and milliseconds."""
    in_milliseconds = [{**row, **{name: 1e3 * row[name] for name in STAGES if name in row}} for row in rows]
    return _table(in_milliseconds, STAGES, "{:.3g}")


def _table(rows: Sequence[Row], columns: dict[str, str], form: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a table of those rows that have the columns."""
    names, chosen = _differing(rows), [row for row in rows if row.keys() >= columns.keys()]
    lines = [[*(str(row[name]) for name in names), *(form.format(row[column]) for column in columns)] for row in chosen]
    return [*names, *columns.values()], lines


def _differing(rows: Sequence[Row]) -> list[str]:
    return [name for name in Case().key() if len({str(row[name]) for row in rows}) > 1]


def _measured_columns(row: Row) -> list[str]:
    if "failed" in row:
        return ["no memory", "", "", "", ""]
    low, high = (f"{1e3 * row[name]:.3g}" for name in ("seconds_p10", "seconds_p90"))
    rates = (row["tflops_per_device"], row["percent_of_peak"], 100 * row["share_of_roofline"])
    return [f"{1e3 * row['seconds']:.3g}", f"{low}-{high}", *(f"{rate:.3g}" for rate in rates)]
