"""Decides which SQL is a valid expression in a recipe: a single expression over a record's columns that calls only
listed functions, so that it gives the same answer whenever it is evaluated.

DuckDB parses the SQL, and its parse tree is checked node by node. Only what is listed here is allowed, so that nothing
reads the clock, files, settings or other records, and nothing is random. Types with a time zone are not allowed either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from datakit.errors import RecipeError, suggestion

NODES = {
    "COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "CASE", "CAST", "FUNCTION", "TYPE",
}  # fmt: skip
NAMES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "LAMBDA": "a lambda or the operator ->",
    "STAR": "* or COLUMNS",
    "PARAMETER": "a parameter",
    "COLLATE": "COLLATE",
    "POSITIONAL_REFERENCE": "a positional reference",
}
OPERATORS = {
    "OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE", "OPERATOR_TRY", "COMPARE_IN",
    "COMPARE_NOT_IN", "ARRAY_EXTRACT", "ARRAY_SLICE", "STRUCT_EXTRACT",
}  # fmt: skip
EQUALITIES = {
    "COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM", "COMPARE_IN",
    "COMPARE_NOT_IN",
}  # fmt: skip
_FUNCTIONS = """
+ - * / // % ** ^ & | ~ << >> || ~~ !~~ ~~* !~~* ~~~ like_escape not_like_escape ilike_escape not_ilike_escape ^@
@> <@ &&
abs ceil ceiling floor round trunc sign sqrt pow power exp ln log log2 log10 greatest least isnan isinf isfinite
nullif if
length len strlen char_length character_length length_grapheme bit_length lower lcase upper ucase trim ltrim rtrim
left right substring substr string_split split split_part str_split concat concat_ws replace translate reverse
repeat lpad rpad contains starts_with prefix ends_with suffix position strpos instr ascii ord unicode chr md5
sha1 sha256 regexp_matches regexp_full_match regexp_extract regexp_extract_all regexp_replace regexp_split_to_array
regexp_escape levenshtein editdist3 damerau_levenshtein hamming jaccard jaro_similarity jaro_winkler_similarity
date_part datepart date_trunc datetrunc date_diff datediff date_sub datesub date_add make_date strptime
try_strptime strftime year month day hour minute second quarter week weekofyear dayofweek isodow dayofyear yearweek
isoyear decade century epoch epoch_ms to_days to_hours to_minutes to_seconds to_months to_weeks to_years
list_value row struct_pack struct_extract array_extract list_extract list_element list_contains list_has
array_contains array_has list_has_any list_has_all array_has_any array_has_all list_position list_slice array_slice
list_distinct list_unique array_length list_sort list_min list_max list_sum list_avg list_count cardinality
array_to_string map map_extract element_at map_keys map_values map_contains
"""
_TYPES = """
boolean tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint uhugeint float double decimal
varchar blob date time timestamp timestamp_s timestamp_ms timestamp_ns interval list struct map
"""
_ALIASES = """
bool logical int1 int2 int4 int8 int16 int32 int64 int short long signed integral uint8 uint16 uint32 uint64 float4
float8 real numeric dec char bpchar text string bytea binary varbinary datetime
"""
FUNCTIONS, TYPES, ALIASES = (frozenset(words.split()) for words in (_FUNCTIONS, _TYPES, _ALIASES))


def column_paths(database: Any, sql: str, place: str = "where") -> list[list[str]]:
    """Return the columns that an expression reads, each as a path of names. Raises RecipeError if the SQL is not
    allowed. place: the key that holds the expression, with which messages begin.
    """
    try:
        return _column_paths(database, sql)
    except RecipeError as error:
        raise RecipeError(f"{place}: {error}") from error


def equated_texts(database: Any, sql: str, column: str) -> list[str]:
    """Return the texts that an allowed expression tests for equality with a column, as in `column = 'text'` or `column
    IN ('text', 'other')`, negated or not, in alphabetical order.
    """
    found = set[str]()
    for node in _nodes(_parse(database, sql, f"SELECT (\n{sql}\n)")):
        if node["type"] in EQUALITIES:
            sides = node["children"] if "children" in node else [node["left"], node["right"]]
            if any(side.get("column_names") == [column] for side in sides):
                found.update(text for side in sides if (text := _text_of(side)) is not None)
    return sorted(found)


def _text_of(node: dict[str, Any]) -> str | None:
    """Return the text that a node stands for, in the form of DuckDB 2 (`literal`) or 1 (`value`); None for others."""
    literal, value = node.get("literal", {}), node.get("value", {})
    if literal.get("kind") == "STRING":
        return literal["text"]
    return value["value"] if value.get("type", {}).get("id") == "VARCHAR" and not value["is_null"] else None


def _column_paths(database: Any, sql: str) -> list[list[str]]:
    _parse(database, sql, f"SELECT {sql}")  # rejects SQL that would close the parentheses added below
    tree = _parse(database, sql, f"SELECT (\n{sql}\n)")
    nodes = list(_nodes(tree))
    for node in nodes:
        _check(node, sql)
    return [list(path) for path in sorted({tuple(node["column_names"]) for node in nodes if "column_names" in node})]


def _parse(database: Any, sql: str, query: str) -> dict[str, Any]:
    """Return the tree of a query's only expression."""
    result = json.loads(database.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0])
    if result.get("error"):
        raise RecipeError(f"{sql!r} is not a SQL expression: {result['error_message']}")
    query_node = result["statements"][0]["node"]
    parts = query_node.get("select_list", [])
    rest = [query_node.get(name) for name in ("modifiers", "where_clause", "group_expressions", "having", "qualify")]
    source = query_node.get("from_table", {}).get("type")
    if len(result["statements"]) != 1 or len(parts) != 1 or source != "EMPTY" or any(rest) or parts[0]["alias"]:
        raise RecipeError(f"{sql!r} is not a single SQL expression; write one expression over the columns")
    return parts[0]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)


def _check(node: dict[str, Any], sql: str) -> None:
    kind = node["class"]
    if kind not in NODES or (kind == "OPERATOR" and node["type"] not in OPERATORS):
        used = NAMES.get(kind, node["type"])
        raise RecipeError(f"{sql!r} uses {used}; only expressions over one record's columns are allowed")
    if kind == "FUNCTION":
        _check_function(node, sql)
    if kind == "TYPE" and node["type_name"].lower() not in TYPES | ALIASES:
        name = node["type_name"]
        raise RecipeError(f"{sql!r} uses the type {name}, which is not allowed; {suggestion(name.lower(), TYPES)}")


def _check_function(node: dict[str, Any], sql: str) -> None:
    name = node["function_name"].lower()
    qualified = node.get("schema") or node.get("catalog") or len(node.get("qualified_name", {}).get("path", [])) > 1
    if name not in FUNCTIONS or qualified:
        raise RecipeError(
            f"{sql!r} calls {name}, which is not on the list of functions that depend on their arguments alone; "
            f"{suggestion(name, FUNCTIONS)}"
        )
    if node.get("distinct") or node.get("filter") or node.get("order_bys", {}).get("orders"):
        raise RecipeError(f"{sql!r} calls {name} with DISTINCT, FILTER or ORDER BY; none of these is allowed")
