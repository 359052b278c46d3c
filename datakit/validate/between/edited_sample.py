"""Applies the edits of a select step to a few documents."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.storage import urls
from datakit.storage.parquet import iterate_shard
from datakit.storage.selection.edits import edits_url
from datakit.text.edited_texts import edited, stretches_of
from datakit.validate.subject import Subject

Documents = list[tuple[str, str]]  # (id, text)


def with_edits(step: Subject, url: str, documents: Documents) -> Documents:
    """Return documents of the normalized partition at `url` with their edited texts. step: a step made from them."""
    for normalized, above in step.inputs_of("normalize"):
        for part in above.partitions:
            if normalized.url(part) == url:
                for select, manifest in step.inputs_of("select"):
                    lists = edits_url(select.directory, manifest, part.source, urls.name(part.path))
                    documents = _edited(lists, documents) if lists is not None else documents
    return documents


def _edited(lists: str, documents: Documents) -> Documents:
    names = {name: row for row, (name, _) in enumerate(documents)}
    texts = pa.array([text for _, text in documents], pa.large_string())
    wanted = pc.SetLookupOptions(pa.array(list(names), pa.string()))
    for table in iterate_shard(lists, ["id", "stretches"]):
        listed = table.filter(pc.call_function("is_in", [table["id"]], wanted)).combine_chunks()
        order = np.argsort([names[name] for name in listed["id"].to_pylist()])
        listed = listed.take(pa.array(order, pa.int64()))
        rows = np.array([names[name] for name in listed["id"].to_pylist()], np.int64)
        texts = edited(texts, stretches_of(listed["stretches"].combine_chunks(), rows))
    return [(name, text) for (name, _), text in zip(documents, texts.to_pylist(), strict=True)]
