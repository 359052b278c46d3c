"""Explains why no document has a given source id: reads the files of each source again, finds the record with this id,
and says why normalize left it out.

Files are read again only if they are on a disk or in the root, and have at most READ_AGAIN bytes in total. The
directory of files outside the root is taken from the logs of the runs: a root can be moved, so its manifests hold no
absolute paths. For a source whose files are not read, the message states how many records were left out and why.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
from pyarrow import types

from datakit.download.stage import RAW
from datakit.engine.scheduler.finish import read_quarantine
from datakit.engine.task import Tolerance
from datakit.errors import DatakitError
from datakit.normalize import formats
from datakit.normalize.archives.index import has_archives
from datakit.normalize.columns.paths_in_types import mistake
from datakit.normalize.columns.schema_union import fit, fit_column
from datakit.normalize.columns.upstream_columns import is_documents
from datakit.normalize.config import Config
from datakit.normalize.readers.base import Chunk, ReadContext
from datakit.normalize.readers.dolma.attribute_files import attribute_files
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import cut_slices, read_slice
from datakit.normalize.record_counts import RecordCounts
from datakit.normalize.route import hash_texts, sampled
from datakit.normalize.text_rules import apply_rules
from datakit.normalize.texts.render import texts_of
from datakit.pipeline.fate.behind import Behind, Finished
from datakit.pipeline.fate.records import Report, unit_of
from datakit.pipeline.root_layout import source_bases
from datakit.pipeline.run_summary import DROPPED
from datakit.storage import urls
from datakit.storage.fingerprint import config_of
from datakit.storage.parquet import iterate_shard

READ_AGAIN = 4 << 30
SHOWN = 3
LINE_BYTES = 1 << 20  # maximum size of the part of a quarantined line that is searched for the id
TEXT_KINDS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
VIEWERS = {"gzip": "zcat", "zstd": "zstdcat", "bzip2": "bzcat", "xz": "xzcat", "lz4": "lz4cat", "brotli": "brotli -dc"}


def left_out(step: Finished) -> str:
    """Return how many records a normalize step left out, by reason, and the path of its quarantine list, if any."""
    reasons = {key: name for key, name in DROPPED["normalize"].items() if key != "normalize/duplicates"}
    counts = {key: step.manifest.counters.get(key, 0) for key in reasons}
    text = ", ".join(f"{count:,} {reasons[key]}" for key, count in counts.items() if count)
    return text + (f" ({step.url('quarantine/records.jsonl')})" if counts["normalize/quarantined"] else "")


def absence(behind: Behind, source_id: str, report: Report) -> str:
    """Return one line per source about the records with this source id, none of which became a document."""
    bases = source_bases(_root(behind))
    return "\n".join(
        f"  {source}: {_about(behind, source, bases.get(source, ''), source_id, report)}"
        for source in behind.normalized
    )


def _root(behind: Behind) -> str:
    """Return the root that contains the sources' steps; each step's directory is <root>/sources/<source>/<step>."""
    step = next(iter(behind.normalized.values()))
    return urls.parent(urls.parent(urls.parent(step.directory)))


def _about(behind: Behind, source: str, base: str, source_id: str, report: Report) -> str:
    step = behind.normalized[source]
    without = left_out(step) or "none"
    column = step.manifest.parameters.get("id", "id")
    if not _has_ids(step):
        return (
            f"its documents have no source ids, because no record has the column {column!r}; set the source's `id` to "
            f"a column with unique values. Records left out: {without}"
        )
    files = _files(behind, source, base)
    # extractors of web archives may crash or hang, and here nothing isolates them
    if not files or has_archives(files[1], config_of(step.manifest.parameters, Config)):
        return f"its files were not read again. Records left out: {without}"
    context = ReadContext(files[0], config_of(step.manifest.parameters, Config), RecordCounts(_any()))
    try:
        found = list(islice(_records(context, files[1], source, source_id, report), SHOWN))
    except (DatakitError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return f"its files could not be read again ({reason}). Records left out: {without}"
    reasons = [(*_place(record), _why(step, context.config, record)) for record in found]
    reasons = reasons or list(islice(_quarantined(step, files[0], column, source_id), SHOWN))
    if not reasons:
        return f"no record of its files has this id. Records left out: {without}"
    return "; ".join(_described(step, files[0].base, *reason) for reason in reasons)


def _any() -> Tolerance:
    return Tolerance(1 << 62)


def _has_ids(step: Finished) -> bool:
    paths = [part.path for part in step.manifest.partitions if part.rows]
    tables = (table for path in paths for table in iterate_shard(step.url(path), ["source_id"]))
    return not paths or any(table["source_id"].null_count < table.num_rows for table in tables)


def _files(behind: Behind, source: str, base: str) -> tuple[Inputs, list[tuple[str, int]]] | None:
    """Return the Inputs for a source's files, and a list of the files as (path, size); or None if they should not be
    read again."""
    step = behind.of("download", source)
    if step is None:
        return None
    files = [(part.path, part.bytes) for part in step.manifest.partitions]
    copied = bool(files) and urls.exists(step.url(f"{RAW}/{step.manifest.partitions[0].place}"))
    place = step.url(RAW) if copied else base
    if not place or not files or sum(size for _, size in files) > READ_AGAIN:
        return None
    if not copied and not all(os.path.isfile(urls.local_path(urls.join(place, path))) for path, _ in files):
        return None
    copies = {part.path: part.copy for part in step.manifest.partitions if part.copy}
    in_dolma = behind.normalized[source].manifest.parameters.get("format") == formats.DOLMA
    attributes = attribute_files(path for path, _ in files) if in_dolma else {}
    return Inputs(place, copies=copies, attributes=attributes), files


def _records(
    context: ReadContext, files: list[tuple[str, int]], source: str, source_id: str, report: Report
) -> Iterator[Chunk]:
    """Yield the records with this source id, in order."""
    slices = cut_slices(context.inputs, files, context.config)
    for number, ranges in enumerate(slices):
        report(number, len(slices), f"slices of the files of {source}")
        for chunk in read_slice(context, ranges):
            name = "source_id" if is_documents(chunk.table) else context.config.id
            if name in chunk.table.column_names and not types.is_nested(chunk.table.column(name).type):
                ids = fit_column(chunk.table.column(name), pa.string()).to_numpy(zero_copy_only=False)
                yield from (chunk.single(int(row)) for row in np.flatnonzero(ids == source_id))


def _quarantined(step: Finished, inputs: Inputs, column: str, source_id: str) -> Iterator[tuple[str, int, str]]:
    """Yield (file, position, reason) of each quarantined record whose line contains the source id. The id is searched
    for as text, since such a line cannot always be parsed. Only uncompressed JSON, CSV and TSV files are searched.
    """
    name, value = re.escape(json.dumps(column).encode()), re.escape(source_id.encode())
    in_json = re.compile(name + rb'\s*:\s*"?' + value + rb'(?=["\s,}])')
    in_table = re.compile(rb'(?:^|[,\t"])' + value + rb'(?=[,\t"\r\n]|$)')
    for bad in read_quarantine(step.directory) if step.manifest.quarantine.records else ():
        kind = formats.format_of(bad.file, step.manifest.parameters.get("format", formats.AUTO))
        if kind in (formats.JSON, formats.CSV, formats.TSV) and formats.compression_of(bad.file) is None:
            line = urls.read_range(inputs.url(bad.file), bad.position, bad.position + LINE_BYTES).split(b"\n")[0]
            if (in_json if kind == formats.JSON else in_table).search(line):
                yield bad.file, bad.position, f"quarantined: {bad.reason}"


def _described(step: Finished, base: str, file: str, position: int, reason: str) -> str:
    """Describe a record that became no document: its place, the reason and, if possible, a command that shows it."""
    unit = unit_of(step, file)
    kind = formats.format_of(file, step.manifest.parameters.get("format", formats.AUTO))
    command = _command(base, file, position) if kind in (formats.JSON, formats.CSV, formats.TSV) else ""
    return f"{file}, {unit} {position}: {reason}{command}"


def _place(record: Chunk) -> tuple[str, int]:
    return next(record.places())


def _why(step: Finished, config: Config, record: Chunk) -> str:
    if step.manifest.quarantine.records:
        for bad in read_quarantine(step.directory):
            if (bad.file, bad.position) == _place(record):
                return f"quarantined: {bad.reason}"
    if config.transform is not None:
        return "the transform or a later rule left it out"
    texts = _texts(record.table, config)
    if texts is None or texts.null_count:
        return f"it has no text in the column {config.text_described}"
    ruled = apply_rules(texts, config.whitespace_run)
    if ruled.blank:
        return "its text is blank"
    if not sampled(hash_texts(ruled.texts)[1], config)[0]:
        return f"`sample` ({config.sample}) did not select it" + (" or `where` excluded it" if config.where else "")
    beyond = f"it comes after the first {config.limit} documents (`limit`)" if config.limit else ""
    if config.where:
        return f"`where` excluded it ({config.where})" + (f", or {beyond}" if beyond else "")
    if beyond:
        return beyond
    return "nothing in the recipe excludes it; the file has probably changed since the run"


def _texts(table: pa.Table, config: Config) -> pa.Array | None:
    """Return the texts of records, or None if no text can be made of their columns."""
    if config.text_form is not None:
        usable = mistake(table.schema, config.text_form) is None
        return texts_of(table, config.text_form, config.max_document_bytes)[0] if usable else None
    name = config.text_name
    kind = table.column(name).type if name in table.column_names else pa.null()
    if kind not in TEXT_KINDS:
        return None
    wide = pa.large_binary() if types.is_binary(kind) or types.is_large_binary(kind) else pa.large_string()
    return fit(table.column(name).combine_chunks(), wide)


def _command(base: str, file: str, position: int) -> str:
    """Return a command that prints the record's line, or "" if the file is not local."""
    compression, line = formats.compression_of(file), f"tail -c +{position + 1}"
    if not urls.is_local(base):
        return ""
    path = shlex.quote(urls.local_path(urls.join(base, file)))
    read = f"{line} {path}" if compression is None else f"{VIEWERS[compression]} {path} | {line}"
    return f"; to see it: {read} | head -n 1"
