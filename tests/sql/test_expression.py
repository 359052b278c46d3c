"""A `where` is one expression of a record, with functions that depend on their arguments alone."""

from __future__ import annotations

import duckdb
import pytest

from datakit.errors import RecipeError
from datakit.sql.database import open_database
from datakit.sql.expression import column_paths, equated_texts


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("random() < 0.5", "calls random"),
        ("now() > day", "calls now"),
        ("getenv('HOME') = 'x'", "calls getenv"),
        ("current_setting('threads') = '1'", "calls current_setting"),
        ("sum(n) > 1", "calls sum"),
        ("main.lower(x) = 'a'", "calls lower"),
        ("row_number() OVER () = 1", "uses a window function"),
        ("(SELECT true)", "uses a subquery"),
        ("n IN (SELECT 1)", "uses a subquery"),
        ("true) OR (n > 500", "not a SQL expression"),
        ("n > 5; SELECT true", "not a single SQL expression"),
        ("n > 5 ORDER BY n", "not a single SQL expression"),
        ("n > 5, n < 9", "not a SQL expression|not a single"),
        ("n FROM read_csv('x')", "not a SQL expression|not a single"),
        ("len(list_filter(x, lambda y: y > 1)) > 0", "calls list_filter|uses a lambda"),
        ("x::TIMESTAMPTZ > '2020-01-01'", "uses the type"),
        ("*", "uses .* or COLUMNS|not a SQL expression"),
        ("lower(DISTINCT x) = 'a'", "DISTINCT"),
    ],
)
def test_what_is_not_a_function_of_the_record_is_refused(sql: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        column_paths(duckdb.connect(), sql)


@pytest.mark.parametrize(
    "sql",
    [
        "n > 5 AND lang = 'de' -- a comment",
        "n BETWEEN 1 AND 2 OR n NOT IN (3, 4) OR x IS NULL",
        "CASE WHEN n % 2 = 0 THEN lower(x) LIKE '%a' ELSE x ILIKE 'b%' END",
        "CAST(x AS DECIMAL(10, 2)) > -n",
        "try_cast(x AS DATE) >= DATE '2020-01-01' AND year(try_cast(x AS DATE)) > 1",
        "m.k = 1 AND list_contains(tags, 'a') AND tags[1] = 'b'",
        "regexp_matches(x, 'a+') AND x ~ 'a' AND length(trim(x)) > 3",
    ],
)
def test_expressions_of_a_record_are_allowed(sql: str) -> None:
    assert column_paths(duckdb.connect(), sql)


@pytest.mark.parametrize(
    ("sql", "texts"),
    [
        ("source = 'web'", ["web"]),
        ("'it''s' <> source", ["it's"]),
        ("source IN ('b', lower('X'), 'a') AND NOT source IS DISTINCT FROM 'c'", ["a", "b", "c"]),
        ("source NOT IN ('a')", ["a"]),
        ("lower(source) = 'a' OR document.source = 'b' OR source LIKE 'c' OR source > 'd' OR source = NULL", []),
        ("source = document.a OR 'x' = 'y' OR n IN (1, 2)", []),
    ],
)
def test_texts_that_are_tested_for_equality_with_a_column(sql: str, texts: list[str]) -> None:
    assert equated_texts(open_database(), sql, "source") == texts
