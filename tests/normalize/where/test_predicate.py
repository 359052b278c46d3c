"""The recipe's `where`, evaluated."""

from __future__ import annotations

import os
import subprocess
import sys
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
        ("lagn = 'de'", ColumnError, "source 'shelf': where: no record has the column 'lagn'; did you mean 'lang'"),
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


PRINT_MATCHES = """
import sys
import pyarrow as pa
from datakit.normalize.where.predicate import Predicate
seconds = ["2020-01-01 00:30:00 +0000", "2020-12-27 23:30:00 -0500", "2021-07-01 12:00:00 +0200", None]
table = pa.table({"s": pa.array(seconds), "n": [1, 2, 3, 4]})
types = table.schema.serialize().to_pybytes()
for sql in sys.argv[1:]:
    print(Predicate(sql, types).matches(table, "file").tolist())
"""
OF_TIME_ZONES = [
    "hour(strptime(s, '%Y-%m-%d %H:%M:%S %z')) > 12",
    "day(try_strptime(s, '%Y-%m-%d %H:%M:%S %z')) = 1",
    "year(strptime(s, '%Y-%m-%d %H:%M:%S %z')) = 2020",
    "strftime(strptime(s, '%Y-%m-%d %H:%M:%S %z'), '%H') = '00'",
    "CAST(strptime(s, '%Y-%m-%d %H:%M:%S %z') AS DATE) = DATE '2020-12-28'",
    "CAST(strptime(s, '%Y-%m-%d %H:%M:%S %z') AS VARCHAR) LIKE '%00:30%'",
    "date_part('week', strptime(s, '%Y-%m-%d %H:%M:%S %z')) = 53",
    "date_trunc('day', strptime(s, '%Y-%m-%d %H:%M:%S %z')) > DATE '2020-12-27'",
]


def matches(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_MATCHES, *OF_TIME_ZONES],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_result_does_not_depend_on_the_time_zone_and_the_locale_of_the_machine() -> None:
    """`%z` gives points in time, whose parts DuckDB computes in the time zone and calendar of the connection."""
    found = matches(TZ="UTC", LC_ALL="C", LANG="C")
    assert found[:3] == ["[False, False, False, False]", "[True, False, True, False]", "[True, True, False, False]"]
    for zone, locale in (("America/New_York", "en_US.UTF-8"), ("Asia/Tokyo", "th_TH@calendar=buddhist")):
        assert matches(TZ=zone, LC_ALL=locale, LANG=locale) == found
