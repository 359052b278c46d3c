"""The recipe's `where`, evaluated."""

from __future__ import annotations

from pathlib import Path

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
        ("lang = = 'de'", RecipeError, "not a SQL expression"),
        ("nothing(lang)", RecipeError, "nothing"),
        ("cast(text as integer) > 1", RecipeError, r"in\.jsonl: ConversionException$"),
    ],
)
def test_invalid_predicate_is_refused(tmp_path: Path, where: str, error: type[Exception], words: str) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "secret", "lang": "de"})
    with pytest.raises(error, match=words) as caught:
        normalize(tmp_path, tmp_path / "in.jsonl", where=where)
    assert "secret" not in str(caught.value)
