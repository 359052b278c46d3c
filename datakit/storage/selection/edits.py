"""Defines the lists of edits: sparse files that state how the texts of a normalized partition are changed.

The file `edits/<source>/part-00017-of-00106.parquet` of a select step belongs to the normalized partition of the same
name. A step has these files only for sources with edits, and then one for every partition. A file has one row for each
document that stays and whose text changes, in the order of the partition, so `id` and `row` ascend:

    id           the document's id, with which readers verify the row
    row          the document's row in the partition, counted from 0
    edited_id    the xxh3-128 of the edited text, as 32 hex digits
    stretches    the stretches that change, at least one, in order and disjoint: the bytes `[start, stop)` of the
                 normalized text, the `replacement` (null if the stretch is cut) and the name of the `edit`

Cost: some 40 bytes per document, and some 5 per stretch. `text/edited_texts.py` applies the edits.
"""

from __future__ import annotations

import pyarrow as pa

from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import Manifest
from datakit.storage.selection.listed_rows import ADVICE

FOLDER = "edits"
STRETCH = pa.struct(
    [
        pa.field("start", pa.uint64(), nullable=False),
        pa.field("stop", pa.uint64(), nullable=False),
        pa.field("replacement", pa.string()),
        pa.field("edit", pa.string(), nullable=False),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("row", pa.uint64(), nullable=False),
        pa.field("edited_id", pa.string(), nullable=False),
        pa.field("stretches", pa.list_(pa.field("element", STRETCH, nullable=False)), nullable=False),
    ]
)
DICTIONARY = ("stretches.list.element.replacement", "stretches.list.element.edit")


def edits_path(source: str, name: str) -> str:
    """Return the path, in a select step's directory, of the edits of the partition with this file name."""
    return f"{FOLDER}/{source}/{name}"


def has_edits(manifest: Manifest, source: str) -> bool:
    """Return True if a select step edits the texts of this source. manifest: that of the select step."""
    return source in manifest.details.get(FOLDER, {})


def edits_url(directory: str, manifest: Manifest, source: str, name: str) -> str | None:
    """Return the URL of the edits of the partition with this file name; None if its texts are not edited.

    directory, manifest: those of the select step. Raises CorruptError if the step lists no such file.
    """
    if not has_edits(manifest, source):
        return None
    path = edits_path(source, name)
    listed = manifest.files_by_path.get(path)
    if listed is None:
        raise CorruptError(f"{directory}: its manifest edits source {source!r} but does not list {path}; {ADVICE}")
    return urls.join(directory, path) if listed.rows else None
