"""The recipe's `where` and `transform`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from datakit.errors import ColumnError, RecipeError
from tests.support.normalize.sources import check_contract, normalize, write_lines


def test_where_reads_upstream_columns(tmp_path: Path) -> None:
    records = [{"text": f"t{n}", "n": n, "lang": "de" if n % 2 else None, "m": {"k": n}} for n in range(20)]
    records += [{"text": "no columns at all"}]
    write_lines(tmp_path / "in.jsonl", *records)
    result = normalize(tmp_path, tmp_path / "in.jsonl", where="lang = 'de' AND n > 5 AND m.k < 15")
    assert {row["text"] for row in result.rows()} == {f"t{n}" for n in (7, 9, 11, 13)}
    assert result["where_dropped"] == 17
    check_contract(result)


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ("lagn = 'de'", ColumnError, "'lagn'; did you mean 'lang'"),
        ("lang = = 'de'", RecipeError, "not a SQL predicate"),
        ("nothing(lang)", RecipeError, "nothing"),
        ("cast(text as integer) > 1", RecipeError, r"in\.jsonl: ConversionException$"),
    ],
)
def test_invalid_predicate_is_refused(tmp_path: Path, where: str, error: type[Exception], words: str) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "secret", "lang": "de"})
    with pytest.raises(error, match=words) as caught:
        normalize(tmp_path, tmp_path / "in.jsonl", where=where)
    assert "secret" not in str(caught.value)


def longer(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that drops a record, adds two, and makes the text from another column."""
    records = [record for record in batch.to_pylist() if record["n"] != 1]
    made = [{"text": f"{record['body']}!", "n": record["n"]} for record in records]
    return pa.RecordBatch.from_pylist([*made, *({"text": f"new {n}", "n": n} for n in range(2))])


def test_transform_changes_records(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"body": f"b{n}", "n": n} for n in range(3)))
    result = normalize(tmp_path, tmp_path / "in.jsonl", transform=f"{__name__}:longer", transform_version=1)
    assert sorted(row["text"] for row in result.rows()) == ["b0!", "b2!", "new 0", "new 1"]
    assert result["transform_added"] == 1
    check_contract(result)
