"""Removes exact duplicates by hand: reads JSON Lines in gzip, keeps the first of equal texts, and writes id, text and
source_id as Parquet with zstd-3. Imports nothing from datakit.

    python exact_duplicates.py floor|polars|duckdb DIRECTORY OUTPUT

`floor` is a loop over isal, orjson and xxh3, in one process and with all documents in memory, without any check. So it
shows how little CPU time the work can take with well-kept libraries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def floor(files: list[Path], output: Path) -> None:
    """Hash every text, and write each file's new texts sorted by hash."""
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq
    import xxhash
    from isal import igzip  # pyright: ignore[reportMissingImports]

    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("source_id", pa.string())])
    seen = set[bytes]()
    with pq.ParquetWriter(output, schema, compression="zstd", compression_level=3, use_dictionary=False) as writer:
        for path in files:
            with igzip.open(path) as file:
                records = [orjson.loads(line) for line in file.read().splitlines()]
            found: dict[bytes, tuple[str, str]] = {}
            for record in records:
                mark = xxhash.xxh3_128_digest(record["text"])
                if mark not in seen:
                    seen.add(mark)
                    found[mark] = (record["text"], record["id"])
            order = sorted(found)
            columns = [[mark.hex() for mark in order], *([found[mark][part] for mark in order] for part in (0, 1))]
            writer.write_table(pa.table([pa.array(column) for column in columns], schema=schema))


def polars(files: list[Path], output: Path) -> None:
    """Polars uses its own 64-bit hash."""
    import polars as pl  # pyright: ignore[reportMissingImports]

    rows = pl.concat([pl.read_ndjson(path).select("id", "text") for path in files])
    rows = rows.with_columns(hash=pl.col("text").hash()).unique("text", keep="first").sort("hash")
    rows.write_parquet(output, compression="zstd", compression_level=3)


def duckdb(files: list[Path], output: Path) -> None:
    """DuckDB identifies texts by their MD5, on one thread."""
    import duckdb as db  # pyright: ignore[reportMissingImports]

    connection = db.connect()
    connection.execute("set threads = 1")
    rows = "read_json(?, columns = {id: 'VARCHAR', text: 'VARCHAR'}, format = 'newline_delimited')"
    connection.execute(
        f"copy (select md5(text) as hash, any_value(text) as text, min(id) as source_id from {rows} "
        f"group by md5(text) order by hash) to '{output}' (format parquet, compression zstd, compression_level 3)",
        [[str(path) for path in files]],
    )


PROGRAMS: dict[str, Callable[[list[Path], Path], None]] = {"floor": floor, "polars": polars, "duckdb": duckdb}


def main() -> None:
    """Run one of the programs."""
    program, directory, output = sys.argv[1:]
    PROGRAMS[program](sorted(Path(directory).iterdir()), Path(output))


if __name__ == "__main__":
    main()
