"""Opens the DuckDB database in which expressions of recipes are evaluated, and words its errors without quoting values.

Besides a record, only these settings could influence a result. DuckDB's own defaults for them depend on the machine or
on the version.
"""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "enable_external_access": False,
    "default_collation": "",
    "default_order": "ASC",
    "default_null_order": "NULLS_LAST",
    "integer_division": False,
    "ieee_floating_point_ops": True,
    "old_implicit_casting": False,
}
LOCAL = "SET TimeZone = 'UTC'; SET Calendar = 'gregorian'"  # DuckDB's defaults are the machine's time zone and calendar


def open_database() -> Any:
    """Return a connection to a new database in memory, on which the result of an expression depends in no way."""
    import duckdb  # imported only here, because the import is slow and few recipes have expressions

    database = duckdb.connect(config=SETTINGS)
    database.execute(LOCAL)
    return database


def reason(error: Exception) -> str:
    """Return DuckDB's message if it is about the SQL, else the error's type, since other messages quote values."""
    import duckdb

    about_sql = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)
    return str(error).split("\n")[0] if isinstance(error, about_sql) else type(error).__name__
