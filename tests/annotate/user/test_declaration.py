"""A declaration that cannot be right is refused when the module is imported, with the name of the argument."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

import datakit
from datakit.annotate.user.declaration import DECLARED, Declaration
from datakit.errors import UsageError
from tests.support.paths import REPOSITORY

WRITES = {"n": pa.int64()}


def test_declaration_has_the_defaults_of_the_parameters() -> None:
    @datakit.annotator(version=3, writes=WRITES, reads=["text", "url"], sparse=True)
    def counted(batch: pa.RecordBatch, mark: str = "!", *, least: int = 2, marks: tuple[str, ...] = ("a",)) -> Any:
        return batch

    assert getattr(counted, DECLARED) == Declaration(
        3, ("text", "url"), pa.schema([("n", pa.int64())]), True, {"mark": "!", "least": 2, "marks": ["a"]}
    )
    assert counted("unchanged") == "unchanged"  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"version": 0}, "version is 0"),
        ({"version": True}, "version is True"),
        ({"version": "1"}, "version is '1'"),
        ({"reads": "text"}, "reads is 'text'"),
        ({"reads": []}, "reads is"),
        ({"reads": ["text", "text"]}, "reads is"),
        ({"writes": {}}, "writes must name"),
        ({"writes": {"id": pa.string()}}, "may be 'id'"),
        ({"writes": {"when": pa.timestamp("ns")}}, "column 'when' has type timestamp"),
        ({"writes": {"n": int}}, "column 'n' has type <class 'int'>"),
        ({"writes": {"n": pa.list_(pa.struct([("a", pa.decimal128(5))]))}}, "column 'n'"),
    ],
    ids=str,
)
def test_wrong_declarations_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        datakit.annotator(**{"version": 1, "writes": WRITES, **arguments})(lambda batch: batch)


def needs(batch: Any, mark: str) -> Any: ...
def takes_all(batch: Any, *marks: str) -> Any: ...
def holds_an_object(batch: Any, mark: object = object()) -> Any: ...


@pytest.mark.parametrize(
    ("function", "named"), [(needs, "'mark' of needs"), (takes_all, "marks"), (holds_an_object, "a default of holds")]
)
def test_parameters_that_a_recipe_cannot_set_are_refused(function: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        datakit.annotator(version=1, writes=WRITES)(function)


def test_examples_on_the_page_work() -> None:
    page = (REPOSITORY / "docs" / "annotate" / "user.md").read_text()
    found: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "my_annotators", "exec"), found)
    batch = pa.record_batch({"text": pa.array(["a!!", "", "é[[x]]!?"], pa.large_string())})
    result, spans = found["exclamations"](batch), found["markers"](batch)
    assert result.to_pydict() == {"exclamations": [2, 0, 1]}
    assert result.schema == getattr(found["exclamations"], DECLARED).schema
    assert spans.to_pydict() == {"spans": [[], [], [{"start": 2, "stop": 7, "kind": "marker"}]]}
    assert spans.schema == getattr(found["markers"], DECLARED).schema
