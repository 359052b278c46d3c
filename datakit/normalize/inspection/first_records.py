"""Looks at the first records of a local file for `datakit plan`, and warns about settings that name a column which
these records do not have. Reads at most a few MiB, compiles no kernel, and leaves every other mistake to the run.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from datakit.errors import DatakitError, suggestion
from datakit.normalize import formats
from datakit.normalize.columns.column_choice import wanted_paths
from datakit.normalize.config import QUOTED, Config
from datakit.normalize.readers.streams import decompressed
from datakit.normalize.readers.web.columns import known_columns
from datakit.normalize.settings.paths import ColumnPath
from datakit.normalize.settings.splits import COLUMN
from datakit.storage import urls

LINES = 100
UNREADABLE = (DatakitError, OSError, ValueError, csv.Error, pa.ArrowException)


def missing_columns(source: str, base: str, path: str, config: Config) -> Iterator[str]:
    """Yield a warning for each setting of a source that names a column which the first records of the file at `path`
    lack. Yields nothing if the columns cannot be determined cheaply, for example because a transform is applied.
    """
    if config.transform is not None or not urls.is_local(base):
        return
    try:
        names = _columns(urls.join(base, path), formats.format_of(path, config.format), config)
    except UNREADABLE:
        return
    paths = [("text", path) for path in config.text_paths]
    paths += [("id", ColumnPath(config.id, (config.id,)))] * (config.id not in ("", "id"))
    paths += [(one.setting, one.path) for one in wanted_paths(config) if one.setting != "text"]
    wanted = dict.fromkeys((setting, path.whole if path.whole in names else path.column) for setting, path in paths)
    names += [COLUMN] if config.splits else []
    for setting, name in wanted if names else ():
        if name not in names:
            known = suggestion(name, names)
            yield f"warning: source {source!r}: {setting}: the first records of {path} have no column {name!r}; {known}"


def _columns(url: str, kind: str, config: Config) -> list[str]:
    """Return the names of the columns of a file's first records."""
    if kind == formats.TEXT:
        return ["text", "id"]
    if kind in formats.WEB_ARCHIVES:
        return [*known_columns(config).names, config.text_column or "text"]
    if kind in (formats.JSON_ARRAY, formats.MEDIAWIKI, formats.WEBDATASET, formats.DOLMA):
        return []
    with urls.open_read(url) as file:
        if kind == formats.PARQUET:
            return pq.read_schema(file).names
        if kind == formats.ARROW:
            return pa.ipc.open_file(file).schema.names
        data = next(decompressed(file, url), b"").removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    *lines, rest = data.split("\n")
    lines = lines or [rest]
    if kind == formats.JSON:
        records = [json.loads(line) for line in lines[:LINES] if line.strip()]
        return list(dict.fromkeys(name for record in records if isinstance(record, dict) for name in record))
    quoted = config.quoting == QUOTED or (config.quoting == formats.AUTO and kind == formats.CSV)
    rows = csv.reader(
        lines[:1], delimiter="," if kind == formats.CSV else "\t", quoting=0 if quoted else csv.QUOTE_NONE
    )
    return next(rows, [])
