"""The files of JSONTestSuite, each read as a whole file: none crashes a reader or is lost uncounted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.errors import InputError
from datakit.normalize.formats import JSON, JSON_ARRAY
from tests.support.data import need_data
from tests.support.normalize.readers import read, rows

# nothing, a blank line, and a byte order mark: as JSON Lines, files without records
NO_RECORDS = {"n_structure_no_data.json", "n_single_space.json", "n_structure_UTF8_BOM_no_data.json"}


@pytest.mark.parametrize("format", [JSON, JSON_ARRAY])
@pytest.mark.parametrize("folder", ["test_parsing", "test_transform"])
def test_every_file_is_read_counted_or_refused(tmp_path: Path, format: str, folder: str) -> None:
    """Read as lines, everything but objects is quarantined. Read as an array, each element is kept or quarantined."""
    cases = sorted((need_data() / "pathological" / "json" / folder).glob("*.json"))
    assert len(cases) > 20
    accepted: list[str] = []
    for case in cases:
        (tmp_path / case.name).write_bytes(case.read_bytes())
        try:
            found, counts = read(tmp_path, case.name, format=format)
        except InputError as error:
            assert case.name in str(error)
            assert not case.name.startswith("y_") or not _is_array_of_objects(case), case.name
            continue
        kept = len(rows(found))
        assert counts.counters["normalize/records_in"] == kept + sum(one.records for one in counts.quarantined), case
        if case.name.startswith("n_") and format == JSON and not counts.quarantined:
            accepted.append(case.name)
        if _is_array_of_objects(case):
            assert kept == len(json.loads(case.read_bytes())), case.name
    assert set(accepted) <= NO_RECORDS


def _is_array_of_objects(case: Path) -> bool:
    try:
        value = json.loads(case.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)
