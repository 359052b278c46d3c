"""Finding lines: nesting, brackets, and objects that share or span lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.normalize import kernels
from datakit.normalize.readers import json_lines
from tests.support.normalize.readers import read_json, rows


@pytest.mark.parametrize("depth", [10, 47, 48, 49, 500, 1000, 5000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_quarantined(tmp_path: Path, depth: int, opening: str, closing: str) -> None:
    deep = '{"text":"deep","v":' + opening * depth + "1" + closing * depth + "}"
    data = b'{"text":"before"}\n' + deep.encode() + b'\n{"text":"after"}\n'
    found, counts = read_json(tmp_path, data)
    texts = [row["text"] for row in rows(found)]
    if depth < 48:
        assert texts == ["before", "deep", "after"]
    else:
        assert texts == ["before", "after"]
        assert [(r.position, r.reason) for r in counts.quarantined] == [(18, "nested deeper than 48 levels (line 2)")]


def test_brackets_in_strings_do_not_nest(tmp_path: Path) -> None:
    texts = ['"' + "[{" * 1000, "\\" * 99 + '"{[' * 200, "{" * 3000]
    data = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    found, counts = read_json(tmp_path, data)
    assert [row["text"] for row in rows(found)] == texts and not counts.quarantined


def test_objects_must_not_share_or_span_lines(tmp_path: Path) -> None:
    data = b'{"text":"a"}{"text":"b"}\n{"text":\n"c"}\n{"text":"d"}\n'
    found, counts = read_json(tmp_path, data)
    assert [row["text"] for row in rows(found)] == ["d"]
    assert [record.position for record in counts.quarantined] == [0, 25, 34]


def test_kernel_and_caller_agree_on_constants() -> None:
    """The constant is repeated because `kernels` is imported late: it imports numba."""
    assert json_lines.DEEP == kernels.DEEP
