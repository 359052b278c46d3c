"""Messages about exceptions in a user's own code."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from datakit.engine.user_code import user_code
from datakit.engine.worker.child import describe_error
from datakit.errors import ColumnError, UserCodeError

SECRET = "the text of a document"
BATCH = pa.RecordBatch.from_pylist([{"body": SECRET, "n": 1}])


def misspelled(batch: pa.RecordBatch) -> object:
    return batch.column("bdy")


def not_a_number(batch: pa.RecordBatch) -> object:
    return [int(value) for value in batch.column("body").to_pylist()]


def not_a_number_in_arrow(batch: pa.RecordBatch) -> object:
    return pc.call_function("cast", [batch.column("body")], pc.CastOptions.safe(pa.int64()))


def missing_method(batch: pa.RecordBatch) -> object:
    return batch.without_blanks()  # pyright: ignore[reportAttributeAccessIssue]


def own_words(batch: pa.RecordBatch) -> object:
    raise ValueError(f"column 'body' has {batch.num_rows} rows, which is odd")


def failure(function: object) -> str:
    with pytest.raises(UserCodeError) as caught, user_code("transform 'mine:f'", "a batch", ["body", "n"]):
        function(BATCH)  # pyright: ignore[reportCallIssue]
    reported = describe_error(caught.value)
    assert reported["cause"] == "error"
    assert SECRET not in reported["message"]
    return reported["message"]


@pytest.mark.parametrize(
    ("function", "line", "message"),
    [
        (misspelled, 'return batch.column("bdy")', 'KeyError: Field "bdy" does not exist in schema'),
        (not_a_number, "int(value)", "ValueError: invalid literal for int() with base 10: ... (24 more characters"),
        (not_a_number_in_arrow, "pc.call_function(", "ArrowInvalid: Failed to parse string: ... ("),
        (
            missing_method,
            "batch.without_blanks()",
            "'pyarrow.lib.RecordBatch' object has no attribute 'without_blanks'",
        ),
        (own_words, "raise ValueError(", "ValueError: column 'body' has 1 rows, which is odd"),
    ],
)
def test_traceback_and_message_are_shown_without_values(function: object, line: str, message: str) -> None:
    said = failure(function)
    assert said.startswith("transform 'mine:f' failed; it received a batch\n")
    assert line in said
    assert message in said
    assert "engine/user_code.py" not in said.replace("test_user_code", "")


def test_everything_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAKIT_DEBUG", "1")
    with pytest.raises(UserCodeError, match=SECRET), user_code("f", "a batch"):
        not_a_number(BATCH)


def test_failed_allocations_and_our_own_errors_keep_their_meaning() -> None:
    for error in (MemoryError(), ColumnError("a column")):
        with pytest.raises(type(error)), user_code("f", "a batch"):
            raise error
    with pytest.raises(UserCodeError) as caught, user_code("f", "a batch"):
        raise RuntimeError("no memory") from MemoryError()
    assert describe_error(caught.value)["cause"] == "memory"
