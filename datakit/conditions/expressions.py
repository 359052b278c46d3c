"""Evaluates the expressions of all rules on a table of records with DuckDB, in one query. The result for a record
depends on that record alone (see `sql/expression.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.conditions.config import DOCUMENT, EDITED, SOURCE, Rule
from datakit.conditions.edited_facts import fact_names
from datakit.errors import RecipeError, suggestion
from datakit.sql.database import open_database, reason
from datakit.sql.expression import column_paths, equated_texts

ROW = "__row"
TEXT = "text"
NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")


@dataclass(frozen=True)
class Answers:
    """The values of one rule's expressions. where: bool [N], false where `missing` is true. value: float64 [N], the
    number `by` (0 for a rule without it). missing: bool [N], true where `where` is null, or where it is true and `by`
    is null or NaN.
    """

    where: np.ndarray
    value: np.ndarray
    missing: np.ndarray


class Conditions:
    """The parsed expressions of some rules. edits: the names of the edits about which they may read; None if they are
    evaluated before texts are edited. Raises RecipeError if an expression is not allowed.
    """

    def __init__(self, rules: Sequence[Rule], edits: Sequence[str] | None = None) -> None:
        self._rules, self._edits = rules, edits
        self._database = open_database()
        self.wanted: dict[str, list[str]] = {}  # the columns that the expressions read, by struct
        self._readers: dict[tuple[str, str], str] = {}  # a struct and a column -> the first rule that reads it
        for rule in rules:
            for name, sql in (("where", rule.where), ("by", rule.by)):
                for path in column_paths(self._database, sql, f"rule {rule.name!r}, {name}") if sql else ():
                    self._want(path, rule, sql)

    def _want(self, path: Sequence[str], rule: Rule, sql: str) -> None:
        if list(path) == [SOURCE]:
            return
        if len(path) < 2 or path[0] == SOURCE:
            raise RecipeError(
                f"rule {rule.name!r}: {sql!r} reads {'.'.join(path)}; name a column of an annotator, as in "
                f"language.score, a column of the document, as in {DOCUMENT}.url, or {SOURCE}"
            )
        if path[0] == DOCUMENT and path[1] == TEXT:
            raise RecipeError(
                f"rule {rule.name!r}: {sql!r} reads the text of documents; only annotators read texts, so that a "
                "rule can change without reading them again"
            )
        self._readers.setdefault((path[0], path[1]), rule.name)
        columns = self.wanted.setdefault(path[0], [])
        if path[1] not in columns:
            columns.append(path[1])

    @property
    def annotators(self) -> list[str]:
        """The annotators whose tables the expressions read."""
        return [name for name in self.wanted if name not in (DOCUMENT, EDITED)]

    def reads(self, name: str, column: str) -> str:
        """Return the beginning of a message: the first rule that reads a column, and the column."""
        return f"rule {self._readers[name, column]!r} reads {name}.{column}"

    def unknown_sources(self, sources: Sequence[str]) -> list[tuple[str, str]]:
        """Return the name of a rule and a message for each source that an expression compares `source` with and that
        is not in `sources`: such a condition is always false, or always true if it is negated.
        """
        return [
            (rule.name, f"{sql!r} compares {SOURCE} with {text!r}, but no source is named so; "
             f"{suggestion(text, sources)}")
            for rule in self._rules
            for sql in (rule.where, rule.by)
            if sql
            for text in equated_texts(self._database, sql, SOURCE)
            if text not in sources
        ]  # fmt: skip

    def check(self, annotators: Sequence[str], columns: Mapping[str, str] | None = None) -> None:
        """Raise RecipeError if an expression reads an annotator that is not in `annotators`, or a column of documents
        that is not in `columns`, those of all sources (None: unknown yet).
        """
        for name, wanted in self.wanted.items():
            if name == DOCUMENT:
                unknown = [one for one in wanted if columns is not None and one not in columns]
                if unknown:
                    raise RecipeError(
                        f"{self.reads(DOCUMENT, unknown[0])}, but no source has this column; "
                        f"{suggestion(unknown[0], list(columns or ()))}"
                    )
            elif name == EDITED:
                self._check_edited(wanted)
            elif name not in annotators:
                raise RecipeError(
                    f"{self.reads(name, wanted[0])}, but the recipe has no [annotate.{name}]; add this table; "
                    f"{suggestion(name, [*annotators, DOCUMENT])}"
                )

    def _check_edited(self, wanted: Sequence[str]) -> None:
        if self._edits is None:
            raise RecipeError(
                f"{self.reads(EDITED, wanted[0])}, but [[rules]] are applied before texts are edited; move the rule "
                "to [[select.rules]]"
            )
        for one in wanted:
            if one not in (known := fact_names(self._edits)):
                raise RecipeError(f"{self.reads(EDITED, one)}, which does not exist; {suggestion(one, known)}")

    def answers(self, records: pa.Table, place: str) -> list[Answers]:
        """Return the answers of each rule for N records. place: the URL of their partition, for messages. Raises
        RecipeError for an expression that fails, or whose value has the wrong type.
        """
        return [
            self._answer(rule, records.num_rows, *found)
            for rule, found in zip(self._rules, self._values(records, place), strict=True)
        ]

    def _values(self, records: pa.Table, place: str) -> list[tuple[Any, Any]]:
        rows = records.append_column(ROW, pa.array(np.arange(records.num_rows)))
        try:
            found = self._query(rows, self._rules)
        except self._errors():
            for rule in self._rules:  # find the rule to name
                try:
                    self._query(rows, [rule])
                except self._errors() as error:
                    raise RecipeError(f"rule {rule.name!r} fails on {place}: {reason(error)}") from error
            raise
        return found

    def _errors(self) -> type[Exception]:
        import duckdb

        return duckdb.Error

    def _query(self, rows: pa.Table, rules: Sequence[Rule]) -> list[tuple[Any, Any]]:
        """Return the values of `where` and `by` of each rule, as masked or plain arrays; None for an absent one."""
        terms = [
            f"(\n{sql}\n) AS {kind}{number}"
            for number, rule in enumerate(rules)
            for kind, sql in (("w", rule.where), ("b", rule.by))
            if sql
        ]
        self._database.register("records", rows)
        result = self._database.execute(f"SELECT {', '.join(terms)}, {ROW} FROM records")
        self._check_types({name: str(kind) for name, kind, *_ in result.description}, rules)
        columns = result.fetchnumpy()
        order = np.argsort(columns[ROW], kind="stable")
        if len(order) != rows.num_rows:
            raise AssertionError(f"DuckDB returned {len(order)} rows for {rows.num_rows} records")
        found = {name: values[order] for name, values in columns.items()}
        return [(found.get(f"w{number}"), found.get(f"b{number}")) for number in range(len(rules))]

    def _check_types(self, kinds: Mapping[str, str], rules: Sequence[Rule]) -> None:
        for number, rule in enumerate(rules):
            where, by = kinds.get(f"w{number}", "BOOLEAN"), kinds.get(f"b{number}", "DOUBLE")
            if where not in ("BOOLEAN", "bool", '"NULL"'):
                raise RecipeError(f"rule {rule.name!r}: where is {where}, not a condition; compare it with a value")
            if not by.removeprefix("U").startswith(NUMBERS) and by not in ("NUMBER", '"NULL"'):
                raise RecipeError(f"rule {rule.name!r}: by is {by}, not a number")

    def _answer(self, rule: Rule, count: int, where: Any, by: Any) -> Answers:
        true, null = _filled(where, count, True, bool)
        value, unknown = _filled(by, count, 0.0, np.float64)
        unknown = unknown | np.isnan(value)
        missing = null | (true & unknown)
        return Answers(true & ~missing, np.where(unknown, 0.0, value) + 0.0, missing)  # + 0.0: there is no -0.0


def _filled(column: Any, count: int, default: Any, kind: type) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a column, [N], and where it is null, bool [N]; `default` if there is no column."""
    if column is None:
        return np.full(count, default, kind), np.zeros(count, bool)
    null = np.ma.getmaskarray(column)
    filler = np.zeros((), kind)
    return np.where(null, filler, np.ma.getdata(column)).astype(kind), null
