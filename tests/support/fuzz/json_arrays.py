"""Compares JSON arrays with JSON Lines: the elements of an array give the same table as the same values on lines, for
any cut into chunks. Only lines that are JSON take part, since others have no counterpart in an array.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from datakit.errors import ColumnError, EmptyStageError, RefusedInputsError
from datakit.normalize.readers import line_chunks
from datakit.normalize.readers.json_arrays import elements
from tests.support.fuzz.json_cases import CASES, TYPES, Case
from tests.support.normalize.sources import check_contract, normalize


def check(case: Case) -> None:
    """Normalize the values of a case as lines, and as arrays: the same table, and as many quarantined records."""
    values = {
        name: [line for line in content.split(b"\n") if _is_json(line)] for name, content in case.contents.items()
    }
    lines = {name: b"\n".join(found) for name, found in values.items()}
    arrays = {name: b"[" + b",\n ".join(found) + b"]\n" for name, found in values.items()}
    expected = _normalized(case, lines, 1 << 20, "json")
    for chunk in (1 << 20, case.chunk):
        found = _normalized(case, arrays, chunk, "json-array")
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found[0].schema.equals(expected[0].schema), f"{expected[0].schema} became {found[0].schema}"
            assert repr(found[0].to_pylist()) == repr(expected[0].to_pylist())
            assert found[1] == expected[1]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _normalized(case: Case, contents: dict[str, bytes], chunk: int, form: str) -> tuple[pa.Table, list[str]] | None:
    with TemporaryDirectory() as name, ExitStack() as patches:
        for module in (line_chunks, elements):
            patches.enter_context(patch.object(module, "CHUNK_BYTES", chunk))
        folder = Path(name) / "in"
        folder.mkdir()
        for path, content in contents.items():
            (folder / path).write_bytes(content)
        settings: dict[str, Any] = {"where": case.where} if case.where else {}
        if case.where and case.declared:
            settings["types"] = {column: kind for column, kind in TYPES.items() if column in case.where.split()}
            settings["types"] |= {"s": "string"} if "(s)" in case.where else {}
        settings |= {"drop": list(case.drop), "max_quarantined": 1000, "format": form}
        try:
            result = normalize(name, folder, **settings)
        except (RefusedInputsError, ColumnError, EmptyStageError):
            return None
        check_contract(result)
        return result.table(), sorted(file for file, _ in result.quarantined())


__all__ = ["CASES", "Case", "check"]
